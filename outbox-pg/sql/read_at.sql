-- Reads leased events where their rows were when they were claimed; one that has moved does not come back. After the
-- claim has committed, so that a slow network holds no lock. LATERAL with OFFSET, so that the rows can only be looked up.
SELECT event.seq, event.id, event.event_type, event.aggregate_type, event.aggregate_id, event.ordering_key, event.tenant_id,
    event.payload, event.headers, event.created_at, event.retry_count, event.claim_count, event.done_parts
FROM "outbox"."outbox_lease" AS lease
CROSS JOIN LATERAL unnest(lease.ids, lease.tids) AS taken (id, tid)
CROSS JOIN LATERAL (
    SELECT * FROM "outbox"."outbox" WHERE ctid = taken.tid AND id = taken.id AND status = 'pending' OFFSET 0) AS event
WHERE lease.number = ANY ($1)
