-- Waking a relay. A statement trigger, so that every language that can INSERT wakes it, once per statement.
--
-- NOTIFY takes a lock that is global to the cluster until commit, so it is sent only when a relay sleeps: a sleeping
-- relay holds lock 2, and the shared attempt below fails. A publisher that gets the shared lock keeps it until its
-- transaction ends, and while it is held no relay can fall asleep: the relay still polls when the event commits.
-- Publishers that notify wait for each other to commit. One that meets another on its way, in lock 4, says 'crowd': the
-- relay stops sleeping when most do.
--
-- `outbox.wake` chooses, per transaction, role or database: handshake (default), always, never.
-- Any other value counts as handshake, with a warning: an error would end the transaction of a publisher that did its part.
-- NOTIFY and PREPARE TRANSACTION exclude each other: two-phase publishers set never.
-- SECURITY DEFINER: a publisher needs no right but INSERT, however the functions called here are restricted.
CREATE FUNCTION "outbox"."outbox_wake"() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_mode text := coalesce(nullif(current_setting('outbox.wake', true), ''), 'handshake');
BEGIN
    IF v_mode NOT IN ('handshake', 'always', 'never') THEN
        RAISE WARNING 'outbox.wake is %; it takes handshake, always or never, and counts as handshake',
            quote_literal(left(v_mode, 40)) USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF v_mode = 'always' THEN
        PERFORM pg_notify("outbox"."outbox_channel"(), '');
    ELSIF v_mode <> 'never' AND NOT pg_try_advisory_xact_lock_shared("outbox"."outbox_lock_number"(2)) THEN
        PERFORM pg_notify("outbox"."outbox_channel"(),
            CASE WHEN pg_try_advisory_xact_lock("outbox"."outbox_lock_number"(4)) THEN '' ELSE 'crowd' END);
    END IF;
    RETURN NULL;
END
$$;

CREATE TRIGGER "outbox_wake" AFTER INSERT ON "outbox"."outbox"
    FOR EACH STATEMENT EXECUTE FUNCTION "outbox"."outbox_wake"();
