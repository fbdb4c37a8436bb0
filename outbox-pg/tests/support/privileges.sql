-- Whatever a role ($1) may do with the objects of the schema outbox, one per line.
WITH ours AS (
    SELECT oid, relname, relkind FROM pg_catalog.pg_class WHERE relnamespace = 'outbox'::regnamespace AND relkind IN ('r', 'S')
), on_tables AS (
    SELECT relname, privilege, has_table_privilege($1, ours.oid, privilege) AS whole, columns
    FROM ours
    CROSS JOIN unnest(ARRAY['SELECT', 'INSERT', 'UPDATE', 'DELETE', 'TRUNCATE', 'REFERENCES', 'TRIGGER']) AS privilege
    CROSS JOIN LATERAL (
        SELECT string_agg(attname::text, ', ' ORDER BY attnum) AS columns FROM pg_catalog.pg_attribute
        WHERE attrelid = ours.oid AND attnum > 0 AND NOT attisdropped AND privilege IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
            AND has_column_privilege($1, attrelid, attnum, CASE WHEN privilege IN ('SELECT', 'INSERT', 'UPDATE', 'REFERENCES')
                THEN privilege ELSE 'SELECT' END)
    ) AS of_columns
    WHERE relkind = 'r'
)
SELECT privilege || ' ' || relname || CASE WHEN whole THEN '' ELSE ' (' || columns || ')' END AS may
FROM on_tables WHERE whole OR columns IS NOT NULL
UNION ALL
SELECT privilege || ' ' || relname FROM ours CROSS JOIN unnest(ARRAY['USAGE', 'SELECT', 'UPDATE']) AS privilege
WHERE relkind = 'S' AND has_sequence_privilege($1, oid, privilege)
UNION ALL
SELECT 'EXECUTE ' || proname FROM pg_catalog.pg_proc
WHERE pronamespace = 'outbox'::regnamespace AND has_function_privilege($1, oid, 'EXECUTE')
UNION ALL
SELECT privilege || ' schema' FROM unnest(ARRAY['USAGE', 'CREATE']) AS privilege
WHERE has_schema_privilege($1, 'outbox', privilege)
ORDER BY may
