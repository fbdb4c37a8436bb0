-- Publishes one event for drivers that are not ours: every parameter is a text or NULL.
-- A tenant to inherit that no event can have is an error here: that nothing was written would mean that the id is known.
-- $9 and $10: due at so many microseconds after 1970, or after now; both NULL: at once.
INSERT INTO "outbox"."outbox"
    (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, class, available_at)
VALUES ($1::text::uuid, $2::text, $3::text, $4::text, $5::text,
    CASE WHEN $6::text IS NOT NULL THEN $6::text
        WHEN coalesce(current_setting('app.current_tenant', true), '') = '' THEN ''
        WHEN "outbox"."outbox_publish_text"('tenant id', current_setting('app.current_tenant'), 0, 200) IS NOT NULL
            THEN current_setting('app.current_tenant') END, $7::text::json, $8::text::json,
    CASE WHEN $9::text IS NULL AND $10::text IS NULL THEN 'fresh' ELSE 'scheduled' END,
    coalesce(timestamptz 'epoch' + $9::text::bigint * interval '1 microsecond',
        clock_timestamp() + $10::text::bigint * interval '1 microsecond'))
ON CONFLICT DO NOTHING
