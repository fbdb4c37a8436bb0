-- Ending claims.

-- Records the outcome of one event that was not completed. The caller has made sure that its lease holds.
--   retry     tried in vain: due again after p_after, behind nobody and before its key's later events
--   failed    given up; what becomes of its key is p_key_policy: go_on, stop, park
--   released  not tried: due at once, or after p_after. With a key it goes back into its line: later events of the key
--             may have been put there meanwhile
CREATE FUNCTION "outbox"."outbox_settle_one"(
    p_id uuid, p_seq bigint, p_kind text, p_after interval, p_error text, p_done text[], p_key_policy text, p_now timestamptz)
    RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    CASE p_kind
    WHEN 'retry' THEN
        UPDATE "outbox"."outbox"
        SET class = 'waiting', available_at = p_now + p_after, retry_count = retry_count + 1, alone = 0,
            error = p_error, done_parts = p_done
        WHERE id = p_id AND seq = p_seq AND status = 'pending';
    WHEN 'failed' THEN
        UPDATE "outbox"."outbox"
        SET status = 'failed', class = 'failed', processed_at = p_now, retry_count = retry_count + 1, alone = 0,
            error = p_error, done_parts = p_done
        WHERE id = p_id AND seq = p_seq AND status = 'pending';
        -- A number that was there before is of an event that went by hand, before the numbers began anew.
        INSERT INTO "outbox"."outbox_block" (scope, tenant_id, name, reason, event_id, event_seq)
        SELECT 'key', event.tenant_id, event.ordering_key, CASE p_key_policy WHEN 'stop' THEN 'stopped' ELSE 'parked' END,
            p_id, p_seq
        FROM "outbox"."outbox" AS event
        WHERE event.id = p_id AND event.seq = p_seq AND event.ordering_key IS NOT NULL AND p_key_policy IN ('stop', 'park')
        ON CONFLICT ON CONSTRAINT "outbox_block_pkey" DO UPDATE SET event_id = excluded.event_id, created_at = excluded.created_at;
    WHEN 'released' THEN
        IF p_after > interval '0' THEN
            UPDATE "outbox"."outbox" SET class = 'waiting', available_at = p_now + p_after, done_parts = p_done
            WHERE id = p_id AND seq = p_seq AND status = 'pending';
        ELSE
            -- Not fresh again: what was fresh and claimed is not looked for there any more.
            UPDATE "outbox"."outbox"
            SET class = CASE WHEN class <> 'fresh' THEN class WHEN ordering_key IS NULL THEN 'waiting' ELSE 'held' END,
                -- Due since it was published, as it was before.
                available_at = CASE WHEN class = 'fresh' AND ordering_key IS NULL THEN least(created_at, p_now) ELSE available_at END,
                done_parts = p_done
            WHERE id = p_id AND seq = p_seq AND status = 'pending' AND (p_done <> '{}' OR class = 'fresh');
        END IF;
    END CASE;
END
$$;

-- Takes settled events out of a lease, ends it if none is left, and lets the next event of each freed key come up.
CREATE FUNCTION "outbox"."outbox_shrink_lease"(p_number bigint, p_settled bigint[], p_now timestamptz)
    RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_lease "outbox"."outbox_lease";
    v_ids uuid[];
    v_seqs bigint[];
    v_tids tid[];
    v_keys text[];
BEGIN
    SELECT * INTO v_lease FROM "outbox"."outbox_lease" WHERE number = p_number;
    IF cardinality(v_lease.ids) > cardinality(p_settled) THEN
        SELECT array_agg(event.id ORDER BY event.n), array_agg(event.seq ORDER BY event.n),
                array_agg(event.tid ORDER BY event.n), array_agg(event.key ORDER BY event.n)
            INTO v_ids, v_seqs, v_tids, v_keys
            FROM unnest(v_lease.ids, v_lease.seqs, v_lease.tids, v_lease.keys) WITH ORDINALITY AS event (id, seq, tid, key, n)
            WHERE event.seq NOT IN (SELECT unnest(p_settled));
    END IF;
    IF v_ids IS NULL THEN
        DELETE FROM "outbox"."outbox_lease" WHERE number = p_number;
    ELSE
        UPDATE "outbox"."outbox_lease"
        SET ids = v_ids, seqs = v_seqs, tids = v_tids,
            keys = CASE WHEN v_lease.keys IS NOT NULL AND array_remove(v_keys, NULL) <> '{}' THEN v_keys END
        WHERE number = p_number;
    END IF;

    IF v_lease.keys IS NOT NULL AND EXISTS (SELECT FROM "outbox"."outbox"
        WHERE status = 'pending' AND class IN ('scheduled', 'waiting', 'held', 'barred') AND ordering_key IS NOT NULL)
    THEN
        PERFORM "outbox"."outbox_promote"(ARRAY(
            SELECT DISTINCT freed.key FROM unnest(v_lease.keys) AS freed (key)
            WHERE freed.key IS NOT NULL
                AND freed.key NOT IN (SELECT kept.key FROM unnest(v_keys) AS kept (key) WHERE kept.key IS NOT NULL)), p_now);
    END IF;
END
$$;

-- Ends leases whose events are all settled, and lets the next event of each freed key come up.
CREATE FUNCTION "outbox"."outbox_end_leases"(p_numbers bigint[], p_now timestamptz) RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_keys text[];
BEGIN
    WITH ended AS (DELETE FROM "outbox"."outbox_lease" WHERE number = ANY (p_numbers) RETURNING keys)
    SELECT array_agg(DISTINCT freed.key) INTO v_keys
        FROM ended CROSS JOIN unnest(ended.keys) AS freed (key) WHERE freed.key IS NOT NULL;
    IF v_keys IS NOT NULL AND EXISTS (SELECT FROM "outbox"."outbox"
        WHERE status = 'pending' AND class IN ('scheduled', 'waiting', 'held', 'barred') AND ordering_key IS NOT NULL)
    THEN
        PERFORM "outbox"."outbox_promote"(v_keys, p_now);
    END IF;
END
$$;

-- Those of some events that a lease holds, side by side with where their rows were when they were claimed.
-- By hashing: the planner would compare each event with every other.
CREATE FUNCTION "outbox"."outbox_held"(
    p_lease "outbox"."outbox_lease", p_seqs bigint[], OUT seqs bigint[], OUT tids tid[]) LANGUAGE plpgsql
    SET enable_mergejoin = off SET enable_nestloop = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT coalesce(array_agg(held.seq), '{}'), coalesce(array_agg(held.tid), '{}') INTO seqs, tids
    FROM unnest(p_lease.seqs, p_lease.tids) AS held (seq, tid) JOIN unnest(p_seqs) AS done (seq) USING (seq);
END
$$;

-- Completes events where their rows were when they were claimed, and returns how many were there. One scan over the
-- places, not one for each: a new one asks the file system how long the table is. What is in a place now is one of these events
-- if it has one of their numbers; call it only while the numbering is that of the claim.
CREATE FUNCTION "outbox"."outbox_complete_at"(p_tids tid[], p_seqs int8multirange, p_delete boolean, p_now timestamptz)
    RETURNS bigint LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_indexscan = off SET enable_indexonlyscan = off
    SET enable_tidscan = on SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ended bigint;
BEGIN
    IF p_delete THEN
        DELETE FROM "outbox"."outbox" AS event
        WHERE event.ctid = ANY (p_tids) AND p_seqs @> event.seq AND event.status = 'pending';
    ELSE
        UPDATE "outbox"."outbox" AS event
        SET status = 'completed', class = CASE class WHEN 'fresh' THEN 'fresh' ELSE 'done' END, processed_at = p_now
        WHERE event.ctid = ANY (p_tids) AND p_seqs @> event.seq AND event.status = 'pending';
    END IF;
    GET DIAGNOSTICS v_ended = ROW_COUNT;
    RETURN v_ended;
END
$$;

-- Completes events of these leases wherever their rows are now.
CREATE FUNCTION "outbox"."outbox_complete"(p_leases bigint[], p_seqs bigint[], p_delete boolean, p_now timestamptz)
    RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off SET enable_nestloop = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_ids uuid[];
    v_seqs bigint[];
BEGIN
    SELECT array_agg(held.id), array_agg(held.seq) INTO v_ids, v_seqs
        FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.ids, lease.seqs) AS held (id, seq)
        WHERE lease.number = ANY (p_leases) AND held.seq IN (SELECT unnest(p_seqs));
    IF p_delete THEN
        DELETE FROM "outbox"."outbox" AS event USING unnest(v_ids, v_seqs) AS done (id, seq)
        WHERE event.id = ANY (v_ids) AND event.id = done.id AND event.seq = done.seq AND event.status = 'pending';
    ELSE
        UPDATE "outbox"."outbox" AS event
        SET status = 'completed', class = CASE class WHEN 'fresh' THEN 'fresh' ELSE 'done' END, processed_at = p_now
        FROM unnest(v_ids, v_seqs) AS done (id, seq)
        WHERE event.id = ANY (v_ids) AND event.id = done.id AND event.seq = done.seq AND event.status = 'pending';
    END IF;
END
$$;

-- Records outcomes, and returns the events that were no longer held: nothing was changed for those.
--
-- p_leases, p_secrets: the tokens. p_counts: how many events of each were completed. p_seqs: those, lease after lease.
-- p_rest: the others, [{"lease", "id", "seq", "kind": retry | failed | released, "after_ms", "error", "done", "key_policy"}].
-- p_async: whether a crash of the server may forget this (the events are then delivered again).
-- p_delete: delete completed events instead of keeping them.
CREATE FUNCTION "outbox"."outbox_settle"(
    p_leases bigint[], p_secrets bigint[], p_counts integer[], p_seqs bigint[], p_rest json, p_async boolean, p_delete boolean)
    RETURNS TABLE (lost_lease bigint, lost_seq bigint) LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now timestamptz;
    v_live bigint[] := '{}';
    v_seqs bigint[] := '{}';
    v_tids tid[] := '{}';
    v_ranges int8multirange := '{}';
    v_numbering oid;
    v_same boolean := true;
    v_seen bigint := 0;
    v_token record;
    v_end integer := 0;
    v_part bigint[];
    v_held record;
    v_whole bigint[] := '{}';
    v_gone_lease bigint[] := '{}';
    v_gone_seqs bigint[] := '{}';
    v_ended bigint;
    v_rest record;
    v_handed_back boolean := false;
    v_lease record;
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    IF p_async AND current_setting('synchronous_commit') <> 'off' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    -- ORDER: the table is held before its numbering is read: TRUNCATE ... RESTART IDENTITY comes before both or after.
    LOCK TABLE "outbox"."outbox" IN ROW EXCLUSIVE MODE;
    v_numbering := "outbox"."outbox_numbering"();
    -- ORDER: the clock is read after the rows are locked, or a lease could end while this waits for them.
    PERFORM FROM "outbox"."outbox_lease" WHERE number = ANY (p_leases) ORDER BY number FOR UPDATE;
    v_now := clock_timestamp();

    FOR v_token IN
        SELECT token.number, token.count, lease, lease.number IS NOT NULL AS live
        FROM unnest(p_leases, p_secrets, p_counts) WITH ORDINALITY AS token (number, secret, count, n)
        LEFT JOIN "outbox"."outbox_lease" AS lease
            ON lease.number = token.number AND lease.number = ANY (p_leases)
            AND lease.secret = token.secret AND lease.until > v_now
        ORDER BY token.n
    LOOP
        v_part := p_seqs[v_end + 1 : v_end + v_token.count];
        v_end := v_end + v_token.count;
        IF NOT v_token.live THEN
            RETURN QUERY SELECT v_token.number, done.seq FROM unnest(v_part) AS done (seq);
            CONTINUE;
        END IF;
        v_live := v_live || v_token.number;
        IF (v_token.lease).numbering = v_numbering THEN
            v_seen := greatest(v_seen, coalesce(lower((v_token.lease).holes) - 1, (v_token.lease).seen));
        ELSE
            v_same := false;
        END IF;
        -- Mostly all events of a claim are completed, and by one call.
        IF v_part = (v_token.lease).seqs THEN
            v_whole := v_whole || v_token.number;
            v_seqs := v_seqs || v_part;
            v_ranges := v_ranges + "outbox"."outbox_ranges"(v_part);
            v_tids := v_tids || (v_token.lease).tids;
        ELSIF v_part <> '{}' THEN
            v_held := "outbox"."outbox_held"(v_token.lease, v_part);
            v_seqs := v_seqs || v_held.seqs;
            v_ranges := v_ranges + "outbox"."outbox_ranges"(v_held.seqs);
            v_tids := v_tids || v_held.tids;
            v_gone_lease := v_gone_lease || array_fill(v_token.number, ARRAY[cardinality(v_held.seqs)]);
            v_gone_seqs := v_gone_seqs || v_held.seqs;
            IF cardinality(v_held.seqs) < cardinality(v_part) THEN
                RETURN QUERY SELECT v_token.number, done.seq FROM unnest(v_part) AS done (seq)
                    WHERE done.seq NOT IN (SELECT unnest(v_held.seqs));
            END IF;
        END IF;
    END LOOP;

    -- Before the leases end: with the last one would end what it tells, and claims would look at all of it again.
    PERFORM "outbox"."outbox_mark_seen"(v_seen);
    v_ended := CASE WHEN v_same THEN "outbox"."outbox_complete_at"(v_tids, v_ranges, p_delete, v_now) ELSE 0 END;
    -- Where rows are not seen, their leases must not end: the events would stay as they are, and nobody would know.
    IF v_ended < cardinality(v_seqs) OR p_rest IS NOT NULL THEN
        PERFORM "outbox"."outbox_require_sight"();
    END IF;
    IF v_ended < cardinality(v_seqs) THEN
        PERFORM "outbox"."outbox_complete"(v_live, v_seqs, p_delete, v_now);
    END IF;

    IF p_rest IS NOT NULL THEN
        FOR v_rest IN
            SELECT rest.*, EXISTS (SELECT FROM "outbox"."outbox_lease" AS lease
                WHERE lease.number = rest.lease AND lease.number = ANY (v_live) AND rest.seq = ANY (lease.seqs)) AS held
            FROM json_to_recordset(p_rest) AS rest (
                lease bigint, id uuid, seq bigint, kind text, after_ms bigint, error text, done text[], key_policy text)
        LOOP
            IF v_rest.held THEN
                PERFORM "outbox"."outbox_settle_one"(v_rest.id, v_rest.seq, v_rest.kind,
                    v_rest.after_ms * interval '1 millisecond', v_rest.error, v_rest.done, v_rest.key_policy, v_now);
                v_gone_lease := v_gone_lease || v_rest.lease;
                v_gone_seqs := v_gone_seqs || v_rest.seq;
                v_handed_back := v_handed_back OR v_rest.kind = 'released' AND v_rest.after_ms = 0;
            ELSE
                lost_lease := v_rest.lease;
                lost_seq := v_rest.seq;
                RETURN NEXT;
            END IF;
        END LOOP;
        -- A relay that stops hands back what another can begin at once, and that one may sleep.
        IF v_handed_back THEN
            PERFORM "outbox"."outbox_wake_now"();
        END IF;
    END IF;

    IF v_whole <> '{}' THEN
        PERFORM "outbox"."outbox_end_leases"(v_whole, v_now);
    END IF;
    FOR v_lease IN
        SELECT gone.lease AS number, array_agg(gone.seq) AS seqs FROM unnest(v_gone_lease, v_gone_seqs) AS gone (lease, seq)
        GROUP BY gone.lease ORDER BY gone.lease
    LOOP
        PERFORM "outbox"."outbox_shrink_lease"(v_lease.number, v_lease.seqs, v_now);
    END LOOP;
END
$$;

-- Keeps leases for another p_lease, and returns the numbers of those that were lost.
CREATE FUNCTION "outbox"."outbox_extend"(p_leases bigint[], p_secrets bigint[], p_lease interval)
    RETURNS bigint[] LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now timestamptz;
    v_lost bigint[];
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    PERFORM FROM "outbox"."outbox_lease" WHERE number = ANY (p_leases) ORDER BY number FOR UPDATE;
    v_now := clock_timestamp();
    WITH kept AS (
        UPDATE "outbox"."outbox_lease" AS lease SET until = v_now + p_lease
        FROM unnest(p_leases, p_secrets) AS token (number, secret)
        WHERE lease.number = token.number AND lease.number = ANY (p_leases)
            AND lease.secret = token.secret AND lease.until > v_now
        RETURNING lease.number)
    SELECT coalesce(array_agg(token.number), '{}') INTO v_lost
        FROM unnest(p_leases) AS token (number) WHERE token.number NOT IN (SELECT number FROM kept);
    RETURN v_lost;
END
$$;
