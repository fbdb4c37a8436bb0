-- What a relay has to know before it claims anything.
SELECT "outbox"."outbox_sees_all"(), current_user::text, "outbox"."outbox_channel"(), "outbox"."outbox_lock_number"(2)
