-- Ends a migration that another program has made meanwhile. $found is the version from which it was to start.
DO $guard$
DECLARE
    v_version integer := 0;
BEGIN
    IF to_regclass('"outbox"."outbox_migration"') IS NOT NULL THEN
        SELECT coalesce(max(version), 0) INTO v_version FROM "outbox"."outbox_migration";
    END IF;
    IF v_version <> $found THEN
        RAISE EXCEPTION 'the outbox was migrated to version % meanwhile', v_version;
    END IF;
END
$guard$;
