-- Makes the plans of a settlement, by one of nothing.
SELECT count(*) FROM "outbox"."outbox_settle"('{}', '{}', '{}', '{}', NULL, false, false)
