-- Reads leased events where their rows were when they were claimed. One that has moved does not come back, and what is in
-- its place may: look at the numbers. After the claim has committed, so that a slow network holds no lock. LATERAL with
-- OFFSET, so that the rows can only be looked up.
SELECT event.seq, event.id, event.event_type, event.aggregate_type, event.aggregate_id, event.ordering_key, event.tenant_id,
    event.payload, event.headers, event.created_at, event.retry_count, event.claim_count, event.done_parts
FROM "outbox"."outbox_lease" AS lease
CROSS JOIN LATERAL (
    SELECT * FROM "outbox"."outbox" WHERE ctid = ANY (lease.tids) AND status = 'pending' OFFSET 0) AS event
WHERE lease.number = ANY ($1)
