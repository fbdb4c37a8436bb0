-- Claiming.
--
-- Every function here relies on READ COMMITTED: each of its statements sees what was committed before it began.
-- Where a statement has one right plan whatever the statistics say, its function pins the planner's settings.

CREATE FUNCTION "outbox"."outbox_require_read_committed"() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'the outbox needs READ COMMITTED, this transaction is %', upper(current_setting('transaction_isolation'))
            USING ERRCODE = 'invalid_transaction_state',
                  HINT = 'Set default_transaction_isolation to ''read committed'' for the role of the relay.';
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
            AND status = 'pending' AND class <> 'fresh' AND NOT (class = 'scheduled' AND available_at > p_now)
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
    UPDATE "outbox"."outbox_lease" AS later SET alone = 0 WHERE later.number IN (
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

-- The event types that have barred events and are not among p_shut: a skip scan, a probe per type.
CREATE FUNCTION "outbox"."outbox_open_types"(p_shut text[]) RETURNS text[] LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_type text := '';
    v_open text[] := '{}';
BEGIN
    LOOP
        SELECT event_type INTO v_type FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'barred' AND event_type > v_type ORDER BY event_type LIMIT 1;
        EXIT WHEN v_type IS NULL OR cardinality(v_open) >= 100;
        IF v_type <> ALL (p_shut) THEN
            v_open := v_open || v_type;
        END IF;
    END LOOP;
    RETURN v_open;
END
$$;

-- Whether a claim could find anything. Asked before the lock is taken, so that relays with nothing to do do not queue for it:
-- of many that are awake, most find that others have what there is.
CREATE FUNCTION "outbox"."outbox_has_work"() RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN "outbox"."outbox_mark_is_ahead"()
        OR EXISTS (
            SELECT FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'fresh' AND seq > (SELECT last_value FROM "outbox"."outbox_mark")
                AND seq NOT IN (
                    SELECT unnest(seqs) FROM "outbox"."outbox_lease"
                    WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark")))
        OR EXISTS (
            SELECT FROM "outbox"."outbox"
            WHERE status = 'pending' AND class IN ('scheduled', 'waiting') AND available_at <= clock_timestamp()
                AND seq NOT IN (
                    SELECT unnest(seqs) FROM "outbox"."outbox_lease"
                    WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark")))
        OR EXISTS (SELECT FROM "outbox"."outbox" WHERE status = 'pending' AND class = 'barred')
        OR EXISTS (SELECT FROM "outbox"."outbox_lease"
            WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark") AND until <= clock_timestamp());
END
$$;

-- How many milliseconds from now something may become due that no publisher announces: a schedule or a retry whose time
-- comes, or a lease that ends because its relay is gone (not above 0 if it is due). NULL if nothing will. A sleeping relay asks, and looks then.
CREATE FUNCTION "outbox"."outbox_next_due"() RETURNS double precision LANGUAGE plpgsql
    SET search_path = pg_catalog, pg_temp
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_next timestamptz;
BEGIN
    -- For what is claimed its lease stands. What is due and not claimed had to wait for something, as a suspect for another, or
    -- was handed back.
    IF EXISTS (
        SELECT FROM "outbox"."outbox"
        WHERE status = 'pending' AND class = 'fresh' AND seq > (SELECT last_value FROM "outbox"."outbox_mark")
            AND seq NOT IN (
                SELECT unnest(seqs) FROM "outbox"."outbox_lease"
                WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark")))
    THEN
        RETURN 0;
    END IF;
    SELECT available_at INTO v_next FROM "outbox"."outbox"
        WHERE status = 'pending' AND class IN ('scheduled', 'waiting') AND seq NOT IN (
            SELECT unnest(seqs) FROM "outbox"."outbox_lease"
            WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark"))
        ORDER BY available_at LIMIT 1;
    -- least() passes over NULL; NULL minus an instant is NULL, as it should be.
    v_next := least(v_next, (
        SELECT min(until) FROM "outbox"."outbox_lease"
        WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark")));
    RETURN extract(epoch FROM v_next - v_now) * 1000;
END
$$;

-- What one look at the candidates found: lists that run side by side.
CREATE TYPE "outbox"."outbox_look" AS (
    -- How many fresh events were read, and whether there are more of the others than were.
    seen integer, cut boolean,
    -- Up to where fresh events were read: beyond it, one may have a lower number than what stands in line.
    horizon bigint,
    fresh_ids uuid[], fresh_tids tid[], fresh_seqs bigint[], fresh_keys text[], fresh_bytes integer[],
    due_ids uuid[], due_tids tid[], due_seqs bigint[], due_keys text[], due_bytes integer[], due_alone smallint[],
    hold_ids uuid[], hold_seqs bigint[],
    bar_ids uuid[], bar_seqs bigint[],
    full_ids uuid[], full_seqs bigint[],
    later_ids uuid[], later_seqs bigint[],
    busy_ids uuid[], busy_seqs bigint[], busy_keys text[]);

-- What a claim has to know before it looks, read once it has lock 1.
CREATE TYPE "outbox"."outbox_facts" AS (
    mark bigint, lease_mark bigint,
    -- The strictest kind of suspect that the relay may take beside the lone leases it has.
    alone_max integer,
    -- Paused types; whether any key was blocked or had a line just then, whether any event is barred.
    paused text[], blocked boolean, line boolean, barred boolean,
    -- Whether fresh events are all there is, and only keys in flight may stand in their way.
    plain boolean);

CREATE FUNCTION "outbox"."outbox_read_facts"(p_worker uuid, p_now timestamptz) RETURNS "outbox"."outbox_facts" LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_facts "outbox"."outbox_facts";
BEGIN
    IF "outbox"."outbox_mark_is_ahead"() THEN
        PERFORM setval('"outbox"."outbox_mark"', 0);
    END IF;
    SELECT mark.last_value, lease_mark.last_value,
        -- A relay with a lone lease of the strictest kind takes no other; one that has any takes none of that kind.
        (SELECT CASE max(held.alone) WHEN 2 THEN 0 WHEN 1 THEN 1 ELSE 2 END FROM "outbox"."outbox_lease" AS held
            WHERE held.number > lease_mark.last_value AND held.worker = p_worker),
        ARRAY(SELECT name FROM "outbox"."outbox_block" WHERE scope = 'type'),
        EXISTS (SELECT FROM "outbox"."outbox_block" WHERE scope = 'key'),
        EXISTS (SELECT FROM "outbox"."outbox"
            WHERE status = 'pending' AND class <> 'fresh' AND ordering_key IS NOT NULL),
        EXISTS (SELECT FROM "outbox"."outbox" WHERE status = 'pending' AND class = 'barred'),
        NOT EXISTS (SELECT FROM "outbox"."outbox"
            WHERE status = 'pending' AND class IN ('scheduled', 'waiting') AND available_at <= p_now)
    INTO v_facts
    FROM "outbox"."outbox_mark" AS mark, "outbox"."outbox_lease_mark" AS lease_mark;
    v_facts.plain := v_facts.plain AND NOT (v_facts.blocked OR v_facts.line OR v_facts.barred) AND v_facts.paused = '{}';
    RETURN v_facts;
END
$$;

-- The look of most claims: fresh events only, and of the verdicts below only take and busy. Settlements do not wait for
-- lock 1: since the facts were read, one may have put an event back into its line, or blocked its key, and freed the key.
-- So the statement that finds a key free asks once more whether there is anything of that kind: seen is -1 if so.
CREATE FUNCTION "outbox"."outbox_look_plainly"(p_facts "outbox"."outbox_facts", p_window integer)
    RETURNS "outbox"."outbox_look" LANGUAGE plpgsql AS $$
DECLARE
    v_look "outbox"."outbox_look";
BEGIN
    SELECT CASE
            WHEN coalesce(bool_or(event.key IS NOT NULL), false)
                AND (EXISTS (SELECT FROM "outbox"."outbox" AS earlier
                        WHERE earlier.status = 'pending' AND earlier.class <> 'fresh' AND earlier.ordering_key IS NOT NULL)
                    OR EXISTS (SELECT FROM "outbox"."outbox_block" AS block WHERE block.scope = 'key')) THEN -1
            ELSE count(*) END,
        array_agg(event.id) FILTER (WHERE NOT event.busy), array_agg(event.tid) FILTER (WHERE NOT event.busy),
        array_agg(event.seq) FILTER (WHERE NOT event.busy),
        array_agg(event.key) FILTER (WHERE NOT event.busy), array_agg(event.bytes) FILTER (WHERE NOT event.busy),
        array_agg(event.id) FILTER (WHERE event.busy), array_agg(event.seq) FILTER (WHERE event.busy),
        array_agg(event.key) FILTER (WHERE event.busy)
    INTO v_look.seen, v_look.fresh_ids, v_look.fresh_tids, v_look.fresh_seqs, v_look.fresh_keys, v_look.fresh_bytes,
        v_look.busy_ids, v_look.busy_seqs, v_look.busy_keys
    FROM (
        SELECT fresh.*, fresh.key IS NOT NULL AND fresh.key IN (
            SELECT taken.key FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.keys) AS taken (key)
            WHERE lease.number > p_facts.lease_mark AND taken.key IS NOT NULL) AS busy
        FROM (
            SELECT id, ctid AS tid, seq, pg_column_size(payload) AS bytes,
                CASE WHEN ordering_key IS NOT NULL THEN "outbox"."outbox_key"(tenant_id, ordering_key) END AS key
            FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'fresh' AND seq > p_facts.mark AND seq NOT IN (
                SELECT unnest(lease.seqs) FROM "outbox"."outbox_lease" AS lease WHERE lease.number > p_facts.lease_mark)
            ORDER BY seq LIMIT p_window) AS fresh
        -- Once per event: merged with the statement around it, the question would be asked for each of its lists.
        OFFSET 0) AS event;
    RETURN v_look;
END
$$;

-- Looks at fresh events above the mark, at those due by the clock and at those barred until now, and judges each:
--   take   may be claimed
--   busy   its key is in flight in some lease
--   hold   its key is blocked, or an earlier event of its key stands in line
--   bar    its type is paused
--   full   the relay has no room for its type
--   later  an earlier event of its key is not taken either, or may be beyond what was read
-- Keys are judged before types: of two events of a key, never the later one alone is put in line.
CREATE FUNCTION "outbox"."outbox_look"(
    p_facts "outbox"."outbox_facts", p_window integer, p_full text[], p_now timestamptz)
    RETURNS "outbox"."outbox_look" LANGUAGE plpgsql
    -- Lists are joined by hashing, however few rows the planner expects of them.
    SET enable_nestloop = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
    v_barred text[] := '{}';
    -- How many barred events are read of each type.
    v_share integer;
    v_look "outbox"."outbox_look";
BEGIN
    IF p_full = '{}' AND p_facts.plain THEN
        v_look := "outbox"."outbox_look_plainly"(p_facts, p_window);
        IF v_look.seen >= 0 THEN
            RETURN v_look;
        END IF;
    END IF;
    IF p_facts.barred THEN
        v_barred := "outbox"."outbox_open_types"(p_facts.paused || p_full);
    END IF;
    v_share := greatest(p_window / greatest(cardinality(v_barred), 1), 10);

    WITH flight AS MATERIALIZED (
        SELECT unnest(seqs) AS seq FROM "outbox"."outbox_lease" WHERE number > p_facts.lease_mark),
    -- Whether any key is blocked or has a line: as of this statement, like the leases (see outbox_look_plainly).
    way AS MATERIALIZED (
        SELECT EXISTS (SELECT FROM "outbox"."outbox_block" WHERE scope = 'key') AS blocked,
            EXISTS (SELECT FROM "outbox"."outbox"
                WHERE status = 'pending' AND class <> 'fresh' AND ordering_key IS NOT NULL) AS line),
    busy AS MATERIALIZED (
        SELECT DISTINCT key FROM "outbox"."outbox_lease" CROSS JOIN unnest(keys) AS of (key)
        WHERE number > p_facts.lease_mark AND keys IS NOT NULL AND key IS NOT NULL),
    fresh AS MATERIALIZED (
        SELECT seq, id, ctid AS tid, tenant_id, ordering_key, event_type, class, alone, pg_column_size(payload) AS bytes, available_at
        FROM "outbox"."outbox"
        WHERE status = 'pending' AND class = 'fresh' AND seq > p_facts.mark AND seq NOT IN (SELECT seq FROM flight)
        ORDER BY seq LIMIT p_window),
    horizon AS MATERIALIZED (
        SELECT CASE WHEN count(*) = p_window THEN max(seq) ELSE 9223372036854775807 END AS seq FROM fresh),
    due AS MATERIALIZED (
        SELECT seq, id, ctid AS tid, tenant_id, ordering_key, event_type, class, alone, pg_column_size(payload) AS bytes, available_at
        FROM "outbox"."outbox"
        WHERE status = 'pending' AND class IN ('scheduled', 'waiting') AND available_at <= p_now
            AND alone <= p_facts.alone_max AND seq NOT IN (SELECT seq FROM flight)
        ORDER BY available_at, seq LIMIT p_window),
    barred AS MATERIALIZED (
        SELECT event.* FROM unnest(v_barred) AS open (event_type) CROSS JOIN LATERAL (
            SELECT seq, id, ctid AS tid, tenant_id, ordering_key, event_type, class, alone, pg_column_size(payload) AS bytes, available_at
            FROM "outbox"."outbox" AS event
            WHERE status = 'pending' AND class = 'barred' AND event.event_type = open.event_type
                AND alone <= p_facts.alone_max AND seq NOT IN (SELECT seq FROM flight)
            ORDER BY event.event_type, seq LIMIT v_share) AS event),
    -- The first fresh event of each key, and the first whose type may not run: what comes after that one waits.
    first AS MATERIALIZED (
        SELECT tenant_id, ordering_key, min(seq) AS seq,
            min(seq) FILTER (WHERE event_type = ANY (p_facts.paused) OR event_type = ANY (p_full)) AS stuck
        FROM fresh WHERE ordering_key IS NOT NULL GROUP BY tenant_id, ordering_key),
    found AS MATERIALIZED (SELECT * FROM fresh UNION ALL SELECT * FROM due UNION ALL SELECT * FROM barred),
    -- The first in the line of each key that may be taken, and whether the key is blocked. One look at the index for a key,
    -- not for each of its events. LIMIT: so that it is a look for this key, not at all that are blocked.
    head AS MATERIALIZED (
        SELECT key.tenant_id, key.ordering_key, (
            SELECT true FROM "outbox"."outbox_block" AS block
            WHERE block.scope = 'key' AND block.tenant_id = key.tenant_id AND block.name = key.ordering_key LIMIT 1) AS blocked, (
            SELECT seq FROM "outbox"."outbox" AS event
            WHERE event.tenant_id = key.tenant_id AND event.ordering_key = key.ordering_key
                AND status = 'pending' AND class <> 'fresh' AND NOT (class = 'scheduled' AND available_at > p_now)
            ORDER BY event.tenant_id, event.ordering_key, seq LIMIT 1) AS seq
        FROM (
            SELECT DISTINCT tenant_id, ordering_key FROM found
            WHERE ordering_key IS NOT NULL AND (SELECT line OR blocked FROM way)
                AND "outbox"."outbox_key"(tenant_id, ordering_key) NOT IN (SELECT key FROM busy)) AS key),
    candidate AS MATERIALIZED (
        SELECT found.*, first.seq AS first, first.stuck, head.seq AS head, head.blocked FROM found
        LEFT JOIN first USING (tenant_id, ordering_key) LEFT JOIN head USING (tenant_id, ordering_key)),
    judged AS MATERIALIZED (
        SELECT seq, id, tid, class, alone, bytes, available_at,
            CASE WHEN ordering_key IS NOT NULL THEN "outbox"."outbox_key"(tenant_id, ordering_key) END AS key,
            CASE
                WHEN ordering_key IS NOT NULL
                    AND "outbox"."outbox_key"(tenant_id, ordering_key) IN (SELECT key FROM busy) THEN 'busy'
                WHEN blocked OR head < seq THEN 'hold'
                WHEN event_type = ANY (p_facts.paused) THEN 'bar'
                WHEN event_type = ANY (p_full) THEN 'full'
                WHEN ordering_key IS NULL THEN 'take'
                WHEN stuck < seq THEN 'later'
                WHEN class <> 'fresh' AND (seq > (SELECT seq FROM horizon) OR first < seq) THEN 'later'
                ELSE 'take'
            END AS verdict
        FROM candidate),
    -- Due events and barred ones take turns.
    ranked AS (
        SELECT *, row_number() OVER (PARTITION BY verdict, class = 'fresh', class = 'barred' ORDER BY available_at, seq) AS rank
        FROM judged)
    SELECT
        count(*) FILTER (WHERE class = 'fresh'),
        (SELECT count(*) FROM due) = p_window OR EXISTS (SELECT FROM barred GROUP BY event_type HAVING count(*) = v_share),
        (SELECT seq FROM horizon),
        array_agg(id ORDER BY seq) FILTER (WHERE class = 'fresh' AND verdict = 'take'),
        array_agg(tid ORDER BY seq) FILTER (WHERE class = 'fresh' AND verdict = 'take'),
        array_agg(seq ORDER BY seq) FILTER (WHERE class = 'fresh' AND verdict = 'take'),
        array_agg(key ORDER BY seq) FILTER (WHERE class = 'fresh' AND verdict = 'take'),
        array_agg(bytes ORDER BY seq) FILTER (WHERE class = 'fresh' AND verdict = 'take'),
        array_agg(id ORDER BY rank, seq) FILTER (WHERE class <> 'fresh' AND verdict = 'take'),
        array_agg(tid ORDER BY rank, seq) FILTER (WHERE class <> 'fresh' AND verdict = 'take'),
        array_agg(seq ORDER BY rank, seq) FILTER (WHERE class <> 'fresh' AND verdict = 'take'),
        array_agg(key ORDER BY rank, seq) FILTER (WHERE class <> 'fresh' AND verdict = 'take'),
        array_agg(bytes ORDER BY rank, seq) FILTER (WHERE class <> 'fresh' AND verdict = 'take'),
        array_agg(alone ORDER BY rank, seq) FILTER (WHERE class <> 'fresh' AND verdict = 'take'),
        array_agg(id) FILTER (WHERE verdict = 'hold'),
        array_agg(seq) FILTER (WHERE verdict = 'hold'),
        array_agg(id) FILTER (WHERE verdict = 'bar' OR verdict = 'full' AND class <> 'fresh'),
        array_agg(seq) FILTER (WHERE verdict = 'bar' OR verdict = 'full' AND class <> 'fresh'),
        array_agg(id) FILTER (WHERE verdict = 'full' AND class = 'fresh'),
        array_agg(seq) FILTER (WHERE verdict = 'full' AND class = 'fresh'),
        array_agg(id) FILTER (WHERE verdict = 'later' AND class = 'fresh'),
        array_agg(seq) FILTER (WHERE verdict = 'later' AND class = 'fresh'),
        array_agg(id) FILTER (WHERE verdict = 'busy'),
        array_agg(seq) FILTER (WHERE verdict = 'busy'),
        array_agg(key) FILTER (WHERE verdict = 'busy')
    INTO v_look FROM ranked;
    RETURN v_look;
END
$$;

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
                AND next.status = 'pending' AND next.class <> 'fresh'
                AND NOT (next.class = 'scheduled' AND next.available_at > p_now)
            ORDER BY next.tenant_id, next.ordering_key, next.seq LIMIT v_each) AS line) AS follower
    WHERE head.id = ANY (p_head_ids) AND head.seq = ANY (p_heads) AND head.ordering_key IS NOT NULL AND follower.unbroken
    ORDER BY follower.seq LIMIT p_room;
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
    v_first := coalesce(v_first, v_next);
    IF v_first - 1 >= v_mark + 32 THEN
        PERFORM setval('"outbox"."outbox_lease_mark"', v_first - 1);
    END IF;
END
$$;

-- Writes a lease.
CREATE FUNCTION "outbox"."outbox_lease_out"(
    p_worker uuid, p_secret bigint, p_ids uuid[], p_seqs bigint[], p_tids tid[], p_keys text[], p_alone integer, p_now timestamptz, p_lease interval)
    RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_number bigint;
    v_keyed boolean := array_remove(p_keys, NULL) <> '{}';
BEGIN
    INSERT INTO "outbox"."outbox_lease" (secret, worker, ids, seqs, tids, keys, alone, created_at, until)
        VALUES (p_secret, p_worker, p_ids, p_seqs, p_tids, CASE WHEN v_keyed THEN p_keys END, p_alone, p_now, p_now + p_lease)
        RETURNING number INTO v_number;
    RETURN v_number;
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

    -- Each look starts at the mark again: a second one that went on where the first had ended would miss what was
    -- committed in between below that place, and could take a later event of the same key.
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
        -- much as the first, and a line once formed makes the looks after it dear too.
        EXIT WHEN (v_look.seen < v_window OR v_fresh * 4 >= p_limit * 3)
            AND (v_look.cut IS NOT TRUE OR v_due >= (p_limit + 1) / 2);
        v_aside := "outbox"."outbox_clear_the_way"(v_look)
            + coalesce(cardinality(v_look.hold_ids), 0) + coalesce(cardinality(v_look.bar_ids), 0);
        EXIT WHEN v_aside = 0 AND v_window >= greatest(p_limit, 2000);
        v_facts := "outbox"."outbox_read_facts"(p_worker, v_now);
        v_window := least(v_window * 4, greatest(p_limit, 2000));
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
    FOR i IN 1..cardinality(v_lone_ids) LOOP
        lease := "outbox"."outbox_lease_out"(
            p_worker, p_secret, v_lone_ids[i:i], v_lone_seqs[i:i], v_lone_tids[i:i], v_lone_keys[i:i], v_lone, v_now, p_lease);
        ids := v_lone_ids[i:i];
        seqs := v_lone_seqs[i:i];
        RETURN NEXT;
    END LOOP;
    IF v_keep > 0 THEN
        ids := v_ids[1:v_keep];
        seqs := v_seqs[1:v_keep];
        lease := "outbox"."outbox_lease_out"(
            p_worker, p_secret, ids, seqs, v_tids[1:v_keep], v_keys[1:v_keep], 0, v_now, p_lease);
        RETURN NEXT;
    END IF;
END
$$;
