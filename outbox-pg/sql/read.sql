-- Reads leased events by the index: those that were not where they had been when they were claimed.
SELECT seq, id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, created_at,
    retry_count, claim_count, done_parts
FROM "outbox"."outbox"
WHERE id = ANY ($1) AND seq = ANY ($2) AND status = 'pending'
