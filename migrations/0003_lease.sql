-- Leases: the ledger of what is claimed.
--
-- Under an old snapshot, leases that have ended stay in the index. So every statement of a relay names the leases it wants, or says
-- that they are above the ledger's mark, for each time it reads the table: by a join alone, the planner may choose to read all.
--
-- Every function here and in the next files relies on READ COMMITTED: each of its statements sees what was committed before
-- it began. Where a statement has one right plan whatever the statistics say, its function pins the planner's settings.

CREATE FUNCTION "outbox"."outbox_require_read_committed"() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the outbox needs READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Set default_transaction_isolation to ''read committed'' for the role of the relay.';
    END IF;
END
$$;

-- Numbers as ranges. Mostly they follow each other.
CREATE FUNCTION "outbox"."outbox_ranges"(p_seqs bigint[]) RETURNS int8multirange LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_first bigint := p_seqs[1];
    v_last bigint := p_seqs[cardinality(p_seqs)];
BEGIN
    IF v_last - v_first = cardinality(p_seqs) - 1 AND p_seqs = ARRAY(SELECT generate_series(v_first, v_last)) THEN
        RETURN int8multirange(int8range(v_first, v_last, '[]'));
    END IF;
    RETURN coalesce((SELECT range_agg(int8range(seq, seq, '[]')) FROM unnest(p_seqs) AS seq), '{}');
END
$$;

-- Of which numbering the events' numbers are: the file of the sequence.
CREATE FUNCTION "outbox"."outbox_numbering"() RETURNS oid LANGUAGE sql VOLATILE
    RETURN pg_catalog.pg_relation_filenode('"outbox"."outbox_seq"'::pg_catalog.regclass);

-- Writes a lease.
CREATE FUNCTION "outbox"."outbox_lease_out"(
    p_worker uuid, p_secret bigint, p_ids uuid[], p_seqs bigint[], p_tids tid[], p_keys text[], p_alone integer,
    p_seen bigint, p_holes int8multirange, p_now timestamptz, p_lease interval)
    RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_number bigint;
    v_keyed boolean := array_remove(p_keys, NULL) <> '{}';
BEGIN
    INSERT INTO "outbox"."outbox_lease" (
            secret, worker, ids, seqs, tids, keys, numbering, seen, holes, alone, created_at, until)
        VALUES (p_secret, p_worker, p_ids, p_seqs, p_tids, CASE WHEN v_keyed THEN p_keys END, "outbox"."outbox_numbering"(),
            p_seen, p_holes, p_alone, p_now, p_now + p_lease)
        RETURNING number INTO v_number;
    RETURN v_number;
END
$$;

-- Moves the mark of the ledger up to its first live lease. Leases are written under lock 1 only, so none can appear below.
-- ORDER: a claim does this before it ends leases itself. A sequence does not follow its transaction back: moved past
-- leases whose end is then undone, by a rollback or a crash of the server, it would hide them for good.
CREATE FUNCTION "outbox"."outbox_move_lease_mark"() RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_mark bigint;
    v_next bigint;
    v_first bigint;
BEGIN
    SELECT mark.last_value, given.last_value + given.is_called::integer INTO v_mark, v_next
        FROM "outbox"."outbox_lease_mark" AS mark, "outbox"."outbox_lease_number" AS given;
    -- Where the numbers have begun anew, after TRUNCATE ... RESTART IDENTITY say, new leases would be below it, and not be seen.
    IF v_mark >= v_next THEN
        PERFORM setval('"outbox"."outbox_lease_mark"', 0);
        v_mark := 0;
    END IF;
    SELECT number INTO v_first FROM "outbox"."outbox_lease" WHERE number > v_mark ORDER BY number LIMIT 1;
    v_first := least(v_first, v_next);
    IF v_first - 1 >= v_mark + 32 THEN
        PERFORM setval('"outbox"."outbox_lease_mark"', v_first - 1);
    END IF;
END
$$;

-- Makes the first event in the line of each key due, unless the key is blocked. A key is tenant and name in one text. Call it
-- holding the row lock of the lease that has the key, or lock 1 while no lease has it.
CREATE FUNCTION "outbox"."outbox_promote"(p_keys text[], p_now timestamptz) RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    UPDATE "outbox"."outbox" AS event SET class = 'waiting', available_at = p_now
    FROM unnest(p_keys) AS freed (key)
    CROSS JOIN LATERAL (
        SELECT id, tenant_id, ordering_key, class FROM "outbox"."outbox" AS line
        WHERE line.tenant_id = "outbox"."outbox_key_tenant"(freed.key)
            AND line.ordering_key = "outbox"."outbox_key_name"(freed.key)
            AND status = 'pending' AND class IN ('scheduled', 'waiting', 'held', 'barred') AND NOT (class = 'scheduled' AND available_at > p_now)
        ORDER BY line.tenant_id, line.ordering_key, line.seq LIMIT 1) AS first
    WHERE event.id = first.id AND event.tenant_id = first.tenant_id AND event.class = 'held' AND first.class = 'held'
        AND NOT EXISTS (
            SELECT FROM "outbox"."outbox_block" AS block
            WHERE block.scope = 'key' AND block.tenant_id = first.tenant_id AND block.name = first.ordering_key);
END
$$;

-- Takes expired leases back: their events become due again, each to be claimed alone, since any of them may have
-- killed its relay. Only the loss of a lone lease is held against an event; and of several lone leases lost by one
-- relay nobody can say which was to blame, so those are tried again one at a time.
-- A lease that was running when the server went down is held against nobody.
CREATE FUNCTION "outbox"."outbox_take_back"(p_now timestamptz) RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_nestloop = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_leases bigint[];
    v_ids uuid[];
BEGIN
    -- SKIP LOCKED: a settlement of a lease that has just ended holds it, and will find out by itself.
    SELECT array_agg(expired.number) INTO v_leases FROM (
        SELECT number FROM "outbox"."outbox_lease"
        WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark") AND until <= p_now
        ORDER BY number LIMIT 1000 FOR UPDATE SKIP LOCKED) AS expired;
    IF v_leases IS NULL THEN
        RETURN;
    END IF;
    -- A role that does not see the events would end their leases, and leave them as they are.
    PERFORM "outbox"."outbox_require_sight"();
    SELECT array_agg(lost.id) INTO v_ids
        FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.ids) AS lost (id) WHERE lease.number = ANY (v_leases);

    UPDATE "outbox"."outbox" AS event
    SET class = CASE WHEN event.ordering_key IS NULL THEN 'waiting' ELSE 'held' END,
        available_at = p_now,
        claim_count = event.claim_count + lost.guilty::integer,
        alone = CASE WHEN lost.alone = 0 THEN 1 ELSE 2 END
    FROM (
        SELECT lease.alone, unnest(lease.ids) AS id, unnest(lease.seqs) AS seq,
            lease.alone > 0 AND pg_postmaster_start_time() < lease.created_at AND lease.suspects = 1 AS guilty
        FROM (
            SELECT every.*, count(*) FILTER (WHERE every.alone > 0) OVER (PARTITION BY every.worker) AS suspects
            FROM "outbox"."outbox_lease" AS every
            WHERE every.number > (SELECT last_value FROM "outbox"."outbox_lease_mark")) AS lease
        WHERE lease.number = ANY (v_leases)) AS lost
    WHERE event.id = ANY (v_ids) AND event.id = lost.id AND event.seq = lost.seq AND event.status = 'pending';
    -- Leases of one relay need not end together, nor are they all taken back at once. The last of its lone ones must not look
    -- like the only one.
    UPDATE "outbox"."outbox_lease" AS later SET alone = 0
    WHERE later.number > (SELECT last_value FROM "outbox"."outbox_lease_mark") AND later.number IN (
        SELECT other.number FROM "outbox"."outbox_lease" AS other
        WHERE other.number > (SELECT last_value FROM "outbox"."outbox_lease_mark") AND other.alone > 0 AND other.number <> ALL (v_leases)
            AND other.worker IN (SELECT lost.worker FROM "outbox"."outbox_lease" AS lost WHERE lost.number = ANY (v_leases) AND lost.alone > 0)
        ORDER BY other.number FOR UPDATE SKIP LOCKED);

    PERFORM "outbox"."outbox_promote"(ARRAY(
        SELECT DISTINCT taken.key FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.keys) AS taken (key)
        WHERE lease.number = ANY (v_leases) AND taken.key IS NOT NULL), p_now);

    DELETE FROM "outbox"."outbox_lease" WHERE number = ANY (v_leases);
END
$$;

-- Which events of these leases were paused since they were claimed, by type or by key: their relay hands back what it has
-- not begun.
CREATE FUNCTION "outbox"."outbox_paused"(p_leases bigint[], p_secrets bigint[])
    RETURNS TABLE (lease bigint, seq bigint) LANGUAGE plpgsql STABLE
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM "outbox"."outbox_block" AS block WHERE block.reason = 'paused') THEN
        RETURN;
    END IF;
    RETURN QUERY
    SELECT held.number, held.seq FROM (
        SELECT live.number, unnest(live.ids) AS id, unnest(live.seqs) AS seq
        FROM "outbox"."outbox_lease" AS live WHERE live.number = ANY (p_leases) AND (live.number, live.secret) IN (
            SELECT token.number, token.secret FROM unnest(p_leases, p_secrets) AS token (number, secret))) AS held
    JOIN "outbox"."outbox" AS event ON event.id = held.id AND event.seq = held.seq
    WHERE EXISTS (SELECT FROM "outbox"."outbox_block" AS block
            WHERE block.scope = 'type' AND block.tenant_id = '' AND block.name = event.event_type AND block.reason = 'paused')
        OR EXISTS (SELECT FROM "outbox"."outbox_block" AS block
            WHERE block.scope = 'key' AND block.tenant_id = event.tenant_id AND block.name = event.ordering_key
                AND block.reason = 'paused');
END
$$;
