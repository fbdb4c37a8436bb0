-- Publishing from SQL: from any language, from triggers, by hand.
--
-- One call is one INSERT, in the caller's transaction. It takes no right but to insert: nothing here reads the table.
-- Publishers are granted the functions whose names begin with that of outbox_publish.

-- An id that sorts by time, so that new events stand together in the index of ids.
CREATE FUNCTION "outbox"."outbox_publish_id"() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    -- 48 bits of milliseconds, then version 7 over a random id, whose variant bits are right already.
    SELECT encode(set_byte(
            overlay(uuid_send(gen_random_uuid())
                PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6),
            6, 112 | (get_byte(uuid_send(gen_random_uuid()), 6) & 15)),
        'hex')::uuid
$$;

-- Refuses a name or a key that the other publishers refuse, in their words.
CREATE FUNCTION "outbox"."outbox_publish_text"(p_what text, p_text text, p_least integer, p_limit integer) RETURNS void
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_control text;
BEGIN
    IF octet_length(p_text) < p_least THEN
        RAISE EXCEPTION '% is empty; it takes 1 to % bytes', p_what, p_limit USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(p_text) > p_limit THEN
        RAISE EXCEPTION '% has % bytes; it takes at most %', p_what, octet_length(p_text), p_limit
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    v_control := substring(p_text FROM '[\u0001-\u001f\u007f-\u009f]');
    IF v_control IS NOT NULL THEN
        RAISE EXCEPTION '% holds the control character U+% at byte %; only printable text is accepted', p_what,
            lpad(upper(to_hex(ascii(v_control))), 4, '0'), octet_length(split_part(p_text, v_control, 1))
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END
$$;

-- Refuses headers that no transport could carry: an object of texts, each name once and of 1 to 200 bytes, 16 KiB together.
CREATE FUNCTION "outbox"."outbox_publish_headers"(p_type text, p_headers json) RETURNS void
    LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    v_header record;
    v_bytes bigint := 0;
    v_largest text;
    v_most integer := -1;
BEGIN
    IF json_typeof(p_headers) <> 'object' THEN
        RAISE EXCEPTION 'headers of event % are a JSON %, not an object', p_type, json_typeof(p_headers)
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOR v_header IN
        SELECT header.key AS name, json_typeof(header.value) AS type, header.value #>> '{}' AS text,
            count(*) OVER (PARTITION BY header.key) AS times
        FROM json_each(p_headers) AS header
    LOOP
        PERFORM "outbox"."outbox_publish_text"('header name', v_header.name, 1, 200);
        IF v_header.type <> 'string' THEN
            RAISE EXCEPTION 'header "%" of event % is a JSON %, not a string', v_header.name, p_type, v_header.type
                USING ERRCODE = 'invalid_parameter_value';
        ELSIF v_header.times > 1 THEN
            RAISE EXCEPTION 'header "%" of event % is given % times; it takes one value', v_header.name, p_type, v_header.times
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
        v_bytes := v_bytes + octet_length(v_header.name) + octet_length(v_header.text);
        IF octet_length(v_header.text) >= v_most THEN
            v_largest := v_header.name;
            v_most := octet_length(v_header.text);
        END IF;
    END LOOP;
    IF v_bytes > 16384 THEN
        RAISE EXCEPTION 'header "%" of event % is the largest of % bytes of headers; at most 16384 are accepted',
            v_largest, p_type, v_bytes USING ERRCODE = 'invalid_parameter_value';
    END IF;
EXCEPTION
    -- What Postgres says of these quotes the headers.
    WHEN untranslatable_character OR invalid_text_representation THEN
        RAISE EXCEPTION 'a header of event % holds a NUL character or half of a surrogate pair; remove it', p_type
            USING ERRCODE = 'invalid_parameter_value';
END
$$;

-- Publishes one event, and returns whether it is new: an id that its tenant has already is not written again.
--
-- Call it with named parameters. event_type and payload are needed; what else an event can have:
--   id             chosen by the caller, to publish at most once; a new one if left out
--   ordering_key   events that share it are handled one at a time, in publish order
--   aggregate_type, aggregate_id   what it is about
--   tenant_id      whose it is; left out, the setting app.current_tenant, else nobody's; empty, nobody's
--   headers        texts that travel beside the payload, such as traceparent
--   deliver_at, delay   when it becomes due, by this server's clock; not both
-- The payload may have 1 MiB unless outbox.payload_bytes_max says otherwise.
CREATE FUNCTION "outbox"."outbox_publish"(
    event_type text, payload json, id uuid DEFAULT NULL, ordering_key text DEFAULT NULL,
    aggregate_type text DEFAULT NULL, aggregate_id text DEFAULT NULL, tenant_id text DEFAULT NULL,
    headers json DEFAULT '{}', deliver_at timestamptz DEFAULT NULL, delay interval DEFAULT NULL)
    RETURNS boolean LANGUAGE plpgsql AS $$
#variable_conflict use_variable
DECLARE
    v_limit text := coalesce(nullif(btrim(current_setting('outbox.payload_bytes_max', true)), ''), '1048576');
    v_session text := coalesce(current_setting('app.current_tenant', true), '');
    v_tenant text := coalesce(tenant_id, v_session);
    v_brackets text;
    v_due timestamptz;
    v_new integer;
BEGIN
    IF event_type IS NULL THEN
        RAISE EXCEPTION 'event type is NULL; it takes 1 to 200 bytes' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    PERFORM "outbox"."outbox_publish_text"('event type', event_type, 1, 200);
    PERFORM "outbox"."outbox_publish_text"('ordering key', ordering_key, 1, 500);
    PERFORM "outbox"."outbox_publish_text"('aggregate type', aggregate_type, 1, 200);
    PERFORM "outbox"."outbox_publish_text"('aggregate id', aggregate_id, 1, 500);
    PERFORM "outbox"."outbox_publish_text"('tenant id', v_tenant, 0, 200);

    IF payload IS NULL THEN
        RAISE EXCEPTION 'event % has NULL for its payload; where JSON null is meant, write ''null''', event_type
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF v_limit !~ '^[1-9][0-9]{0,17}$' THEN
        RAISE EXCEPTION 'outbox.payload_bytes_max is %; it takes a whole number of bytes from 1', quote_literal(left(v_limit, 40))
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF octet_length(payload::text) > v_limit::bigint THEN
        RAISE EXCEPTION 'event % has a payload of % bytes; at most % are accepted', event_type,
            octet_length(payload::text), v_limit USING ERRCODE = 'invalid_parameter_value';
    -- As text, JSON has halves of surrogate pairs; no decoder makes a text of one. What is left of escapes when the pairs are
    -- gone; a backslash that is escaped itself begins none.
    ELSIF strpos(payload::text, E'\\u') > 0 AND regexp_replace(replace(payload::text, E'\\\\', '  '),
        E'\\\\u[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F]', ' ', 'g') ~ E'\\\\u[dD][89a-fA-F]'
    THEN
        RAISE EXCEPTION 'event % has a payload with half of a surrogate pair; no text can have one', event_type
            USING ERRCODE = 'invalid_parameter_value';
    -- Decoders stop at 128 levels. Only a text with so many brackets can be so deep.
    ELSIF length(payload::text) - length(translate(payload::text, '[{', '')) > 127 THEN
        -- Its brackets outside of strings, of which each round takes the innermost.
        v_brackets := regexp_replace(payload::text, E'"(?:[^"\\\\]|\\\\.)*"', '', 'g');
        v_brackets := regexp_replace(translate(v_brackets, '{}', '[]'), '[^][]+', '', 'g');
        FOR v_level IN 1..127 LOOP
            v_brackets := replace(v_brackets, '[]', '');
            EXIT WHEN v_brackets = '';
        END LOOP;
        IF v_brackets <> '' THEN
            RAISE EXCEPTION 'event % has a payload that is nested too deep; at most 127 levels are accepted', event_type
                USING ERRCODE = 'invalid_parameter_value';
        END IF;
    END IF;

    IF deliver_at IS NOT NULL AND delay IS NOT NULL THEN
        RAISE EXCEPTION 'event % has both deliver_at and delay; give one', event_type
            USING ERRCODE = 'invalid_parameter_value';
    -- The last instant that both sides know.
    ELSIF NOT isfinite(deliver_at) OR deliver_at > '9999-12-30 22:00:00+00' THEN
        RAISE EXCEPTION 'deliver_at of event % is %; it takes an instant up to the year 9999', event_type, deliver_at
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF NOT isfinite(delay) THEN
        RAISE EXCEPTION 'delay of event % is %; it takes a finite time', event_type, delay
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- As the other publishers have it: what was due before 1970 is due, and no delay is longer than a century.
    v_due := CASE
        WHEN deliver_at IS NOT NULL THEN greatest(deliver_at, timestamptz 'epoch')
        WHEN delay IS NOT NULL THEN clock_timestamp() + least(greatest(delay, interval '0'), interval '36600 days')
    END;

    IF headers IS NULL THEN
        RAISE EXCEPTION 'event % has NULL for its headers; where none are meant, leave them out', event_type
            USING ERRCODE = 'invalid_parameter_value';
    ELSIF headers::text <> '{}' THEN
        PERFORM "outbox"."outbox_publish_headers"(event_type, headers);
    END IF;

    -- A transaction without a tenant takes on the event's for a moment, and row security lets the event pass; one that has
    -- a tenant keeps it.
    IF v_session = '' AND v_tenant <> '' THEN
        PERFORM set_config('app.current_tenant', v_tenant, true);
    END IF;
    -- ON CONFLICT names no target: with one, the publisher would need the right to SELECT.
    INSERT INTO "outbox"."outbox"
        (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers, class, available_at)
    VALUES (coalesce(id, "outbox"."outbox_publish_id"()), event_type,
        aggregate_type, aggregate_id, ordering_key, v_tenant,
        payload, headers, CASE WHEN v_due IS NULL THEN 'fresh' ELSE 'scheduled' END, v_due)
    ON CONFLICT DO NOTHING;
    GET DIAGNOSTICS v_new = ROW_COUNT;
    IF v_session = '' AND v_tenant <> '' THEN
        PERFORM set_config('app.current_tenant', '', true);
    END IF;
    RETURN v_new > 0;
END
$$;
