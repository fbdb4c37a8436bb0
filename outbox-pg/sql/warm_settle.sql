-- Makes the plans of a settlement, by one of nothing. Not while the table is locked: there is time for that when it is needed.
SET lock_timeout = '100ms';
SELECT count(*) FROM "outbox"."outbox_settle"('{}', '{}', '{}', '{}', NULL, false, false);
SET lock_timeout = 0
