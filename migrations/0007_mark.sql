-- The low-water mark: no fresh event up to it is unclaimed, so claims start there at the latest, and never pass over what was
-- settled before, nor over its dead versions, however old the oldest snapshot is.
--
-- Where claims have seen every number, settlements move it (outbox_mark_seen). Numbers are not committed in order, and some never
-- are: past those that no claim has seen, the holes, the mark moves by an exact rule, in two steps with time between them:
--   1. Read the candidate, then who may still be writing: everyone who holds a writing lock on the table. A publisher
--      takes that lock before it draws its number, so whoever drew one below the candidate is among them or has ended.
--   2. When they all have ended, look once more below the candidate. A transaction's rows are visible before its locks
--      are gone, so nothing can appear there any more.
-- A relay that dies in between leaves nothing behind: the candidate is in its memory. Several relays may do this at
-- once: each moves the mark to a place it has proven, and a lower one is only slower.

-- The first number above the mark and below p_below of a fresh event that nobody has claimed. What is in flight does not hold the
-- mark: it is never fresh again.
--
-- The last lease tells where that can be: in a hole, or beyond what claims have seen. Without one that tells, all events are
-- passed over up to there, the completed ones too.
CREATE FUNCTION "outbox"."outbox_first_open"(p_below bigint) RETURNS bigint LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_last record := "outbox"."outbox_last_seen"();
BEGIN
    RETURN (SELECT seq FROM "outbox"."outbox_unclaimed"(
        v_last.mark, v_last.seen, v_last.holes, v_last.known, v_last.lease_mark, p_below, 1));
END
$$;

-- Step 1. Returns NULL for the candidate when the mark cannot move.
CREATE FUNCTION "outbox"."outbox_mark_candidate"(OUT candidate bigint, OUT writers text[]) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_file oid;
    v_mark bigint;
    v_first bigint;
BEGIN
    -- ORDER: first of all. TRUNCATE ... RESTART IDENTITY, which sets the mark back, comes before all of this or after.
    LOCK TABLE "outbox"."outbox" IN ACCESS SHARE MODE;
    -- ORDER: before the candidate is read. A new file when the numbers begin anew: writers of after that are not among these.
    v_file := pg_relation_filenode('"outbox"."outbox_seq"');
    SELECT last_value INTO v_mark FROM "outbox"."outbox_mark";
    SELECT CASE WHEN is_called THEN last_value + 1 ELSE last_value END INTO candidate FROM "outbox"."outbox_seq";
    v_first := "outbox"."outbox_first_open"(candidate);
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
-- which is only slower. Leases of what is gone would hide what gets its numbers. One that is being extended is not waited for, and
-- hides them until it ends. Keys would wait for ever for failed events that are gone; what an operator
-- paused stays so.
CREATE FUNCTION "outbox"."outbox_forget_mark"() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
    PERFORM setval('"outbox"."outbox_mark"', 0);
    PERFORM setval('"outbox"."outbox_swept"', 0);
    DELETE FROM "outbox"."outbox_lease" WHERE number IN (
        SELECT number FROM "outbox"."outbox_lease" ORDER BY number FOR UPDATE SKIP LOCKED);
    DELETE FROM "outbox"."outbox_block" WHERE event_id IS NOT NULL;
    RETURN NULL;
END
$$;

CREATE TRIGGER "outbox_forget_mark" AFTER TRUNCATE ON "outbox"."outbox"
    FOR EACH STATEMENT EXECUTE FUNCTION "outbox"."outbox_forget_mark"();

-- Moves the mark up to p_seen, below which claims, as a lease tells, have seen every number. None of them can still be to come: each
-- was claimed. Nor can a crash of the server keep this and forget the claim, which was committed, and so written, before it was
-- seen. Call it holding the table, with a number of today's numbering, and not in the transaction of the claim.
CREATE FUNCTION "outbox"."outbox_mark_seen"(p_seen bigint) RETURNS void LANGUAGE plpgsql
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    -- Numbers that were set back by hand are below what was seen of others.
    IF p_seen > (SELECT mark.last_value FROM "outbox"."outbox_mark" AS mark)
        AND p_seen < (SELECT given.last_value + given.is_called::integer FROM "outbox"."outbox_seq" AS given)
    THEN
        PERFORM setval('"outbox"."outbox_mark"', p_seen);
    END IF;
END
$$;

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
    -- ORDER: first of all, as in step 1.
    LOCK TABLE "outbox"."outbox" IN ACCESS SHARE MODE;
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
    v_first := "outbox"."outbox_first_open"(p_candidate);
    IF least(p_candidate, v_first) - 1 > v_mark THEN
        PERFORM setval('"outbox"."outbox_mark"', least(p_candidate, v_first) - 1);
    END IF;
    RETURN true;
END
$$;

-- Fresh events up to the mark that nobody has claimed, as far as no sweep has looked: there are none.
CREATE FUNCTION "outbox"."outbox_below_mark"(p_until bigint) RETURNS TABLE (id uuid, seq bigint) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT event.id, event.seq FROM "outbox"."outbox" AS event
    WHERE event.status = 'pending' AND event.class = 'fresh'
        AND event.seq > (SELECT last_value FROM "outbox"."outbox_swept") AND event.seq <= p_until
        AND event.seq NOT IN (
            SELECT unnest(lease.seqs) FROM "outbox"."outbox_lease" AS lease
            -- A dump holds sequences as they were after its rows: a lease up to the mark is one that has ended since.
            WHERE lease.number > (SELECT last_value FROM "outbox"."outbox_lease_mark"));
END
$$;

-- Which table this is: in a restored one another than in that of the dump. In the owner's name, who may see the cluster's
-- identifier where that was taken from others.
CREATE FUNCTION "outbox"."outbox_identity"() RETURNS bigint
    LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
    RETURN ((SELECT control.system_identifier FROM pg_catalog.pg_control_system() AS control)
        # ('"outbox"."outbox"'::pg_catalog.regclass::pg_catalog.oid::bigint << 16)) & 9223372036854775807;

-- The net under both: finds what nothing else would. Returns what it mended; all zero unless numbers or rows were
-- changed by hand, or a dump was restored whose mark is younger than its rows.
--   below     fresh events up to the mark
--   stranded  keys whose line has no head that will become due, though nothing of them is in flight or blocked
-- Each row below the mark is looked at by one sweep, up to 100,000 of them by each; in a restored table all of them once more.
-- more: there are rows left for another sweep.
CREATE FUNCTION "outbox"."outbox_sweep"(OUT below bigint, OUT stranded bigint, OUT more boolean) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_mark bigint;
    v_until bigint;
    v_flight bigint;
    v_lease_mark bigint := (SELECT last_value FROM "outbox"."outbox_lease_mark");
    v_now timestamptz;
    v_key record;
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    PERFORM "outbox"."outbox_require_sight"();
    -- ORDER: first of all, as for the mark.
    LOCK TABLE "outbox"."outbox" IN ACCESS SHARE MODE;
    SELECT last_value INTO v_mark FROM "outbox"."outbox_mark";
    -- Sequences do not follow their transaction back: what was swept is set back first, and set on by a sweep that mended nothing.
    IF (SELECT last_value FROM "outbox"."outbox_swept_of") <> "outbox"."outbox_identity"()
        OR (SELECT last_value FROM "outbox"."outbox_swept") > v_mark
    THEN
        PERFORM setval('"outbox"."outbox_swept"', 0);
        PERFORM setval('"outbox"."outbox_swept_of"', "outbox"."outbox_identity"());
    END IF;
    SELECT seq INTO v_until FROM "outbox"."outbox"
        WHERE class = 'fresh' AND seq > (SELECT last_value FROM "outbox"."outbox_swept") AND seq <= v_mark
        ORDER BY seq OFFSET 100000 LIMIT 1;
    -- Not past what is in flight: its lease may be deleted by hand.
    SELECT min(flight.seq) - 1 INTO v_flight
        FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.seqs) AS flight (seq)
        WHERE lease.number > v_lease_mark AND flight.seq > (SELECT last_value FROM "outbox"."outbox_swept");
    more := coalesce(v_until <= v_flight, v_until IS NOT NULL);
    v_until := least(coalesce(v_until, v_mark), v_flight);
    below := 0;
    -- Without the lock at first: to look takes a while, and nearly always nothing is found.
    IF EXISTS (SELECT FROM "outbox"."outbox_below_mark"(v_until)) THEN
        PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
        v_now := clock_timestamp();
        UPDATE "outbox"."outbox" AS event SET class = 'waiting', available_at = v_now
            FROM "outbox"."outbox_below_mark"(v_until) AS found
            WHERE event.id = found.id AND event.seq = found.seq AND event.status = 'pending' AND event.class = 'fresh';
        GET DIAGNOSTICS below = ROW_COUNT;
    ELSIF v_until > (SELECT last_value FROM "outbox"."outbox_swept") THEN
        PERFORM setval('"outbox"."outbox_swept"', v_until);
    END IF;
    stranded := 0;
    -- The last part looks at the lines.
    IF more THEN
        RETURN;
    END IF;

    PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
    v_now := clock_timestamp();
    IF "outbox"."outbox_mark_is_ahead"() THEN
        PERFORM setval('"outbox"."outbox_mark"', 0);
        PERFORM setval('"outbox"."outbox_swept"', 0);
    END IF;

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
