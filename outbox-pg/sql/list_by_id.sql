-- Events of these ids, in publish order.
SELECT event.id, event.seq, event.event_type, event.tenant_id, event.ordering_key, event.status, event.class,
    event.retry_count, event.claim_count, event.error, event.created_at, event.available_at, event.processed_at,
    event.discarded_at
FROM "outbox"."outbox" AS event WHERE event.id = ANY ($1) ORDER BY event.seq
