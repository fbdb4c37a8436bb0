-- Everything about one event but its payload, of each tenant that has the id.
SELECT event.id, event.seq, event.event_type, event.tenant_id, event.ordering_key, event.status, event.class,
    event.retry_count, event.claim_count, event.error, event.created_at, event.available_at, event.processed_at,
    event.discarded_at,
    event.aggregate_type, event.aggregate_id, event.headers::text, event.done_parts,
    (SELECT max(lease.until) FROM "outbox"."outbox_lease" AS lease WHERE event.seq = ANY (lease.seqs)) AS leased_until,
    (SELECT array_agg(DISTINCT block.scope || ' ' || block.reason) FROM "outbox"."outbox_block" AS block
        WHERE event.status = 'pending' AND (
            (block.scope = 'type' AND block.name = event.event_type)
            OR (block.scope = 'key' AND block.tenant_id = event.tenant_id AND block.name = event.ordering_key))) AS blocked_by
FROM "outbox"."outbox" AS event WHERE event.id = $1 ORDER BY event.tenant_id
