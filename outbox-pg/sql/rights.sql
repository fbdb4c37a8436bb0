-- What the current role lacks to be a relay of table $2 in schema $1, which takes the functions $3 (less the table's name).
-- Through the catalogs: to look a name up in a schema that one may not use is an error.
WITH schema AS (SELECT oid, nspname FROM pg_catalog.pg_namespace WHERE nspname = $1::text),
outbox AS (
    SELECT class.oid, class.relowner, class.relnamespace FROM pg_catalog.pg_class AS class
    JOIN schema ON class.relnamespace = schema.oid WHERE class.relname = $2::text),
wanted (kind, suffix, privilege) AS (VALUES
    ('table', '', 'SELECT'), ('table', '', 'UPDATE'), ('table', '', 'DELETE'),
    ('table', '_lease', 'SELECT'), ('table', '_lease', 'INSERT'), ('table', '_lease', 'UPDATE'), ('table', '_lease', 'DELETE'),
    ('table', '_block', 'SELECT'), ('table', '_block', 'INSERT'), ('table', '_block', 'DELETE'),
    ('table', '_migration', 'SELECT'),
    ('sequence', '_seq', 'SELECT'), ('sequence', '_lease_number', 'SELECT'),
    ('sequence', '_mark', 'SELECT'), ('sequence', '_mark', 'UPDATE'),
    ('sequence', '_lease_mark', 'SELECT'), ('sequence', '_lease_mark', 'UPDATE'),
    ('sequence', '_swept', 'SELECT'), ('sequence', '_swept', 'UPDATE'),
    ('sequence', '_swept_of', 'SELECT'), ('sequence', '_swept_of', 'UPDATE'))
SELECT 'USAGE on schema ' || nspname FROM schema WHERE NOT has_schema_privilege(oid, 'USAGE')
UNION ALL
SELECT string_agg(wanted.privilege, ', ' ORDER BY wanted.privilege) || ' on ' || wanted.kind || ' ' || $1 || '.' || class.relname
FROM wanted JOIN outbox ON true
JOIN pg_catalog.pg_class AS class ON class.relnamespace = outbox.relnamespace AND class.relname = $2 || wanted.suffix
WHERE NOT CASE
    WHEN wanted.kind = 'sequence' THEN has_sequence_privilege(class.oid, wanted.privilege)
    -- Of an event, only what becomes of it.
    WHEN wanted.suffix = '' AND wanted.privilege = 'UPDATE' THEN (
        SELECT bool_and(has_column_privilege(class.oid, attnum, 'UPDATE')) FROM pg_catalog.pg_attribute
        WHERE attrelid = class.oid AND attname IN ('status', 'class', 'available_at', 'retry_count', 'claim_count', 'alone',
            'done_parts', 'error', 'processed_at', 'discarded_at'))
    ELSE has_table_privilege(class.oid, wanted.privilege) END
GROUP BY wanted.kind, class.relname
UNION ALL
-- One is worth a name; of many it is the grant that is missing.
SELECT CASE count(*)
    WHEN 1 THEN 'EXECUTE on function ' || $1 || '.' || min(ours.proname)
    ELSE 'EXECUTE on ' || count(*) || ' functions in schema ' || $1 END
FROM outbox
JOIN pg_catalog.pg_proc AS ours ON ours.pronamespace = outbox.relnamespace AND ours.proowner = outbox.relowner
    AND ours.proname IN (SELECT $2 || '_' || name FROM unnest($3::text[]) AS name)
WHERE NOT has_function_privilege(ours.oid, 'EXECUTE')
HAVING count(*) > 0
