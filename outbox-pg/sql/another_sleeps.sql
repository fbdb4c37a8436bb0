-- Whether some session holds the sleeper's lock. A lock number of 64 bits is shown in two halves.
SELECT EXISTS (
    SELECT FROM pg_catalog.pg_locks
    WHERE locktype = 'advisory' AND mode = 'ExclusiveLock' AND granted AND objsubid = 1
        AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
        AND (classid::bigint << 32 | objid::bigint) = $1)
