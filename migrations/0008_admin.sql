-- Operating: pausing and resuming, redriving and discarding, pruning.
--
-- Whoever changes pending or failed events by hand does it here, under lock 1: between two claims. Every change is
-- recorded. Long actions go in steps of a few hundred events, so that claims get their turn in between.

CREATE TABLE "outbox"."outbox_audit" (
    number      bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME "outbox"."outbox_audit_number"),
    action      text        NOT NULL,
    -- Which events, types or keys, as they were named.
    filter      json        NOT NULL,
    reason      text        NOT NULL,
    -- Who wanted it, as they say, and the role that did it.
    actor       text        NOT NULL,
    role        text        NOT NULL DEFAULT current_user,
    events      bigint      NOT NULL DEFAULT 0,
    -- How far a long action came: where it goes on after an interruption.
    reached     bigint      NOT NULL DEFAULT 0,
    created_at  timestamptz NOT NULL DEFAULT clock_timestamp(),
    finished_at timestamptz,
    CONSTRAINT "outbox_audit_pkey" PRIMARY KEY (number),
    CONSTRAINT "outbox_audit_check" CHECK (action IN ('redrive', 'discard', 'pause', 'resume', 'reopen', 'prune'))
);

-- What is finished stays as it was recorded, and no count goes back: not even for roles that may write here.
CREATE FUNCTION "outbox"."outbox_audit_final"() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'row % of the audit is final', OLD.number USING ERRCODE = 'insufficient_privilege';
END
$$;

CREATE TRIGGER "outbox_audit_final" BEFORE UPDATE ON "outbox"."outbox_audit"
    FOR EACH ROW WHEN (OLD.finished_at IS NOT NULL OR NEW.events < OLD.events OR NEW.reached < OLD.reached)
    EXECUTE FUNCTION "outbox"."outbox_audit_final"();

-- Wakes all relays that sleep, on a channel of their own; only one of them listens to publishers. Without the handshake:
-- operators are few, and a relay that is about to sleep looks once more.
CREATE FUNCTION "outbox"."outbox_wake_now"() RETURNS void LANGUAGE sql AS $$
    SELECT pg_catalog.pg_notify('outbox_relays_' || "outbox"."outbox_lock_number"(2), '')
$$;

-- Waits until no settlement of these keys (texts of outbox_key) is under way, and lets none begin until this transaction
-- ends. Call it holding lock 1, before the keys are looked at or changed.
--
-- Settlements do not take lock 1, and also let the next event of a key come up. Beside one, neither side would see what
-- the other is about to commit: the key would be left without a due event, for ever. Nor would they lock rows in one order.
CREATE FUNCTION "outbox"."outbox_hold_keys"(p_keys text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM "outbox"."outbox_lease"
        WHERE number > (SELECT last_value FROM "outbox"."outbox_lease_mark") AND number IN (
            SELECT lease.number FROM "outbox"."outbox_lease" AS lease CROSS JOIN unnest(lease.keys) AS taken (key)
            WHERE lease.number > (SELECT last_value FROM "outbox"."outbox_lease_mark")
                AND taken.key IN (SELECT unnest(p_keys)))
        ORDER BY number FOR UPDATE;
END
$$;

-- Pauses an event type (p_tenant is then empty: types are paused for all) or an ordering key. What is being delivered is
-- finished; no claim after this takes more, and relays hand back what they have claimed and not begun. Returns whether it
-- was running.
CREATE FUNCTION "outbox"."outbox_pause"(
    p_scope text, p_tenant text, p_name text, p_reason text DEFAULT '', p_actor text DEFAULT current_user)
    RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    v_new integer;
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
    INSERT INTO "outbox"."outbox_block" (scope, tenant_id, name, reason)
        VALUES (p_scope, CASE p_scope WHEN 'type' THEN '' ELSE p_tenant END, p_name, 'paused') ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_new = ROW_COUNT;
    INSERT INTO "outbox"."outbox_audit" (action, filter, reason, actor, finished_at)
        VALUES ('pause', json_build_object('scope', p_scope, 'tenant_id', p_tenant, 'name', p_name), p_reason, p_actor,
            clock_timestamp());
    RETURN v_new > 0;
END
$$;

-- Lets a paused type, or a paused or stopped key, run again. A parked key stays parked behind its failed events, the first
-- of which is returned: redrive or discard those. Barred events are found by their type, held ones follow their key's first.
CREATE FUNCTION "outbox"."outbox_resume"(
    p_scope text, p_tenant text, p_name text, p_reason text DEFAULT '', p_actor text DEFAULT current_user,
    OUT removed integer, OUT parked_by uuid) LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_tenant text := CASE p_scope WHEN 'type' THEN '' ELSE p_tenant END;
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    PERFORM "outbox"."outbox_require_sight"();
    IF p_scope IS NULL OR p_scope NOT IN ('type', 'key') THEN
        RAISE EXCEPTION 'what is resumed is a type or a key, not a "%"', left(p_scope, 40)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
    IF p_scope = 'key' THEN
        PERFORM "outbox"."outbox_hold_keys"(ARRAY["outbox"."outbox_key"(v_tenant, p_name)]);
    END IF;
    DELETE FROM "outbox"."outbox_block" AS block
        WHERE block.scope = p_scope AND block.tenant_id = v_tenant AND block.name = p_name
            AND (block.reason <> 'parked' OR NOT EXISTS (
                -- An event deleted by hand would park its key for ever.
                SELECT FROM "outbox"."outbox" AS event
                WHERE event.id = block.event_id AND event.tenant_id = block.tenant_id
                    AND event.status = 'failed' AND event.discarded_at IS NULL));
    GET DIAGNOSTICS removed = ROW_COUNT;
    SELECT block.event_id INTO parked_by FROM "outbox"."outbox_block" AS block
        WHERE block.scope = p_scope AND block.tenant_id = v_tenant AND block.name = p_name AND block.reason = 'parked'
        ORDER BY block.event_seq LIMIT 1;
    IF p_scope = 'key' THEN
        PERFORM "outbox"."outbox_promote"(ARRAY["outbox"."outbox_key"(v_tenant, p_name)], clock_timestamp());
    END IF;
    INSERT INTO "outbox"."outbox_audit" (action, filter, reason, actor, finished_at)
        VALUES ('resume', json_build_object('scope', p_scope, 'tenant_id', p_tenant, 'name', p_name), p_reason, p_actor,
            clock_timestamp());
    PERFORM "outbox"."outbox_wake_now"();
END
$$;

-- A filter as it was given, or an error that names what is wrong with it: a condition that is not understood must not
-- mean all events.
--
-- {"ids": [...], "event_type", "tenant_id", "ordering_key", "error": a part of it, "older_ms", "newer_ms"}, all optional.
CREATE FUNCTION "outbox"."outbox_checked_filter"(p_filter json) RETURNS json LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_member record;
    v_type text;
BEGIN
    IF json_typeof(p_filter) IS DISTINCT FROM 'object' THEN
        RAISE EXCEPTION 'the filter is no JSON object; {} picks all failed events' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR v_member IN
        SELECT member.key AS name, json_typeof(member.value) AS type, member.value FROM json_each(p_filter) AS member
    LOOP
        v_type := CASE
            WHEN v_member.name = 'ids' THEN 'array'
            WHEN v_member.name IN ('event_type', 'tenant_id', 'ordering_key', 'error') THEN 'string'
            WHEN v_member.name IN ('older_ms', 'newer_ms') THEN 'number' END;
        IF v_type IS NULL THEN
            RAISE EXCEPTION 'the filter has a member "%"; it takes ids, event_type, tenant_id, ordering_key, error, older_ms and newer_ms',
                left(v_member.name, 40) USING ERRCODE = 'invalid_parameter_value';
        ELSIF v_member.type <> v_type THEN
            RAISE EXCEPTION 'member "%" of the filter is of type %; it takes one of type %', v_member.name, v_member.type, v_type
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF v_member.name = 'error' AND v_member.value #>> '{}' = '' THEN
            RAISE EXCEPTION 'member "error" of the filter is empty; it takes a part of the error'
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF v_type = 'number' AND (v_member.value #>> '{}')::double precision < 0 THEN
            RAISE EXCEPTION 'member "%" of the filter is below 0', v_member.name USING ERRCODE = 'invalid_parameter_value';
        ELSIF v_member.name = 'ids' THEN
            PERFORM id::uuid FROM json_array_elements_text(v_member.value) AS id;
        END IF;
    END LOOP;
    RETURN p_filter;
END
$$;

-- Failed events after number p_after that p_filter picks, in publish order, up to p_limit (NULL: all of them).
--
-- Ages in the filter are those of the failure, by this clock, at p_now; what fails after p_now is left out. Discarded
-- events are found only if p_discarded, and by id.
CREATE FUNCTION "outbox"."outbox_find_failed"(
    p_filter json, p_now timestamptz, p_after bigint, p_limit integer, p_discarded boolean)
    RETURNS TABLE (id uuid, seq bigint) LANGUAGE plpgsql STABLE
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_custom_plan AS $$
#variable_conflict use_column
DECLARE
    -- First: what comes after it reads its members.
    v_filter json := "outbox"."outbox_checked_filter"(p_filter);
    v_ids uuid[] := (SELECT array_agg(value::uuid) FROM json_array_elements_text(v_filter -> 'ids'));
    v_type text := v_filter ->> 'event_type';
    v_tenant text := v_filter ->> 'tenant_id';
    v_key text := v_filter ->> 'ordering_key';
    v_error text := lower(v_filter ->> 'error');
    v_until timestamptz := p_now - coalesce((v_filter ->> 'older_ms')::double precision, 0) * interval '1 millisecond';
    v_since timestamptz := p_now - (v_filter ->> 'newer_ms')::double precision * interval '1 millisecond';
BEGIN
    PERFORM "outbox"."outbox_require_sight"();
    IF v_filter -> 'ids' IS NOT NULL THEN
        RETURN QUERY
        SELECT event.id, event.seq FROM "outbox"."outbox" AS event
        WHERE event.id = ANY (v_ids) AND event.status = 'failed' AND event.seq > p_after
            AND event.processed_at <= v_until AND (v_since IS NULL OR event.processed_at >= v_since)
            AND (p_discarded OR event.discarded_at IS NULL)
            AND (v_type IS NULL OR event.event_type = v_type) AND (v_tenant IS NULL OR event.tenant_id = v_tenant)
            AND (v_key IS NULL OR event.ordering_key = v_key)
            AND (v_error IS NULL OR strpos(lower(event.error), v_error) > 0)
        ORDER BY event.seq LIMIT p_limit;
    ELSE
        RETURN QUERY
        SELECT event.id, event.seq FROM "outbox"."outbox" AS event
        WHERE event.status = 'failed' AND event.class = 'failed' AND event.seq > p_after
            AND event.processed_at <= v_until AND (v_since IS NULL OR event.processed_at >= v_since)
            AND event.discarded_at IS NULL
            AND (v_type IS NULL OR event.event_type = v_type) AND (v_tenant IS NULL OR event.tenant_id = v_tenant)
            AND (v_key IS NULL OR event.ordering_key = v_key)
            AND (v_error IS NULL OR strpos(lower(event.error), v_error) > 0)
        ORDER BY event.seq LIMIT p_limit;
    END IF;
END
$$;

-- Makes failed events pending again, or gives them up, and releases the keys that wait for these and for no others. Returns
-- how many. Call it holding lock 1.
--
-- A redriven event starts a new cycle of attempts; parts that are done stay done. With a key it takes its place in line,
-- by its number, and the first in line becomes due: it goes before all that come after it and wait.
CREATE FUNCTION "outbox"."outbox_change_failed"(
    p_action text, p_ids uuid[], p_seqs bigint[], p_now timestamptz) RETURNS integer LANGUAGE plpgsql
    SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    v_changed uuid[];
    v_key record;
BEGIN
    PERFORM "outbox"."outbox_hold_keys"((
        SELECT array_agg("outbox"."outbox_key"(event.tenant_id, event.ordering_key)) FROM "outbox"."outbox" AS event
        WHERE event.id = ANY (p_ids) AND event.seq = ANY (p_seqs) AND event.ordering_key IS NOT NULL));
    IF p_action = 'redrive' THEN
        WITH redriven AS (
            UPDATE "outbox"."outbox" AS event
            SET status = 'pending', class = CASE WHEN event.ordering_key IS NULL THEN 'waiting' ELSE 'held' END,
                available_at = p_now, retry_count = 0, claim_count = 0, alone = 0, processed_at = NULL, discarded_at = NULL
            WHERE event.id = ANY (p_ids) AND event.seq = ANY (p_seqs) AND event.status = 'failed'
            RETURNING event.id)
        SELECT array_agg(id) INTO v_changed FROM redriven;
    ELSE
        WITH discarded AS (
            UPDATE "outbox"."outbox" AS event SET discarded_at = p_now
            WHERE event.id = ANY (p_ids) AND event.seq = ANY (p_seqs) AND event.status = 'failed'
                AND event.discarded_at IS NULL
            RETURNING event.id)
        SELECT array_agg(id) INTO v_changed FROM discarded;
    END IF;

    FOR v_key IN
        SELECT event.tenant_id, event.ordering_key, array_agg(event.id) AS ids FROM "outbox"."outbox" AS event
        WHERE event.id = ANY (v_changed) AND event.seq = ANY (p_seqs) AND event.ordering_key IS NOT NULL
        GROUP BY event.tenant_id, event.ordering_key ORDER BY event.tenant_id, event.ordering_key
    LOOP
        DELETE FROM "outbox"."outbox_block" AS block
        WHERE block.scope = 'key' AND block.tenant_id = v_key.tenant_id AND block.name = v_key.ordering_key
            AND block.event_id = ANY (v_key.ids);
        PERFORM "outbox"."outbox_promote"(ARRAY["outbox"."outbox_key"(v_key.tenant_id, v_key.ordering_key)], p_now);
    END LOOP;
    RETURN coalesce(cardinality(v_changed), 0);
END
$$;

-- Records that failed events are to be redriven or discarded, and returns the action's number. Then call outbox_act
-- until it says finished. An action that was interrupted goes on by its number.
CREATE FUNCTION "outbox"."outbox_begin_action"(
    p_action text, p_filter json, p_reason text DEFAULT '', p_actor text DEFAULT current_user)
    RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_number bigint;
BEGIN
    PERFORM "outbox"."outbox_require_sight"();
    IF p_action IS NULL OR p_action NOT IN ('redrive', 'discard') THEN
        RAISE EXCEPTION 'an action is redrive or discard, not "%"', left(p_action, 40) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    INSERT INTO "outbox"."outbox_audit" (action, filter, reason, actor)
        VALUES (p_action, "outbox"."outbox_checked_filter"(p_filter), p_reason, p_actor)
        RETURNING number INTO v_number;
    RETURN v_number;
END
$$;

-- One step of an action, of up to p_limit events. In publish order, so that of two events of a key the earlier goes first.
CREATE FUNCTION "outbox"."outbox_act"(p_number bigint, p_limit integer, OUT changed integer, OUT finished boolean)
    LANGUAGE plpgsql AS $$
DECLARE
    v_act "outbox"."outbox_audit";
    v_ids uuid[];
    v_seqs bigint[];
BEGIN
    PERFORM "outbox"."outbox_require_read_committed"();
    PERFORM "outbox"."outbox_require_sight"();
    -- With less it would never be finished.
    IF p_limit IS NULL OR p_limit < 1 THEN
        RAISE EXCEPTION 'a step takes 1 event or more, not %', p_limit USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- Locked: two who carry on the same action take turns.
    SELECT * INTO v_act FROM "outbox"."outbox_audit"
        WHERE number = p_number AND action IN ('redrive', 'discard') FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the outbox has no action number %', p_number USING ERRCODE = 'undefined_object';
    END IF;
    changed := 0;
    finished := v_act.finished_at IS NOT NULL;
    IF finished THEN
        RETURN;
    END IF;

    -- Looked for before the lock: a filter that finds little in much takes its time, and claims must not wait for it.
    SELECT array_agg(found.id ORDER BY found.seq), array_agg(found.seq ORDER BY found.seq) INTO v_ids, v_seqs
        FROM "outbox"."outbox_find_failed"(
            v_act.filter, v_act.created_at, v_act.reached, p_limit, v_act.action = 'redrive') AS found;
    IF v_ids IS NOT NULL THEN
        PERFORM pg_advisory_xact_lock("outbox"."outbox_lock_number"(1));
        changed := "outbox"."outbox_change_failed"(v_act.action, v_ids, v_seqs, clock_timestamp());
        PERFORM "outbox"."outbox_wake_now"();
    END IF;
    finished := coalesce(cardinality(v_ids), 0) < p_limit;
    UPDATE "outbox"."outbox_audit"
        SET events = events + changed, reached = coalesce(v_seqs[cardinality(v_seqs)], reached),
            finished_at = CASE WHEN finished THEN clock_timestamp() END
        WHERE number = p_number;
END
$$;

-- Turns completed events into failed ones, for a redrive to deliver them again to all their handlers, those too that were
-- done with an event before it was completed: for a type that was completed while nobody listened to it. Touches settled
-- rows only, so it needs no lock.
CREATE FUNCTION "outbox"."outbox_reopen"(
    p_type text, p_newer interval, p_reason text DEFAULT '', p_actor text DEFAULT current_user)
    RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    v_now timestamptz := clock_timestamp();
    v_events bigint;
BEGIN
    PERFORM "outbox"."outbox_require_sight"();
    UPDATE "outbox"."outbox" SET status = 'failed', class = 'failed', error = 'reopened', processed_at = v_now, done_parts = NULL
        WHERE status = 'completed' AND event_type = p_type AND processed_at > v_now - p_newer;
    GET DIAGNOSTICS v_events = ROW_COUNT;
    INSERT INTO "outbox"."outbox_audit" (action, filter, reason, actor, events, finished_at)
        VALUES ('reopen', json_build_object('event_type', p_type, 'newer_ms', extract(epoch FROM p_newer) * 1000), p_reason,
            p_actor, v_events, clock_timestamp());
    RETURN v_events;
END
$$;

-- Deletes settled events past retention from p_pages pages on, beginning with page p_page, and returns where to go on:
-- NULL at the end of the table. No index for it: it would cost each settlement. Touches only rows that nobody else
-- changes but operators, so it blocks neither publishing nor claiming.
--
-- Failed events go only if discarded, or if p_failed; one that a key waits for stays in any case.
--
-- The first call of a pass that deletes something returns the number of its row in the audit: hand it to the others.
CREATE FUNCTION "outbox"."outbox_prune"(
    p_retention interval, p_failed boolean, p_page bigint, p_pages integer,
    p_reason text DEFAULT '', p_actor text DEFAULT current_user, p_audit bigint DEFAULT NULL,
    OUT deleted integer, OUT next_page bigint, OUT audit bigint)
    LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_from tid := format('(%s,0)', p_page);
    v_to tid := format('(%s,0)', p_page + p_pages);
    v_cutoff timestamptz := clock_timestamp() - p_retention;
BEGIN
    PERFORM "outbox"."outbox_require_sight"();
    IF p_pages IS NULL OR p_pages < 1 THEN
        RAISE EXCEPTION 'a step takes 1 page or more, not %', p_pages USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM "outbox"."outbox" AS event
        WHERE event.ctid >= v_from AND event.ctid < v_to AND event.processed_at < v_cutoff
            AND (event.status = 'completed' OR (
                event.status = 'failed' AND (p_failed OR event.discarded_at < v_cutoff)
                AND NOT EXISTS (
                    SELECT FROM "outbox"."outbox_block" AS block
                    WHERE block.scope = 'key' AND block.tenant_id = event.tenant_id AND block.name = event.ordering_key
                        AND block.event_id = event.id)));
    GET DIAGNOSTICS deleted = ROW_COUNT;
    next_page := p_page + p_pages;
    IF next_page >= pg_relation_size('"outbox"."outbox"') / current_setting('block_size')::bigint THEN
        next_page := NULL;
    END IF;

    audit := p_audit;
    IF audit IS NULL AND deleted > 0 THEN
        INSERT INTO "outbox"."outbox_audit" (action, filter, reason, actor)
            VALUES ('prune', json_build_object('retention_ms', extract(epoch FROM p_retention) * 1000, 'failed', p_failed),
                p_reason, p_actor)
            RETURNING number INTO audit;
    END IF;
    IF audit IS NOT NULL THEN
        UPDATE "outbox"."outbox_audit"
            SET events = events + deleted, finished_at = CASE WHEN next_page IS NULL THEN clock_timestamp() END
            WHERE number = audit AND action = 'prune';
        IF NOT FOUND THEN
            RAISE EXCEPTION 'the audit has no row number % of a prune', audit USING ERRCODE = 'undefined_object';
        END IF;
    END IF;
END
$$;
