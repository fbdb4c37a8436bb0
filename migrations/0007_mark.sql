-- The low-water mark: no fresh event has a number up to it, so claims start there and never pass over the dead index
-- entries of what was settled before, however old the oldest snapshot is.
--
-- Numbers are not committed in order, so the mark moves by an exact rule, in two steps with time between them:
--   1. Read the candidate, then who may still be writing: everyone who holds a writing lock on the table. A publisher
--      takes that lock before it draws its number, so whoever drew one below the candidate is among them or has ended.
--   2. When they all have ended, look once more below the candidate. A transaction's rows are visible before its locks
--      are gone, so nothing can appear there any more.
-- A relay that dies in between leaves nothing behind: the candidate is in its memory. Several relays may do this at
-- once: each moves the mark to a place it has proven, and a lower one is only slower.

-- Step 1. Returns NULL for the candidate when the mark cannot move.
CREATE FUNCTION "outbox"."outbox_mark_candidate"(OUT candidate bigint, OUT writers text[]) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_file oid;
    v_mark bigint;
    v_first bigint;
    v_holes int8multirange;
BEGIN
    -- ORDER: before the candidate is read. A new file when the numbers begin anew: writers of after that are not among these.
    v_file := pg_relation_filenode('"outbox"."outbox_seq"');
    SELECT last_value INTO v_mark FROM "outbox"."outbox_mark";
    SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END INTO candidate FROM "outbox"."outbox_seq";
    -- Where claims go on, the last one tells: up to what is in flight, or pending in a hole. Step 2 looks for itself.
    SELECT seen, holes INTO v_first, v_holes FROM "outbox"."outbox_lease"
        WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark") ORDER BY number DESC LIMIT 1;
    IF v_holes IS NOT NULL THEN
        v_first := least(v_first + 1, (
            SELECT min(flight.seq) FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.seqs) AS flight (seq)
            WHERE lease.number > (SELECT last_value FROM "outbox"."outbox_lease_mark") AND flight.seq > v_mark), (
            SELECT late.seq FROM unnest(v_holes) AS hole (numbers) CROSS JOIN LATERAL (
                SELECT seq FROM "outbox"."outbox"
                WHERE status = 'pending' AND class = 'fresh' AND seq >= lower(hole.numbers) AND seq < upper(hole.numbers)
                    AND seq > v_mark
                ORDER BY seq LIMIT 1) AS late
            ORDER BY late.seq LIMIT 1));
    ELSE
        SELECT seq INTO v_first FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'fresh' AND seq > v_mark ORDER BY seq LIMIT 1;
    END IF;
    candidate := least(candidate, v_first);
    IF candidate <= v_mark + 1 THEN
        candidate := NULL;
        RETURN;
    END IF;
    -- ORDER: after the candidate was read.
    SELECT coalesce(array_agg(DISTINCT virtualtransaction), '{}') INTO writers FROM pg_catalog.pg_locks
        WHERE relation = '"outbox"."outbox"'::regclass AND locktype = 'relation'
            AND database = (SELECT oid FROM pg_catalog.pg_database WHERE datname = current_database())
            AND mode IN ('RowExclusiveLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
            AND pid IS DISTINCT FROM pg_backend_pid();
    writers := writers || format('numbers in %s', v_file);
END
$$;

-- Numbers that begin anew, by hand or by TRUNCATE ... RESTART IDENTITY, are below the mark: it goes back to where all is seen,
-- which is only slower. Leases of what is gone would hide what gets its numbers. One that is being settled cannot be waited
-- for, since it waits for this, and ends by itself. Keys would wait for ever for failed events that are gone; what an operator
-- paused stays so.
CREATE FUNCTION "outbox"."outbox_forget_mark"() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval('"outbox"."outbox_mark"', 0);
    DELETE FROM "outbox"."outbox_lease" WHERE number IN (
        SELECT number FROM "outbox"."outbox_lease" ORDER BY number FOR UPDATE SKIP LOCKED);
    DELETE FROM "outbox"."outbox_block" WHERE event_id IS NOT NULL;
    RETURN NULL;
END
$$;

CREATE TRIGGER "outbox_forget_mark" AFTER TRUNCATE ON "outbox"."outbox"
    FOR EACH STATEMENT EXECUTE FUNCTION "outbox"."outbox_forget_mark"();

-- Whether the mark is ahead of every number that was given out, as it is after ALTER SEQUENCE ... RESTART.
CREATE FUNCTION "outbox"."outbox_mark_is_ahead"() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT mark.last_value > CASE WHEN seq.is_called THEN seq.last_value ELSE seq.last_value - 1 END
        FROM "outbox"."outbox_mark" AS mark, "outbox"."outbox_seq" AS seq);
END
$$;

-- Whether the role sees every row: no row security for it, or a policy for it that lets all through.
CREATE FUNCTION "outbox"."outbox_sees_all"() RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT NOT row_security_active('"outbox"."outbox"')
        OR (EXISTS (
                SELECT FROM pg_catalog.pg_policy
                WHERE polrelid = '"outbox"."outbox"'::regclass AND polpermissive AND polcmd = '*'
                    AND pg_get_expr(polqual, polrelid) = 'true'
                    AND (0 = ANY (polroles) OR EXISTS (
                        SELECT FROM unnest(polroles) AS role (oid) WHERE role.oid <> 0 AND pg_has_role(role.oid, 'USAGE'))))
            AND NOT EXISTS (
                SELECT FROM pg_catalog.pg_policy WHERE polrelid = '"outbox"."outbox"'::regclass AND NOT polpermissive))
$$;

-- Refuses to work on what row security leaves of the events: the owner, who is bound by the tenants' policy too, would take
-- a part for the whole.
CREATE FUNCTION "outbox"."outbox_require_sight"() RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT "outbox"."outbox_sees_all"() THEN
        RAISE EXCEPTION 'role % cannot see the events of every tenant', current_user
            USING ERRCODE = 'insufficient_privilege',
                  HINT = format('Work as a relay''s role, or let the owner of the tables run: SELECT "outbox"."outbox_grant_relay"(%L)', current_user);
    END IF;
END
$$;

-- Step 2. Returns whether it is done with the candidate; false means: ask again later.
CREATE FUNCTION "outbox"."outbox_mark_move"(p_candidate bigint, p_writers text[]) RETURNS boolean LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_mark bigint;
    v_first bigint;
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    -- A role that cannot see all rows would move the mark past those it cannot see.
    IF NOT "outbox"."outbox_sees_all"() THEN
        RETURN true;
    END IF;
    -- A prepared transaction has no process, and its lock is under another name than when it was read: any one stops the mark.
    IF EXISTS (SELECT FROM pg_catalog.pg_locks
        WHERE virtualtransaction = ANY (p_writers)
            OR (pid IS NULL AND locktype = 'relation' AND relation = '"outbox"."outbox"'::regclass))
    THEN
        RETURN false;
    END IF;
    -- The candidate is of numbers from before they began anew: by a command, or by setval.
    IF format('numbers in %s', pg_relation_filenode('"outbox"."outbox_seq"')) <> ALL (p_writers)
        OR p_candidate > (SELECT last_value + 1 FROM "outbox"."outbox_seq")
    THEN
        RETURN true;
    END IF;
    -- ORDER: after the writers were seen to have ended, with a view taken after that.
    SELECT last_value INTO v_mark FROM "outbox"."outbox_mark";
    SELECT seq INTO v_first FROM "outbox"."outbox"
        WHERE status = 'pending' AND class = 'fresh' AND seq > v_mark AND seq < p_candidate ORDER BY seq LIMIT 1;
    IF least(p_candidate, v_first) - 1 > v_mark THEN
        PERFORM setval('"outbox"."outbox_mark"', least(p_candidate, v_first) - 1);
    END IF;
    RETURN true;
END
$$;

-- Fresh events up to the mark that nobody has claimed: of the last p_rows before it, or of all (NULL). Completed ones are in
-- the index as well, so that to look through all takes as long as the table is large.
CREATE FUNCTION "outbox"."outbox_below_mark"(p_rows bigint) RETURNS TABLE (id uuid, seq bigint) LANGUAGE plpgsql STABLE
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT last.id, last.seq FROM (
        SELECT event.id, event.seq, event.status FROM "outbox"."outbox" AS event
        WHERE event.class = 'fresh' AND event.seq <= (SELECT last_value FROM "outbox"."outbox_mark")
        ORDER BY event.seq DESC LIMIT p_rows) AS last
    WHERE last.status = 'pending' AND last.seq NOT IN (
        SELECT unnest(lease.seqs) FROM "outbox"."outbox_lease" AS lease
        -- A dump holds sequences as they were after its rows: a lease up to the mark is one that has ended since.
        WHERE lease.number > (SELECT last_value FROM "outbox"."outbox_lease_mark"));
END
$$;

-- The net under both: finds what nothing else would. Returns what it mended; all zero unless numbers or rows were
-- changed by hand, or a dump was restored whose mark is younger than its rows.
--   below     fresh events up to the mark: of the last 200,000 before it, and in a restored table of all
--   stranded  keys whose line has no head that will become due, though nothing of them is in flight or blocked
CREATE FUNCTION "outbox"."outbox_sweep"(OUT below bigint, OUT stranded bigint) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_table bigint := '"outbox"."outbox"'::regclass::oid::bigint;
    v_restored boolean := v_table <> (SELECT last_value FROM "outbox"."outbox_mark_of");
    v_lease_mark bigint := (SELECT last_value FROM "outbox"."outbox_lease_mark");
    v_now timestamptz;
    v_key record;
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    PERFORM "outbox"."outbox_require_sight"();
    -- Without the lock at first: to look takes a while, and nearly always nothing is found.
    below := 0;
    IF v_restored OR EXISTS (SELECT FROM "outbox"."outbox_below_mark"(200000)) THEN
        PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
        v_now := clock_timestamp();
        UPDATE "outbox"."outbox" AS event SET class = 'waiting', available_at = v_now
            FROM "outbox"."outbox_below_mark"(CASE WHEN v_restored THEN NULL ELSE 200000 END) AS found
            WHERE event.id = found.id AND event.seq = found.seq AND event.status = 'pending' AND event.class = 'fresh';
        GET DIAGNOSTICS below = ROW_COUNT;
        PERFORM setval('"outbox"."outbox_mark_of"', v_table) WHERE v_restored;
    END IF;

    PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
    v_now := clock_timestamp();
    IF "outbox"."outbox_mark_is_ahead"() THEN
        PERFORM setval('"outbox"."outbox_mark"', 0);
    END IF;

    stranded := 0;
    FOR v_key IN
        SELECT first.tenant_id, first.ordering_key FROM (
            SELECT DISTINCT ON (tenant_id, ordering_key) tenant_id, ordering_key, class FROM "outbox"."outbox"
            WHERE status = 'pending' AND class IN ('scheduled', 'waiting', 'held', 'barred') AND ordering_key IS NOT NULL
                AND NOT (class = 'scheduled' AND available_at > v_now)
            ORDER BY tenant_id, ordering_key, seq) AS first
        WHERE first.class = 'held'
            AND "outbox"."outbox_key"(first.tenant_id, first.ordering_key) NOT IN (
                SELECT taken.key FROM "outbox"."outbox_lease" CROSS JOIN unnest(keys) AS taken (key)
                WHERE number > v_lease_mark AND taken.key IS NOT NULL)
            AND NOT EXISTS (
                SELECT FROM "outbox"."outbox_block" AS block
                WHERE block.scope = 'key' AND block.tenant_id = first.tenant_id AND block.name = first.ordering_key)
        LIMIT 1000
    LOOP
        PERFORM "outbox"."outbox_promote"(ARRAY["outbox"."outbox_key"(v_key.tenant_id, v_key.ordering_key)], v_now);
        stranded := stranded + 1;
    END LOOP;
END
$$;
