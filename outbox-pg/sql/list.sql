-- Events of status $1, in publish order, after number $7, up to $8. The rest narrows it down; NULL: any.
SELECT event.id, event.seq, event.event_type, event.tenant_id, event.ordering_key, event.status, event.class,
    event.retry_count, event.claim_count, event.error, event.created_at, event.available_at, event.processed_at,
    event.discarded_at
FROM "outbox"."outbox" AS event
WHERE event.status = $1 AND event.seq > $7
    -- What finds them: dead letters their class, fresh events also where they begin.
    AND ($1 <> 'failed' OR event.class = 'failed')
    AND ($1 <> 'pending' OR $6 IS DISTINCT FROM 'fresh' OR event.seq > (
        SELECT least(mark.last_value, (
            SELECT min(fresh.seq) - 1
            FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.ids, lease.seqs) AS flight (id, seq)
            JOIN "outbox"."outbox" AS fresh ON fresh.id = flight.id AND fresh.seq = flight.seq AND fresh.class = 'fresh'))
        FROM "outbox"."outbox_mark" AS mark))
    AND ($2::text IS NULL OR event.event_type = $2) AND ($3::text IS NULL OR event.tenant_id = $3)
    AND ($4::text IS NULL OR event.ordering_key = $4)
    AND ($5::text IS NULL OR strpos(lower(event.error), lower($5)) > 0)
    AND ($6::text IS NULL OR event.class = $6)
ORDER BY event.seq LIMIT $8
