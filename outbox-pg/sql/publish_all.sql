-- Publishes many events, in the order of the lists, which run side by side. Tenants are inherited as in publish.sql.
INSERT INTO "outbox"."outbox"
    (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, class, available_at)
SELECT id, event_type, aggregate_type, aggregate_id, ordering_key,
    coalesce(tenant_id, current_setting('app.current_tenant', true), ''), payload::json, headers::json,
    CASE WHEN due_at IS NULL AND delay IS NULL THEN 'fresh' ELSE 'scheduled' END,
    coalesce(timestamptz 'epoch' + due_at * interval '1 microsecond', clock_timestamp() + delay * interval '1 microsecond')
FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
        $9::bigint[], $10::bigint[]) WITH ORDINALITY
    AS event (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, due_at, delay, place)
WHERE tenant_id IS NOT NULL OR coalesce(current_setting('app.current_tenant', true), '') = ''
    OR (octet_length(current_setting('app.current_tenant')) <= 200
        AND current_setting('app.current_tenant') !~ '[\u0001-\u001f\u007f-\u009f]')
ORDER BY place
ON CONFLICT DO NOTHING
