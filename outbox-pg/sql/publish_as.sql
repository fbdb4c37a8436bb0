-- Publishes events, some of them with a tenant of their own; otherwise as publish_all.sql.
--
-- A transaction without a tenant takes on each event's tenant for the moment of its INSERT: row security lets it pass
-- then, and the transaction has no tenant again afterwards. One that has a tenant keeps it, and an event of another
-- tenant is refused where tenants are isolated.
-- ORDER: the rows of a SELECT are computed one by one as INSERT asks for them, each before it is checked; the inner SELECT
-- has sorted them by then. RETURNING names no column, or the publisher would need the right to SELECT.
WITH before AS MATERIALIZED (
    SELECT coalesce(current_setting('app.current_tenant', true), '') AS tenant_id),
written AS (
    INSERT INTO "outbox"."outbox"
        (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, class, available_at)
    SELECT id, event_type, aggregate_type, aggregate_id, ordering_key,
        CASE WHEN set_config('app.current_tenant', coalesce(nullif(before, ''), tenant), true) IS NOT NULL THEN tenant END,
        payload, headers, class, available_at
    FROM (
        SELECT id, event_type, aggregate_type, aggregate_id, ordering_key,
            before.tenant_id AS before, coalesce(event.tenant_id, before.tenant_id) AS tenant,
            payload::json AS payload, headers::json AS headers,
            CASE WHEN due_at IS NULL AND delay IS NULL THEN 'fresh' ELSE 'scheduled' END AS class,
            coalesce(timestamptz 'epoch' + due_at * interval '1 microsecond', clock_timestamp() + delay * interval '1 microsecond') AS available_at
        FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                $9::bigint[], $10::bigint[]) WITH ORDINALITY
            AS event (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, due_at, delay, place)
        CROSS JOIN before
        -- Nothing at all where some would inherit a tenant that no event can have.
        WHERE before.tenant_id = '' OR array_position($6, NULL) IS NULL OR (octet_length(before.tenant_id) <= 200
            AND before.tenant_id !~ '[\u0001-\u001f\u007f-\u009f]')
        ORDER BY place) AS sorted
    ON CONFLICT DO NOTHING
    RETURNING 1)
-- An aggregate is computed when all rows have been written.
SELECT count(*), set_config('app.current_tenant', (SELECT tenant_id FROM before), true) FROM written
