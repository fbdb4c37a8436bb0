-- Claiming: puts aside what a look found in the way, and leases the rest.

-- Puts events that a claim may not take where they are found when they may run, so that the next claim need not pass them.
CREATE FUNCTION "outbox"."outbox_set_aside"(p_class text, p_ids uuid[], p_seqs bigint[]) RETURNS void LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    UPDATE "outbox"."outbox" AS event SET class = p_class
    FROM unnest(p_ids, p_seqs) AS aside (id, seq)
    WHERE event.id = aside.id AND event.seq = aside.seq AND event.status = 'pending';
END
$$;

-- Clears the way when a look was full of events that cannot be taken: fresh ones without room for their type are barred,
-- and those behind them in their keys held; followers of a key in flight are held. Returns how many it set aside.
--
-- The settlement that frees a key makes the first in its line due, and must not slip through before the line is there:
-- so the lease is locked until this claim commits, and its keys are read again under the lock. A lease that is being
-- settled right now cannot be locked; followers of its keys stay where they are.
CREATE FUNCTION "outbox"."outbox_clear_the_way"(p_look "outbox"."outbox_look") RETURNS integer LANGUAGE plpgsql AS $$
DECLARE
    v_locked bigint[];
    v_ids uuid[];
    v_seqs bigint[];
    v_aside integer := coalesce(cardinality(p_look.full_ids), 0) + coalesce(cardinality(p_look.later_ids), 0);
BEGIN
    IF p_look.full_ids IS NOT NULL THEN
        PERFORM "outbox"."outbox_set_aside"('barred', p_look.full_ids, p_look.full_seqs);
    END IF;
    IF p_look.later_ids IS NOT NULL THEN
        PERFORM "outbox"."outbox_set_aside"('held', p_look.later_ids, p_look.later_seqs);
    END IF;
    IF p_look.busy_ids IS NULL THEN
        RETURN v_aside;
    END IF;
    SELECT array_agg(free.number) INTO v_locked FROM (
        SELECT number FROM "outbox"."outbox_lease"
        WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark") AND keys IS NOT NULL
        ORDER BY number FOR SHARE SKIP LOCKED) AS free;
    SELECT array_agg(follower.id), array_agg(follower.seq) INTO v_ids, v_seqs
        FROM unnest(p_look.busy_ids, p_look.busy_seqs, p_look.busy_keys) AS follower (id, seq, key)
        WHERE follower.key IN (
            SELECT taken.key FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.keys) AS taken (key)
            WHERE lease.number = ANY (v_locked));
    IF v_ids IS NOT NULL THEN
        PERFORM "outbox"."outbox_set_aside"('held', v_ids, v_seqs);
    END IF;
    RETURN v_aside + coalesce(cardinality(v_ids), 0);
END
$$;

-- The events held behind due ones of their keys: up to p_room, in order, without a gap, and none beyond p_horizon. Of each
-- line at most twice its share is read, or a claim of many heads would read much more than it takes.
CREATE FUNCTION "outbox"."outbox_followers"(
    p_heads bigint[], p_head_ids uuid[], p_room integer, p_shut text[], p_horizon bigint, p_now timestamptz)
    RETURNS TABLE (id uuid, tid tid, seq bigint, key text, bytes integer) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
DECLARE
    v_each integer := least(p_room, greatest(2 * p_room / cardinality(p_head_ids), 10));
BEGIN
    RETURN QUERY
    SELECT follower.id, follower.tid, follower.seq, "outbox"."outbox_key"(head.tenant_id, head.ordering_key), follower.bytes
    FROM "outbox"."outbox" AS head
    CROSS JOIN LATERAL (
        SELECT line.*, bool_and(line.fits) OVER (ORDER BY line.seq) AS unbroken FROM (
            SELECT next.id, next.ctid AS tid, next.seq, pg_column_size(next.payload) AS bytes,
                next.class = 'held' AND next.alone = 0 AND next.event_type <> ALL (p_shut) AND next.seq <= p_horizon AS fits
            FROM "outbox"."outbox" AS next
            WHERE next.tenant_id = head.tenant_id AND next.ordering_key = head.ordering_key AND next.seq > head.seq
                AND next.status = 'pending' AND next.class IN ('scheduled', 'waiting', 'held', 'barred')
                AND NOT (next.class = 'scheduled' AND next.available_at > p_now)
            ORDER BY next.tenant_id, next.ordering_key, next.seq LIMIT v_each) AS line) AS follower
    WHERE head.id = ANY (p_head_ids) AND head.seq = ANY (p_heads) AND head.ordering_key IS NOT NULL AND follower.unbroken
    ORDER BY follower.seq LIMIT p_room;
END
$$;

-- Leases due events for p_lease: up to p_limit, up to p_max_bytes of payload (but one at least), no type of p_full.
-- p_surely skips the question whether there is anything, for a relay whose last claim came back full.
-- Returns a row per lease. Payloads are read afterwards: a backend blocked in sending them would keep its locks.
--
-- Claims take turns by lock 1. The lock is taken in a statement of its own: the statements after it see every lease,
-- retry and hold that was committed before. Taken in the same statement, it would be waited for with an older view,
-- and two relays could take one event, or one overtake another within a key.
CREATE FUNCTION "outbox"."outbox_claim"(
    p_worker uuid, p_secret bigint, p_limit integer, p_max_bytes bigint, p_lease interval, p_full text[],
    p_surely boolean DEFAULT false)
    RETURNS TABLE (lease bigint, ids uuid[], seqs bigint[]) LANGUAGE plpgsql
    -- Enough to hash the numbers of all that is in flight; without, each event would be compared with each of them.
    SET work_mem = '16MB'
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_variable
DECLARE
    v_now timestamptz;
    v_facts "outbox"."outbox_facts";
    v_window integer := p_limit;
    v_look "outbox"."outbox_look";
    v_fresh integer;
    v_due integer;
    v_aside integer;
    v_ids uuid[] := '{}';        v_seqs bigint[] := '{}';        v_keys text[] := '{}';        v_bytes integer[] := '{}';
    v_lone_ids uuid[] := '{}';   v_lone_seqs bigint[] := '{}';   v_lone_keys text[] := '{}';   v_lone_bytes bigint := 0;
    v_tids tid[] := '{}';        v_lone_tids tid[] := '{}';     v_lone integer := 0;
    v_room integer;
    v_keep integer;
    v_follower record;
    v_pinned boolean;
    v_after record;
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    IF NOT p_surely AND NOT "outbox"."outbox_has_work"() THEN
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
    v_now := clock_timestamp();
    PERFORM "outbox"."outbox_move_lease_mark"();
    PERFORM "outbox"."outbox_take_back"(v_now);

    v_facts := "outbox"."outbox_read_facts"(p_worker, v_now);

    -- Each look starts anew: a second one that went on where the first had ended would miss what was committed in between
    -- below that place, and could take a later event of the same key.
    FOR pass IN 1..8 LOOP
        v_look := "outbox"."outbox_look"(v_facts, v_window, p_full, v_now);
        IF v_look.hold_ids IS NOT NULL THEN
            PERFORM "outbox"."outbox_set_aside"('held', v_look.hold_ids, v_look.hold_seqs);
        END IF;
        IF v_look.bar_ids IS NOT NULL THEN
            PERFORM "outbox"."outbox_set_aside"('barred', v_look.bar_ids, v_look.bar_seqs);
        END IF;
        v_fresh := coalesce(cardinality(v_look.fresh_ids), 0);
        v_due := coalesce(cardinality(v_look.due_ids), 0);
        -- Too few that can be taken among those that cannot: look further. Not for the last few, since a second look costs as
        -- much as the first, and a line once formed makes the looks after it dear too. But put aside what is far back: while it
        -- stays fresh and cannot be taken it holds the mark, and all that is completed after it is passed over.
        v_pinned := pass = 1 AND greatest(v_facts.seen, v_look.fresh_seqs[v_fresh]) - 10000 > (
            SELECT min(seq) FROM unnest(v_look.full_seqs || v_look.later_seqs || v_look.busy_seqs) AS seq);
        EXIT WHEN v_pinned IS NOT TRUE AND (v_look.seen < v_window OR v_fresh * 4 >= p_limit * 3)
            AND (v_look.cut IS NOT TRUE OR v_due >= (p_limit + 1) / 2);
        v_aside := "outbox"."outbox_clear_the_way"(v_look)
            + coalesce(cardinality(v_look.hold_ids), 0) + coalesce(cardinality(v_look.bar_ids), 0);
        EXIT WHEN v_aside = 0 AND (v_pinned OR v_window >= greatest(p_limit, 2000));
        v_facts := "outbox"."outbox_read_facts"(p_worker, v_now);
        IF v_pinned IS NOT TRUE THEN
            v_window := least(v_window * 4, greatest(p_limit, 2000));
        END IF;
    END LOOP;

    -- Due events and fresh ones each get half of the claim at least; what one leaves, the other takes.
    v_room := least(
        v_due,
        greatest(p_limit - v_fresh, (p_limit + (random() < 0.5)::integer) / 2));
    FOR i IN 1..v_room LOOP
        IF v_look.due_alone[i] = 0 THEN
            v_ids := v_ids || v_look.due_ids[i];   v_seqs := v_seqs || v_look.due_seqs[i];
            v_keys := v_keys || v_look.due_keys[i]; v_bytes := v_bytes || v_look.due_bytes[i];
            v_tids := v_tids || v_look.due_tids[i];
        -- The first suspect decides: one of the strictest kind stays the only one.
        ELSIF v_lone = 0 OR (v_lone = 1 AND v_look.due_alone[i] = 1 AND v_lone_bytes + v_look.due_bytes[i] <= p_max_bytes) THEN
            v_lone := v_look.due_alone[i];
            v_lone_bytes := v_lone_bytes + v_look.due_bytes[i];
            v_lone_ids := v_lone_ids || v_look.due_ids[i]; v_lone_seqs := v_lone_seqs || v_look.due_seqs[i];
            v_lone_keys := v_lone_keys || v_look.due_keys[i];
            v_lone_tids := v_lone_tids || v_look.due_tids[i];
        END IF;
    END LOOP;
    v_room := p_limit - cardinality(v_ids) - cardinality(v_lone_ids);
    IF v_room > 0 AND array_remove(v_keys, NULL) <> '{}' THEN
        FOR v_follower IN SELECT * FROM "outbox"."outbox_followers"(
            v_seqs, v_ids, greatest(v_room - v_fresh, v_room / 2), v_facts.paused || p_full, v_look.horizon, v_now)
        LOOP
            v_ids := v_ids || v_follower.id;    v_seqs := v_seqs || v_follower.seq;
            v_keys := v_keys || v_follower.key; v_bytes := v_bytes || v_follower.bytes;
            v_tids := v_tids || v_follower.tid;
        END LOOP;
        v_room := p_limit - cardinality(v_ids) - cardinality(v_lone_ids);
    END IF;
    v_ids := v_ids || v_look.fresh_ids[1:v_room];    v_seqs := v_seqs || v_look.fresh_seqs[1:v_room];
    v_keys := v_keys || v_look.fresh_keys[1:v_room]; v_bytes := v_bytes || v_look.fresh_bytes[1:v_room];
    v_tids := v_tids || v_look.fresh_tids[1:v_room];
    v_keep := cardinality(v_ids);
    IF v_lone_bytes + (SELECT sum(size) FROM unnest(v_bytes) AS event (size)) > p_max_bytes THEN
        SELECT count(*) INTO v_keep FROM (
            SELECT n, sum(size) OVER (ORDER BY n) AS total FROM unnest(v_bytes) WITH ORDINALITY AS event (size, n)) AS sized
            WHERE v_lone_bytes + total <= p_max_bytes OR n = 1 AND v_lone = 0;
    END IF;

    -- A claim without keys commits asynchronously: losing it in a crash of the server means a second delivery. A lost
    -- lease with keys, among whatever others, would let another relay overtake the first within a key.
    IF array_remove(v_keys || v_lone_keys, NULL) = '{}' AND current_setting('synchronous_commit') <> 'off' THEN
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    v_after := "outbox"."outbox_seen_after"(v_facts, "outbox"."outbox_ranges"(v_lone_seqs || v_seqs[1:v_keep]));
    FOR i IN 1..cardinality(v_lone_ids) LOOP
        lease := "outbox"."outbox_lease_out"(
            p_worker, p_secret, v_lone_ids[i:i], v_lone_seqs[i:i], v_lone_tids[i:i], v_lone_keys[i:i], v_lone,
            v_after.seen, v_after.holes, v_now, p_lease);
        ids := v_lone_ids[i:i];
        seqs := v_lone_seqs[i:i];
        RETURN NEXT;
    END LOOP;
    IF v_keep > 0 THEN
        ids := v_ids[1:v_keep];
        seqs := v_seqs[1:v_keep];
        lease := "outbox"."outbox_lease_out"(
            p_worker, p_secret, ids, seqs, v_tids[1:v_keep], v_keys[1:v_keep], 0,
            v_after.seen, v_after.holes, v_now, p_lease);
        RETURN NEXT;
    END IF;
END
$$;
