-- What a listener has to know: the channel, and the number of the sleeper's lock.
SELECT "outbox"."outbox_channel"(), "outbox"."outbox_lock_number"(2)
