-- How far the delivery of events is. Where several tenants have an id, the one that is least far counts.
SELECT DISTINCT ON (id) id, status, coalesce(error, '') FROM "outbox"."outbox" WHERE id = ANY ($1)
ORDER BY id, array_position(ARRAY['pending', 'failed', 'completed'], status)
