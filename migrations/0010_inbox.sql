-- The inbox: which handler has handled which event, so that a second delivery has no second effect.
--
-- A record is written in the transaction of the handler's effect, before it: whoever delivers the same event at the same
-- time waits for the outcome, and then skips or goes on. It exists if and only if the effect was committed.

-- Outboxes that share a schema share the inbox: what identifies an event, its id and its tenant, is the same for all.
CREATE TABLE IF NOT EXISTS "outbox"."processed_events" (
    tenant_id    text        NOT NULL DEFAULT '',
    handler      text        NOT NULL,
    event_id     uuid        NOT NULL,
    processed_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT "processed_events_pkey" PRIMARY KEY (tenant_id, handler, event_id)
);

-- The first statement of a handler's transaction: puts the tenant in place for row-level security, and records the event.
-- Leaves a mark in the transaction, outbox.received, by which its end is noticed.
-- Returns whether it is new to the handler. If another transaction has just recorded it, this waits until that one ends.
CREATE FUNCTION "outbox"."outbox_receive"(p_tenant text, p_handler text, p_event uuid) RETURNS boolean
    LANGUAGE plpgsql AS $$
DECLARE
    v_new integer;
BEGIN
    PERFORM set_config('app.current_tenant', p_tenant, true), set_config('outbox.received', 'yes', true);
    INSERT INTO "outbox"."processed_events" (tenant_id, handler, event_id) VALUES (p_tenant, p_handler, p_event)
        ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_new = ROW_COUNT;
    RETURN v_new > 0;
END
$$;

-- The same for many events of one tenant; returns those that are new. Recorded in the order of their ids, so that two
-- transactions with the same events do not wait for each other in a circle.
CREATE FUNCTION "outbox"."outbox_receive_all"(p_tenant text, p_handler text, p_events uuid[]) RETURNS SETOF uuid
    LANGUAGE plpgsql AS $$
BEGIN
    PERFORM set_config('app.current_tenant', p_tenant, true), set_config('outbox.received', 'yes', true);
    RETURN QUERY
    INSERT INTO "outbox"."processed_events" AS known (tenant_id, handler, event_id)
        SELECT p_tenant, p_handler, event.id FROM unnest(p_events) AS event (id) ORDER BY event.id
        ON CONFLICT DO NOTHING RETURNING known.event_id;
END
$$;

-- Deletes records past retention from p_pages pages on, beginning with page p_page, and returns where to go on: NULL at
-- the end of the table.
CREATE FUNCTION "outbox"."outbox_prune_inbox"(
    p_retention interval, p_page bigint, p_pages integer, OUT deleted integer, OUT next_page bigint)
    LANGUAGE plpgsql SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    v_from tid := format('(%s,0)', p_page);
    v_to tid := format('(%s,0)', p_page + p_pages);
BEGIN
    PERFORM "outbox"."outbox_require_sight"();
    IF p_pages IS NULL OR p_pages < 1 THEN
        RAISE EXCEPTION 'a step takes 1 page or more, not %', p_pages USING ERRCODE = 'invalid_parameter_value';
    END IF;
    DELETE FROM "outbox"."processed_events" AS known
        WHERE known.ctid >= v_from AND known.ctid < v_to AND known.processed_at < clock_timestamp() - p_retention;
    GET DIAGNOSTICS deleted = ROW_COUNT;
    next_page := p_page + p_pages;
    IF next_page >= pg_relation_size('"outbox"."processed_events"') / current_setting('block_size')::bigint THEN
        next_page := NULL;
    END IF;
END
$$;
