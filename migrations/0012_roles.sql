-- Roles and tenants.
--
-- The owner of the tables, who runs the migrations and needs not be a superuser, grants the rest of the work to others:
--   publisher  INSERT of new events, nothing else: it cannot even read what it wrote
--   handler    the inbox, for handlers that record in their own transaction what they have handled
--   relay      everything that claiming, settling and operating take, on our tables alone
--   reader     what became of events, without payload, headers and numbers
-- Grants are functions, so that psql and the command line do the same, and so that a later migration can grant what it adds.

-- Our functions, and whose part each is. By their whole names: what merely begins like the table may be the application's,
-- or belong to another outbox of this schema.
CREATE FUNCTION "outbox"."outbox_functions"() RETURNS TABLE (function regprocedure, part text) LANGUAGE sql STABLE AS $$
    SELECT ours.oid::regprocedure, known.part
    FROM (VALUES
        -- Of publishers and relays: what a row has to be is asked in the name of whoever writes it.
        ('writer', ARRAY['check_event']),
        ('owner', ARRAY['wake', 'forget_mark', 'audit_final', 'functions', 'tenant_tables', 'grant_publisher',
            'grant_handler', 'grant_relay', 'grant_reader', 'revoke', 'regrant', 'enable_tenants', 'disable_tenants']),
        ('publisher', ARRAY['publish', 'publish_id', 'publish_text', 'publish_headers']),
        ('handler', ARRAY['receive', 'receive_all']),
        ('relay', ARRAY['lock_number', 'channel', 'key', 'key_tenant', 'key_name', 'require_read_committed', 'promote',
            'take_back', 'open_types', 'last_seen', 'has_work', 'next_due', 'read_facts', 'seen_after', 'unclaimed', 'look_plainly', 'look', 'set_aside',
            'clear_the_way', 'followers', 'ranges', 'numbering', 'lease_out', 'claim', 'move_lease_mark', 'settle_one', 'shrink_lease',
            'end_leases', 'held', 'complete_at', 'complete', 'settle', 'extend', 'first_open', 'mark_candidate', 'mark_seen', 'mark_is_ahead', 'sees_all',
            'require_sight', 'mark_move', 'below_mark', 'identity', 'sweep', 'wake_now', 'hold_keys', 'pause', 'paused', 'resume', 'checked_filter', 'find_failed', 'change_failed',
            'begin_action', 'act', 'prune', 'passed', 'gauges', 'status', 'prune_inbox', 'reopen'])) AS known (part, names)
    CROSS JOIN unnest(known.names) AS name
    JOIN pg_catalog.pg_class AS outbox ON outbox.oid = '"outbox"."outbox"'::regclass
    JOIN pg_catalog.pg_proc AS ours ON ours.proname = outbox.relname || '_' || name
        AND ours.pronamespace = outbox.relnamespace AND ours.proowner = outbox.relowner
$$;

-- Our tables whose rows belong to tenants, as far as applications reach them.
CREATE FUNCTION "outbox"."outbox_tenant_tables"() RETURNS SETOF regclass LANGUAGE sql STABLE AS $$
    SELECT ours.oid::regclass
    FROM pg_catalog.pg_class AS ours
    JOIN pg_catalog.pg_class AS outbox ON outbox.oid = '"outbox"."outbox"'::regclass
    JOIN pg_catalog.pg_attribute AS tenant
        ON tenant.attrelid = ours.oid AND tenant.attname = 'tenant_id' AND NOT tenant.attisdropped
    WHERE ours.relnamespace = outbox.relnamespace AND ours.relowner = outbox.relowner AND ours.relkind = 'r'
        AND (ours.oid = outbox.oid OR ours.relname = 'processed_events')
$$;

CREATE FUNCTION "outbox"."outbox_grant_publisher"(p_role name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA "outbox" TO %I', p_role);
    -- Column by column: status, attempts and instants are not for publishers to set.
    EXECUTE format('GRANT INSERT (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, payload, headers,
        class, available_at) ON "outbox"."outbox" TO %I', p_role);
    FOR v_function IN SELECT function FROM "outbox"."outbox_functions"() WHERE part IN ('publisher', 'writer') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;
END
$$;

CREATE FUNCTION "outbox"."outbox_grant_handler"(p_role name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA "outbox" TO %I', p_role);
    EXECUTE format('GRANT SELECT, INSERT ON "outbox"."processed_events" TO %I', p_role);
    FOR v_function IN SELECT function FROM "outbox"."outbox_functions"() WHERE part = 'handler' LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;
END
$$;

-- Also a policy that lets all rows through, for this role alone: it does nothing while tenants are not isolated.
CREATE FUNCTION "outbox"."outbox_grant_relay"(p_role name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
    v_table regclass;
    v_roles text;
BEGIN
    -- To GRANT this name is everybody, and a policy for everybody would be one for every tenant.
    IF p_role = 'public' THEN
        RAISE EXCEPTION 'public is everybody; a relay takes a role of its own' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    EXECUTE format('GRANT USAGE ON SCHEMA "outbox" TO %I', p_role);
    -- What becomes of an event is the relay's; what was published is nobody's to change.
    EXECUTE format('GRANT SELECT, DELETE, UPDATE (status, class, available_at, retry_count, claim_count, alone, done_parts,
        error, processed_at, discarded_at) ON "outbox"."outbox" TO %I', p_role);
    EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON "outbox"."outbox_lease", "outbox"."outbox_block" TO %I', p_role);
    -- It adds rows, and notes how far its actions came: who did what, when and why is not for it to choose or change.
    EXECUTE format('GRANT SELECT, INSERT (action, filter, reason, actor, events, finished_at),
        UPDATE (events, reached, finished_at) ON "outbox"."outbox_audit" TO %I', p_role);
    EXECUTE format('GRANT SELECT, DELETE ON "outbox"."processed_events" TO %I', p_role);
    EXECUTE format('GRANT SELECT ON "outbox"."outbox_migration" TO %I', p_role);
    EXECUTE format('GRANT SELECT, UPDATE ON SEQUENCE "outbox"."outbox_mark", "outbox"."outbox_lease_mark",
        "outbox"."outbox_swept", "outbox"."outbox_swept_of" TO %I', p_role);
    EXECUTE format('GRANT SELECT ON SEQUENCE "outbox"."outbox_seq", "outbox"."outbox_lease_number" TO %I', p_role);
    FOR v_function IN SELECT function FROM "outbox"."outbox_functions"() WHERE part IN ('relay', 'writer') LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', v_function, p_role);
    END LOOP;

    FOR v_table IN SELECT * FROM "outbox"."outbox_tenant_tables"() LOOP
        SELECT string_agg(DISTINCT quote_ident(role.rolname), ', ') INTO v_roles
            FROM pg_catalog.pg_policy AS policy JOIN pg_catalog.pg_roles AS role
                ON role.oid = ANY (policy.polroles) OR role.rolname = p_role
            WHERE policy.polrelid = v_table AND policy.polname = 'outbox_relay';
        IF v_roles IS NULL THEN
            EXECUTE format('CREATE POLICY outbox_relay ON %s FOR ALL TO %I USING (true) WITH CHECK (true)', v_table, p_role);
        ELSE
            EXECUTE format('ALTER POLICY outbox_relay ON %s TO %s', v_table, v_roles);
        END IF;
    END LOOP;
END
$$;

-- No payload and no headers, which may be personal; no numbers, whose gaps would tell a tenant of the others.
CREATE FUNCTION "outbox"."outbox_grant_reader"(p_role name) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    EXECUTE format('GRANT USAGE ON SCHEMA "outbox" TO %I', p_role);
    EXECUTE format('GRANT SELECT (id, event_type, aggregate_type, aggregate_id, ordering_key, tenant_id, status, class,
        available_at, retry_count, claim_count, done_parts, error, created_at, processed_at, discarded_at)
        ON "outbox"."outbox" TO %I', p_role);
END
$$;

-- Takes back whatever the above gave. Schema and inbox are shared with the other outboxes of the schema: what the role is
-- to them, they give it again.
CREATE FUNCTION "outbox"."outbox_revoke"(p_role name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_object record;
    v_roles text;
BEGIN
    FOR v_object IN
        SELECT format('FUNCTION %s', function) AS name FROM "outbox"."outbox_functions"()
        UNION ALL
        SELECT format('%s %s', CASE ours.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, ours.oid::regclass)
        FROM pg_catalog.pg_class AS ours JOIN pg_catalog.pg_class AS outbox ON outbox.oid = '"outbox"."outbox"'::regclass
        WHERE ours.relnamespace = outbox.relnamespace AND ours.relowner = outbox.relowner AND ours.relkind IN ('r', 'S')
            AND (ours.oid = outbox.oid OR ours.relname = 'processed_events' OR ours.relname IN (
                SELECT outbox.relname || suffix FROM unnest(ARRAY['_lease', '_block', '_audit', '_migration', '_seq', '_mark',
                    '_lease_number', '_lease_mark', '_swept', '_swept_of', '_audit_number']) AS suffix))
        UNION ALL
        SELECT 'SCHEMA "outbox"'
    LOOP
        EXECUTE format('REVOKE ALL ON %s FROM %I', v_object.name, p_role);
    END LOOP;
    FOR v_object IN
        SELECT policy.polrelid::regclass AS name, array_remove(policy.polroles, role.oid) AS others
        FROM pg_catalog.pg_policy AS policy JOIN pg_catalog.pg_roles AS role ON role.rolname = p_role
        WHERE policy.polname = 'outbox_relay' AND role.oid = ANY (policy.polroles)
            AND policy.polrelid IN (SELECT "outbox"."outbox_tenant_tables"())
    LOOP
        IF v_object.others = '{}' THEN
            EXECUTE format('DROP POLICY outbox_relay ON %s', v_object.name);
        ELSE
            SELECT string_agg(quote_ident(rolname), ', ') INTO v_roles
                FROM pg_catalog.pg_roles WHERE oid = ANY (v_object.others);
            EXECUTE format('ALTER POLICY outbox_relay ON %s TO %s', v_object.name, v_roles);
        END IF;
    END LOOP;
    FOR v_object IN
        SELECT regrant.oid::regproc AS name FROM pg_catalog.pg_class AS outbox
        JOIN pg_catalog.pg_class AS other ON other.relnamespace = outbox.relnamespace AND other.relowner = outbox.relowner
        JOIN pg_catalog.pg_proc AS regrant ON regrant.pronamespace = other.relnamespace AND regrant.proowner = other.relowner
            AND regrant.proname = other.relname || '_regrant' AND regrant.pronargs = 0
        JOIN pg_catalog.pg_class AS lease ON lease.relnamespace = other.relnamespace
            AND lease.relname = other.relname || '_lease'
        WHERE outbox.oid = '"outbox"."outbox"'::regclass AND other.oid <> outbox.oid AND other.relkind = 'r'
    LOOP
        EXECUTE format('SELECT %s()', v_object.name);
    END LOOP;
END
$$;

-- Closes our functions to everybody, and gives every role again what it was granted before: run after each migration,
-- so that what a migration adds is neither open to all nor missing for some.
CREATE FUNCTION "outbox"."outbox_regrant"() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_function regprocedure;
    v_role name;
    v_owner oid := (SELECT relowner FROM pg_catalog.pg_class WHERE oid = '"outbox"."outbox"'::regclass);
BEGIN
    FOR v_function IN SELECT function FROM "outbox"."outbox_functions"() LOOP
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', v_function);
    END LOOP;
    FOR v_role IN
        SELECT role.rolname FROM pg_catalog.pg_class AS lease CROSS JOIN aclexplode(lease.relacl) AS granted
        JOIN pg_catalog.pg_roles AS role ON role.oid = granted.grantee
        WHERE lease.oid = '"outbox"."outbox_lease"'::regclass AND granted.privilege_type = 'INSERT' AND role.oid <> v_owner
    LOOP
        PERFORM "outbox"."outbox_grant_relay"(v_role);
    END LOOP;
    FOR v_role IN
        SELECT role.rolname FROM pg_catalog.pg_attribute AS payload CROSS JOIN aclexplode(payload.attacl) AS granted
        JOIN pg_catalog.pg_roles AS role ON role.oid = granted.grantee
        WHERE payload.attrelid = '"outbox"."outbox"'::regclass AND payload.attname = 'payload'
            AND granted.privilege_type = 'INSERT'
    LOOP
        PERFORM "outbox"."outbox_grant_publisher"(v_role);
    END LOOP;
    FOR v_role IN
        -- Not from the inbox, which other outboxes of this schema share.
        SELECT role.rolname FROM pg_catalog.pg_proc AS receive CROSS JOIN aclexplode(receive.proacl) AS granted
        JOIN pg_catalog.pg_roles AS role ON role.oid = granted.grantee
        WHERE receive.oid = to_regprocedure('"outbox"."outbox_receive"(text,text,uuid)') AND role.oid <> v_owner
    LOOP
        PERFORM "outbox"."outbox_grant_handler"(v_role);
    END LOOP;
    FOR v_role IN
        SELECT role.rolname FROM pg_catalog.pg_attribute AS seen CROSS JOIN aclexplode(seen.attacl) AS granted
        JOIN pg_catalog.pg_roles AS role ON role.oid = granted.grantee
        WHERE seen.attrelid = '"outbox"."outbox"'::regclass AND seen.attname = 'status' AND granted.privilege_type = 'SELECT'
    LOOP
        PERFORM "outbox"."outbox_grant_reader"(v_role);
    END LOOP;
END
$$;

-- Isolates tenants: without a tenant set in app.current_tenant a role sees and writes nothing, with one only that
-- tenant's events. It binds the owner too. Relays see all by their policy, or by BYPASSRLS.
--
-- Unset is NULL, and what was set locally is empty afterwards: neither equals a tenant.
CREATE FUNCTION "outbox"."outbox_enable_tenants"() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN SELECT * FROM "outbox"."outbox_tenant_tables"() LOOP
        IF NOT EXISTS (SELECT FROM pg_catalog.pg_policy WHERE polrelid = v_table AND polname = 'tenant_isolation') THEN
            EXECUTE format($policy$
                CREATE POLICY tenant_isolation ON %s
                    USING (tenant_id = current_setting('app.current_tenant', true) AND tenant_id <> '')
                    WITH CHECK (tenant_id = current_setting('app.current_tenant', true) AND tenant_id <> '')
                $policy$, v_table);
        END IF;
        EXECUTE format('ALTER TABLE %s ENABLE ROW LEVEL SECURITY, FORCE ROW LEVEL SECURITY', v_table);
        -- So that a plain INSERT inherits the tenant of its transaction.
        EXECUTE format('ALTER TABLE %s ALTER COLUMN tenant_id SET DEFAULT coalesce(current_setting(''app.current_tenant'', true), '''')', v_table);
    END LOOP;
END
$$;

-- Undoes the above. Tenants of events stay as they are.
CREATE FUNCTION "outbox"."outbox_disable_tenants"() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    v_table regclass;
BEGIN
    FOR v_table IN SELECT * FROM "outbox"."outbox_tenant_tables"() LOOP
        EXECUTE format('ALTER TABLE %s DISABLE ROW LEVEL SECURITY, NO FORCE ROW LEVEL SECURITY', v_table);
        EXECUTE format('DROP POLICY IF EXISTS tenant_isolation ON %s', v_table);
        EXECUTE format('ALTER TABLE %s ALTER COLUMN tenant_id SET DEFAULT ''''', v_table);
    END LOOP;
END
$$;
