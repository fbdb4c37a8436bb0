-- Publishes one event. $9 and $10: due at so many microseconds after 1970, or after now; both NULL: at once.
-- Without a tenant of its own ($6 NULL) it inherits the one of the transaction, if that has any. One that no event can have
-- writes nothing, and fails nothing: the publisher looks why.
-- ON CONFLICT names no target: with one, the publisher would need the right to SELECT.
INSERT INTO "outbox"."outbox"
    (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, class, available_at)
SELECT $1::uuid, $2::text, $3::text, $4::text, $5::text,
    coalesce($6::text, before.tenant_id), $7::text::json, $8::text::json,
    CASE WHEN $9::bigint IS NULL AND $10::bigint IS NULL THEN 'fresh' ELSE 'scheduled' END,
    coalesce(timestamptz 'epoch' + $9::bigint * interval '1 microsecond', clock_timestamp() + $10::bigint * interval '1 microsecond')
FROM (SELECT coalesce(current_setting('app.current_tenant', true), '') AS tenant_id) AS before
WHERE before.tenant_id = '' OR $6 IS NOT NULL OR (octet_length(before.tenant_id) <= 200
    AND before.tenant_id !~ '[\u0001-\u001f\u007f-\u009f]')
ON CONFLICT DO NOTHING
