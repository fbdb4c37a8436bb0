-- Looking: what there is to claim, and what stands in its way. Changes nothing but a mark that is wrong.

-- Where claims go on: the marks, up to where there is no unclaimed fresh event, and the holes in that. By the last lease, if there
-- is one that tells (known); else up to the mark. What any lease says of that is true for good; the last one says most.
CREATE FUNCTION "outbox"."outbox_last_seen"(
    OUT mark bigint, OUT lease_mark bigint, OUT seen bigint, OUT holes int8multirange, OUT known boolean) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    SELECT lease.seen, lease.holes INTO seen, holes FROM "outbox"."outbox_lease" AS lease
        WHERE lease.number > (SELECT ended.last_value FROM "outbox"."outbox_lease_mark" AS ended)
            AND lease.numbering = "outbox"."outbox_numbering"()
            -- Numbers that were set back by hand are below what it saw of others.
            AND lease.seen < (SELECT given.last_value + given.is_called::integer FROM "outbox"."outbox_seq" AS given)
        ORDER BY lease.number DESC LIMIT 1;
    -- ORDER: after the lease. A settlement that ended the last one has moved the mark.
    SELECT events.last_value, leases.last_value INTO mark, lease_mark
        FROM "outbox"."outbox_mark" AS events, "outbox"."outbox_lease_mark" AS leases;
    known := holes IS NOT NULL;
    seen := CASE WHEN known THEN greatest(seen, mark) ELSE mark END;
    holes := coalesce(holes, '{}');
END
$$;

-- Fresh events above the mark and below p_below that nobody has claimed, oldest first. What claims have seen is not looked at
-- again, but for its holes. Plain SQL, so that it becomes a part of the looks.
CREATE FUNCTION "outbox"."outbox_unclaimed"(
    p_mark bigint, p_seen bigint, p_holes int8multirange, p_known boolean, p_lease_mark bigint, p_below bigint,
    p_limit integer)
    RETURNS TABLE (
        seq bigint, id uuid, tid tid, tenant_id text, ordering_key text, event_type text, class text, alone smallint,
        bytes integer, available_at timestamptz)
    LANGUAGE sql STABLE AS $$
    SELECT * FROM (
        SELECT late.* FROM unnest(p_holes) AS hole (numbers) CROSS JOIN LATERAL (
            SELECT event.seq, event.id, event.ctid, event.tenant_id, event.ordering_key, event.event_type, event.class,
                event.alone, pg_column_size(event.payload), event.available_at
            FROM "outbox"."outbox" AS event
            WHERE event.status = 'pending' AND event.class = 'fresh' AND event.seq > p_mark
                AND event.seq >= lower(hole.numbers) AND event.seq < upper(hole.numbers) AND event.seq < p_below
                AND event.seq NOT IN (
                    SELECT unnest(lease.seqs) FROM "outbox"."outbox_lease" AS lease WHERE lease.number > p_lease_mark)
            ORDER BY event.seq LIMIT p_limit) AS late
        UNION ALL (
            SELECT event.seq, event.id, event.ctid, event.tenant_id, event.ordering_key, event.event_type, event.class,
                event.alone, pg_column_size(event.payload), event.available_at
            FROM "outbox"."outbox" AS event
            WHERE event.status = 'pending' AND event.class = 'fresh' AND event.seq > p_seen AND event.seq < p_below
                -- What is in flight was seen.
                AND (p_known OR event.seq NOT IN (
                    SELECT unnest(lease.seqs) FROM "outbox"."outbox_lease" AS lease WHERE lease.number > p_lease_mark))
            ORDER BY event.seq LIMIT p_limit)) AS found (
            seq, id, tid, tenant_id, ordering_key, event_type, class, alone, bytes, available_at)
    ORDER BY seq LIMIT p_limit
$$;

-- Whether a claim could find anything. Asked before the lock is taken, so that relays with nothing to do do not queue for it:
-- of many that are awake, most find that others have what there is.
CREATE FUNCTION "outbox"."outbox_has_work"() RETURNS boolean LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_last record := "outbox"."outbox_last_seen"();
BEGIN
    RETURN "outbox"."outbox_mark_is_ahead"()
        OR EXISTS (
            SELECT FROM "outbox"."outbox_unclaimed"(
                v_last.mark, v_last.seen, v_last.holes, v_last.known, v_last.lease_mark, 9223372036854775807, 1))
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
    v_last record := "outbox"."outbox_last_seen"();
    v_now timestamptz := clock_timestamp();
    v_next timestamptz;
BEGIN
    -- For what is claimed its lease stands. What is due and not claimed had to wait for something, as a suspect for another, or
    -- was handed back.
    IF EXISTS (
        SELECT FROM "outbox"."outbox_unclaimed"(
            v_last.mark, v_last.seen, v_last.holes, v_last.known, v_last.lease_mark, 9223372036854775807, 1))
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
    -- Up to where there is no unclaimed fresh event, but for holes: by a lease, if it is known; or the mark, and none.
    seen bigint, holes int8multirange, known boolean,
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
        PERFORM setval('"outbox"."outbox_swept"', 0);
    END IF;
    SELECT last.mark, last.lease_mark, last.seen, last.holes, last.known,
        -- A relay with a lone lease of the strictest kind takes no other; one that has any takes none of that kind.
        (SELECT CASE max(held.alone) WHEN 2 THEN 0 WHEN 1 THEN 1 ELSE 2 END FROM "outbox"."outbox_lease" AS held
            WHERE held.number > last.lease_mark AND held.worker = p_worker),
        ARRAY(SELECT name FROM "outbox"."outbox_block" WHERE scope = 'type'),
        EXISTS (SELECT FROM "outbox"."outbox_block" WHERE scope = 'key'),
        EXISTS (SELECT FROM "outbox"."outbox"
            WHERE status = 'pending' AND class IN ('scheduled', 'waiting', 'held', 'barred') AND ordering_key IS NOT NULL),
        EXISTS (SELECT FROM "outbox"."outbox" WHERE status = 'pending' AND class = 'barred'),
        NOT EXISTS (SELECT FROM "outbox"."outbox"
            WHERE status = 'pending' AND class IN ('scheduled', 'waiting') AND available_at <= p_now)
    INTO v_facts
    FROM "outbox"."outbox_last_seen"() AS last;
    v_facts.plain := v_facts.plain AND NOT (v_facts.blocked OR v_facts.line OR v_facts.barred) AND v_facts.paused = '{}';
    RETURN v_facts;
END
$$;

-- Up to where everything is seen once these events are claimed, and what is a hole below that: what was not there, or not
-- taken. Of many holes those count as one that have the least between them.
CREATE FUNCTION "outbox"."outbox_seen_after"(
    p_facts "outbox"."outbox_facts", p_claimed int8multirange, OUT seen bigint, OUT holes int8multirange) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    seen := greatest(p_facts.seen, upper(p_claimed) - 1);
    IF NOT p_facts.known THEN
        -- What is in flight has to be below it.
        seen := greatest(seen, (
            SELECT max(flight.seq) FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.seqs) AS flight (seq)
            WHERE lease.number > p_facts.lease_mark));
    END IF;
    holes := (p_facts.holes + int8multirange(int8range(p_facts.seen, seen, '(]')) - p_claimed)
        * int8multirange(int8range(p_facts.mark, NULL, '()'));
    IF (SELECT count(*) FROM unnest(holes)) > 50 THEN
        holes := holes + (
            SELECT range_agg(narrow.gap) FROM (
                SELECT int8range(between_holes.first, between_holes.next) AS gap FROM (
                    SELECT upper(hole) AS first, lead(lower(hole)) OVER (ORDER BY hole) AS next
                    FROM unnest(holes) AS hole) AS between_holes
                WHERE between_holes.next IS NOT NULL
                ORDER BY between_holes.next - between_holes.first DESC OFFSET 24) AS narrow);
    END IF;
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
                        WHERE earlier.status = 'pending' AND earlier.class IN ('scheduled', 'waiting', 'held', 'barred') AND earlier.ordering_key IS NOT NULL)
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
            SELECT id, tid, seq, bytes,
                CASE WHEN ordering_key IS NOT NULL THEN "outbox"."outbox_key"(tenant_id, ordering_key) END AS key
            FROM "outbox"."outbox_unclaimed"(
                p_facts.mark, p_facts.seen, p_facts.holes, p_facts.known, p_facts.lease_mark, 9223372036854775807, p_window)) AS fresh
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
                WHERE status = 'pending' AND class IN ('scheduled', 'waiting', 'held', 'barred') AND ordering_key IS NOT NULL) AS line),
    busy AS MATERIALIZED (
        SELECT DISTINCT key FROM "outbox"."outbox_lease" CROSS JOIN unnest(keys) AS of (key)
        WHERE number > p_facts.lease_mark AND keys IS NOT NULL AND key IS NOT NULL),
    fresh AS MATERIALIZED (
        SELECT * FROM "outbox"."outbox_unclaimed"(
            p_facts.mark, p_facts.seen, p_facts.holes, p_facts.known, p_facts.lease_mark, 9223372036854775807, p_window)),
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
                AND status = 'pending' AND class IN ('scheduled', 'waiting', 'held', 'barred')
                AND NOT (class = 'scheduled' AND available_at > p_now)
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
