-- Makes the plans of a claim. The first claim of a session would make them while it holds the lock of all claims, and every
-- other relay would wait for that. Reads only.
SELECT "outbox"."outbox_has_work"(), "outbox"."outbox_look_plainly"(facts, 1), "outbox"."outbox_look"(facts, 1, '{""}', now())
FROM "outbox"."outbox_read_facts"(gen_random_uuid(), now()) AS facts
