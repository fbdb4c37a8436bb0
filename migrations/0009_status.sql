-- What stands where, for metrics and operators.

-- Fresh events in flight up to the mark.
CREATE FUNCTION "outbox"."outbox_passed"(p_mark bigint, p_lease_mark bigint)
    RETURNS TABLE (event_type text, class text, retry_count integer, available_at timestamptz, created_at timestamptz)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off
    SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
    SELECT event.event_type, event.class, event.retry_count, event.available_at, event.created_at
    FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.ids, lease.seqs) AS flight (id, seq)
    JOIN "outbox"."outbox" AS event ON event.id = flight.id AND event.seq = flight.seq
    WHERE lease.number > p_lease_mark AND flight.seq <= p_mark AND event.status = 'pending' AND event.class = 'fresh';
END
$$;

-- The figures of metrics, cheap enough to be asked every few seconds: counts stop at p_cap.
--
-- oldest_seconds is for how long the event that could run now and has been due the longest has been due: since it was
-- published, or since the instant of its schedule, next attempt or redrive. It grows when events are not delivered that a
-- relay should deliver. What waits for something else does not count: an instant to come, an earlier event of its key,
-- or an operator, who paused its type or blocked its key.
CREATE FUNCTION "outbox"."outbox_gauges"(
    p_cap bigint, OUT pending bigint, OUT oldest_seconds double precision, OUT failed bigint, OUT in_flight bigint)
    LANGUAGE plpgsql STABLE
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_mark bigint := (SELECT last_value FROM "outbox"."outbox_mark");
    v_lease_mark bigint := (SELECT last_value FROM "outbox"."outbox_lease_mark");
    v_now timestamptz := clock_timestamp();
    v_fresh timestamptz;
    v_due timestamptz;
    v_barred timestamptz;
    v_others bigint;
BEGIN
    PERFORM "outbox"."outbox_require_sight"();
    SELECT count(*) INTO pending FROM (
        SELECT FROM "outbox"."outbox" WHERE status = 'pending' AND class = 'fresh' AND seq > v_mark LIMIT p_cap) AS one;
    SELECT created_at INTO v_fresh FROM "outbox"."outbox"
        WHERE status = 'pending' AND class = 'fresh' AND seq > v_mark ORDER BY seq LIMIT 1;
    -- What is in flight does not hold the mark.
    SELECT pending + count(*), least(v_fresh, min(passed.created_at)) INTO pending, v_fresh
        FROM "outbox"."outbox_passed"(v_mark, v_lease_mark) AS passed;
    SELECT available_at INTO v_due FROM "outbox"."outbox"
        WHERE status = 'pending' AND class IN ('scheduled', 'waiting') AND available_at <= v_now
        ORDER BY available_at LIMIT 1;
    -- Barred are those of paused types, and those whose relays have no room for their type: these are late.
    SELECT count(*), min(coalesce(other.available_at, other.created_at)) FILTER (
            WHERE other.class = 'barred' AND other.event_type NOT IN (
                SELECT name FROM "outbox"."outbox_block" WHERE scope = 'type'))
        INTO v_others, v_barred FROM (
        (SELECT class, event_type, created_at, available_at FROM "outbox"."outbox"
            WHERE status = 'pending' AND class IN ('scheduled', 'waiting') LIMIT p_cap)
        UNION ALL
        (SELECT class, event_type, created_at, available_at FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'held' AND ordering_key IS NOT NULL LIMIT p_cap)
        UNION ALL
        (SELECT class, event_type, created_at, available_at FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'barred' LIMIT p_cap)) AS other;
    pending := pending + v_others;
    oldest_seconds := coalesce(greatest(extract(epoch FROM v_now - least(v_fresh, v_due, v_barred)), 0), 0);
    SELECT count(*) INTO failed FROM (
        SELECT FROM "outbox"."outbox" WHERE status = 'failed' AND class = 'failed' AND discarded_at IS NULL LIMIT p_cap) AS one;
    SELECT coalesce(sum(cardinality(ids)), 0) INTO in_flight FROM "outbox"."outbox_lease" WHERE number > v_lease_mark;
END
$$;

-- What stands where, for people: counts by class and by type, what is in flight, what is blocked. Counts stop at p_cap
-- for each class, and lists at 100.
CREATE FUNCTION "outbox"."outbox_status"(p_cap bigint DEFAULT 1000000) RETURNS json LANGUAGE plpgsql STABLE
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
DECLARE
    v_mark bigint := (SELECT last_value FROM "outbox"."outbox_mark");
    v_gauges record;
    v_now timestamptz := clock_timestamp();
    v_status json;
BEGIN
    PERFORM "outbox"."outbox_require_sight"();
    SELECT * INTO v_gauges FROM "outbox"."outbox_gauges"(p_cap);
    WITH event AS MATERIALIZED (
        (SELECT event_type, class, retry_count, available_at, false AS discarded FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'fresh' AND seq > v_mark LIMIT p_cap)
        UNION ALL
        (SELECT event_type, class, retry_count, available_at, false
            FROM "outbox"."outbox_passed"(v_mark, (SELECT last_value FROM "outbox"."outbox_lease_mark")))
        UNION ALL
        (SELECT event_type, class, retry_count, available_at, false FROM "outbox"."outbox"
            WHERE status = 'pending' AND class IN ('scheduled', 'waiting') LIMIT p_cap)
        UNION ALL
        (SELECT event_type, class, retry_count, available_at, false FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'held' AND ordering_key IS NOT NULL LIMIT p_cap)
        UNION ALL
        (SELECT event_type, class, retry_count, available_at, false FROM "outbox"."outbox"
            WHERE status = 'pending' AND class = 'barred' LIMIT p_cap)
        UNION ALL
        (SELECT event_type, 'failed', retry_count, available_at, discarded_at IS NOT NULL FROM "outbox"."outbox"
            WHERE status = 'failed' AND class = 'failed' LIMIT p_cap))
    SELECT json_build_object(
        'fresh', (SELECT count(*) FROM event WHERE class = 'fresh'),
        'scheduled', (SELECT count(*) FROM event WHERE class = 'scheduled'),
        'waiting', (SELECT count(*) FROM event WHERE class = 'waiting'),
        'held', (SELECT count(*) FROM event WHERE class = 'held'),
        'barred', (SELECT count(*) FROM event WHERE class = 'barred'),
        'retrying', (SELECT count(*) FROM event WHERE class <> 'failed' AND retry_count > 0),
        'failed', (SELECT count(*) FROM event WHERE class = 'failed' AND NOT discarded),
        'discarded', (SELECT count(*) FROM event WHERE discarded),
        'oldest_seconds', v_gauges.oldest_seconds,
        'in_flight', v_gauges.in_flight,
        'leases', (SELECT count(*) FROM "outbox"."outbox_lease"),
        'expired_leases', (SELECT count(*) FROM "outbox"."outbox_lease" WHERE until <= v_now),
        'blocked', (SELECT count(DISTINCT (scope, tenant_id, name)) FROM "outbox"."outbox_block"),
        'blocks', (SELECT coalesce(json_agg(row_to_json(block)), '[]') FROM (
            SELECT scope, tenant_id, name, reason, (array_agg(event_id ORDER BY event_seq))[1] AS event_id,
                count(event_id) AS events, extract(epoch FROM v_now - min(created_at))::double precision AS for_seconds
            FROM "outbox"."outbox_block" GROUP BY scope, tenant_id, name, reason ORDER BY min(created_at) LIMIT 100) AS block),
        'types', (SELECT coalesce(json_agg(row_to_json(type)), '[]') FROM (
            SELECT event_type, count(*) FILTER (WHERE class <> 'failed') AS pending,
                count(*) FILTER (WHERE class = 'failed' AND NOT discarded) AS failed
            FROM event GROUP BY event_type ORDER BY count(*) DESC, event_type LIMIT 100) AS type),
        'rows_estimate', (SELECT greatest(reltuples, 0)::bigint FROM pg_catalog.pg_class WHERE oid = '"outbox"."outbox"'::regclass),
        'cap', p_cap)
    INTO v_status;
    RETURN v_status;
END
$$;
