-- The outbox and what stands beside it.
--
-- Not run by itself: `outbox_pg::migrate`, or `outbox migrate --sql` for tools of your own, make the schema before and
-- record the version afterwards. They put other names than "outbox"."outbox" in: every quoted name
-- that begins with "outbox" derives from the schema (before a dot, or after the word SCHEMA) or from the table.
--
-- Choices, each measured on PostgreSQL 15:
--   json, not jsonb      what a handler gets is what was published, byte for byte; no parsing on the way in or out
--   text status          within 5 % of a smallint, and an operator can read it
--   two indexes on a new event (its id, and "fresh"): every further one costs each publish
--   no index on status, half-full pages   completing a fresh event changes nothing that an index holds or asks for, and its new
--                        version finds room on its page: no index is written, and a fraction of the WAL. A third less of
--                        the server's work, for twice the table; indexes do not grow, and need no vacuum for completions

-- What every event has to be. Answers true, or says what is wrong: of a plain CHECK the server would tell the whole row,
-- payload and all. A function, because the server reads the text of a CHECK anew for each statement that writes: written
-- out there, these took longer than the rest of an INSERT.
CREATE FUNCTION "outbox"."outbox_check_event"(
    p_status text, p_class text, p_available_at timestamptz, p_processed_at timestamptz, p_ordering_key text,
    p_event_type text, p_tenant_id text, p_aggregate_type text, p_aggregate_id text, p_headers json)
    RETURNS boolean LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    v_wrong text;
BEGIN
    -- In brackets, or the first THEN of the CASE would be taken for that of the IF.
    IF (CASE p_status
            WHEN 'pending' THEN CASE p_class
                -- Below the mark no claim looks: one that was settled before has to come back by another class.
                WHEN 'fresh' THEN p_available_at IS NULL AND p_processed_at IS NULL
                -- Publishers set both columns: an instant that never comes, or a place in no line, would be for good.
                WHEN 'scheduled' THEN p_available_at IS NOT NULL AND isfinite(p_available_at)
                WHEN 'waiting' THEN p_available_at IS NOT NULL AND isfinite(p_available_at)
                WHEN 'held' THEN p_ordering_key IS NOT NULL
                ELSE p_class = 'barred'
            END
            WHEN 'completed' THEN p_class IN ('fresh', 'done')
            ELSE p_status = 'failed' AND p_class = 'failed'
        END
        AND octet_length(p_event_type) BETWEEN 1 AND 200 AND octet_length(p_tenant_id) <= 200
        AND coalesce(octet_length(p_ordering_key) BETWEEN 1 AND 500, true)
        AND coalesce(octet_length(p_aggregate_type) BETWEEN 1 AND 200, true)
        AND coalesce(octet_length(p_aggregate_id) BETWEEN 1 AND 500, true)
        AND json_typeof(p_headers) = 'object')
    THEN
        RETURN true;
    END IF;
    v_wrong := CASE
        WHEN p_status NOT IN ('pending', 'completed', 'failed') THEN
            format('status is %L; it is pending, completed or failed', left(p_status, 40))
        WHEN p_status = 'failed' AND p_class <> 'failed' THEN
            format('class is %L; a failed event has class failed', left(p_class, 40))
        WHEN p_status = 'completed' AND p_class NOT IN ('fresh', 'done') THEN
            format('class is %L; a completed event has class done, or fresh if it never met an obstacle', left(p_class, 40))
        WHEN p_status = 'pending' AND p_class NOT IN ('fresh', 'scheduled', 'waiting', 'held', 'barred') THEN
            format('class is %L; a pending event is fresh, scheduled, waiting, held or barred', left(p_class, 40))
        WHEN p_class = 'fresh' AND p_processed_at IS NOT NULL THEN
            'processed_at is set; an event that is to be delivered again has class waiting and available_at'
        WHEN p_class = 'fresh' AND p_available_at IS NOT NULL THEN
            'available_at is set; an event that is to wait has class scheduled'
        WHEN p_class IN ('scheduled', 'waiting') AND (p_available_at IS NULL OR NOT isfinite(p_available_at)) THEN
            format('available_at is %L; a %s event has an instant that comes', p_available_at, p_class)
        WHEN p_class = 'held' AND p_ordering_key IS NULL THEN 'ordering_key is NULL; a held event has one'
        WHEN octet_length(p_event_type) NOT BETWEEN 1 AND 200 THEN
            format('event_type has %s bytes; it takes 1 to 200', octet_length(p_event_type))
        WHEN octet_length(p_tenant_id) > 200 THEN
            format('tenant_id has %s bytes; it takes at most 200', octet_length(p_tenant_id))
        WHEN octet_length(p_ordering_key) NOT BETWEEN 1 AND 500 THEN
            format('ordering_key has %s bytes; it takes 1 to 500', octet_length(p_ordering_key))
        WHEN octet_length(p_aggregate_type) NOT BETWEEN 1 AND 200 THEN
            format('aggregate_type has %s bytes; it takes 1 to 200', octet_length(p_aggregate_type))
        WHEN octet_length(p_aggregate_id) NOT BETWEEN 1 AND 500 THEN
            format('aggregate_id has %s bytes; it takes 1 to 500', octet_length(p_aggregate_id))
        ELSE format('headers are a json %s; they are an object', json_typeof(p_headers))
    END;
    RAISE EXCEPTION 'the outbox takes no such event: %', v_wrong USING ERRCODE = 'check_violation';
END
$$;

CREATE TABLE "outbox"."outbox" (
    id             uuid        NOT NULL,
    -- Order within an ordering key. No CACHE: the low-water mark needs numbers drawn after the table lock, one by one.
    seq            bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME "outbox"."outbox_seq" CACHE 1),
    event_type     text        NOT NULL,
    aggregate_type text,
    aggregate_id   text,
    ordering_key   text,
    tenant_id      text        NOT NULL DEFAULT '',
    payload        json        NOT NULL,
    headers        json        NOT NULL DEFAULT '{}',
    status         text        NOT NULL DEFAULT 'pending',
    -- Where a pending event waits:
    --   fresh      never met an obstacle; found by "outbox_fresh"
    --   scheduled  not due before available_at, and blocks nobody until then
    --   waiting    tried, released, redriven or lost; due at available_at, and blocks later events of its key
    --   held       behind another event of its key, or its key is blocked; made waiting when its turn has come
    --   barred     its event type may not run now; found again by its type
    -- Of a settled event:
    --   done       completed after it had met an obstacle; one that met none stays fresh
    --   failed     a dead letter
    class          text        NOT NULL DEFAULT 'fresh',
    available_at   timestamptz,
    retry_count    integer     NOT NULL DEFAULT 0,
    -- How often a lone claim of this event was lost.
    claim_count    integer     NOT NULL DEFAULT 0,
    -- 0: claimed in company; 1: in a lease of its own; 2: as the only such lease of its relay.
    alone          smallint    NOT NULL DEFAULT 0,
    done_parts     text[],
    error          text,
    created_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
    processed_at   timestamptz,
    discarded_at   timestamptz,
    CONSTRAINT "outbox_pkey" PRIMARY KEY (id, tenant_id),
    -- Settling an event writes it again; the first comparison spares it the rest.
    CONSTRAINT "outbox_event_check" CHECK (status = 'completed' AND class IN ('fresh', 'done') OR "outbox"."outbox_check_event"(
        status, class, available_at, processed_at, ordering_key, event_type, tenant_id, aggregate_type, aggregate_id, headers))
) WITH (fillfactor = 50);

-- Uncompressed, so that the stored size is the size that a claim limits by.
ALTER TABLE "outbox"."outbox" ALTER COLUMN payload SET STORAGE EXTERNAL;

-- Fresh events, oldest first, and what was completed without an obstacle. Scanned above the mark only, so what lies before it
-- costs nothing. No index may ask for the status: see above.
CREATE INDEX "outbox_fresh" ON "outbox"."outbox" (seq) WHERE class = 'fresh';
-- Events that become due by the clock.
CREATE INDEX "outbox_due" ON "outbox"."outbox" (available_at, seq) WHERE class IN ('scheduled', 'waiting');
-- What stands in the way of later events of its key, and what is held behind it.
CREATE INDEX "outbox_key" ON "outbox"."outbox" (tenant_id, ordering_key, seq)
    WHERE class IN ('scheduled', 'waiting', 'held', 'barred') AND ordering_key IS NOT NULL;
-- Events whose type may not run, by type.
CREATE INDEX "outbox_barred" ON "outbox"."outbox" (event_type, seq) WHERE class = 'barred';
-- Dead letters, for operators: in publish order, so that those of one key are redriven in theirs.
CREATE INDEX "outbox_failed" ON "outbox"."outbox" (seq) WHERE class = 'failed';

-- The claim ledger: one row per claim, not one update per event. Its number orders claims, its secret proves one.
CREATE TABLE "outbox"."outbox_lease" (
    number     bigint      NOT NULL GENERATED ALWAYS AS IDENTITY (SEQUENCE NAME "outbox"."outbox_lease_number" CACHE 1),
    secret     bigint      NOT NULL,
    worker     uuid        NOT NULL,
    ids        uuid[]      NOT NULL,
    -- Beside ids: what tells events apart. Ids alone do not: each tenant may use the same.
    seqs       bigint[]    NOT NULL,
    -- Beside ids: where the row of each was when it was claimed. A hint that saves the way through the index: rows move
    -- when they are changed by hand or the table is rewritten, so whoever follows it checks the number, and asks the index
    -- for what it does not find there.
    tids       tid[]       NOT NULL,
    -- Beside ids: tenant and ordering key of each event in one text, NULL where it has none. NULL if none has any.
    keys       text[],
    -- Of which numbering the seqs are: the file of the sequence, which is another one when the numbers begin anew.
    numbering  oid         NOT NULL,
    -- What the next claim need not look at again: no fresh event up to this number is unclaimed, but for those whose numbers are
    -- holes. All events in flight are below it, too.
    seen       bigint      NOT NULL,
    holes      int8multirange NOT NULL,
    alone      smallint    NOT NULL,
    created_at timestamptz NOT NULL,
    until      timestamptz NOT NULL,
    CONSTRAINT "outbox_lease_pkey" PRIMARY KEY (number)
) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 1000, autovacuum_analyze_threshold = 100000000);
-- Lists of a few kB that live for milliseconds: compressing them costs more than it saves.
ALTER TABLE "outbox"."outbox_lease" ALTER COLUMN ids SET STORAGE EXTERNAL,
    ALTER COLUMN seqs SET STORAGE EXTERNAL, ALTER COLUMN tids SET STORAGE EXTERNAL;

-- What an operator paused, and which keys wait for one because an event of theirs failed for good.
CREATE TABLE "outbox"."outbox_block" (
    scope      text        NOT NULL,
    tenant_id  text        NOT NULL DEFAULT '',
    -- An event type (for every tenant), or an ordering key.
    name       text        NOT NULL,
    reason     text        NOT NULL,
    -- The failed event that stopped or parked the key, and its number; NULL and 0 for a pause. Of several that did, each has
    -- a row: the key waits until the last of them was decided about, or what comes after one would overtake it.
    event_id   uuid,
    event_seq  bigint      NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    CONSTRAINT "outbox_block_pkey" PRIMARY KEY (scope, tenant_id, name, reason, event_seq),
    CONSTRAINT "outbox_block_scope_check" CHECK (scope IN ('type', 'key')),
    CONSTRAINT "outbox_block_reason_check" CHECK (reason IN ('paused', 'stopped', 'parked'))
);

-- No fresh event up to this number is unclaimed. A sequence, because moving it leaves no dead row versions behind:
-- under an old snapshot those would pile up and slow down what the mark is there to keep fast.
CREATE SEQUENCE "outbox"."outbox_mark" MINVALUE 0 START 0;
-- The same for leases.
CREATE SEQUENCE "outbox"."outbox_lease_mark" MINVALUE 0 START 0;
-- Up to where a sweep has seen that the mark was right.
CREATE SEQUENCE "outbox"."outbox_swept" MINVALUE 0 START 0;
-- For which table: its oid and the cluster's identifier in one. A dump holds rows as of its snapshot, and sequences as they were
-- later: in the restored table, which is another one, fresh events may be below the mark.
CREATE SEQUENCE "outbox"."outbox_swept_of" MINVALUE 0 START 0;

-- Lock numbers derive from the table, so that several outboxes in one database do not wait for each other.
--   1 claims, and whoever changes pending events by hand   2 held by a sleeping relay   3 migrations
--   4 a publisher that notifies
CREATE FUNCTION "outbox"."outbox_lock_number"(kind integer) RETURNS bigint
    LANGUAGE sql STABLE PARALLEL SAFE
    RETURN (1330600000 + kind)::bigint << 32 | '"outbox"."outbox"'::pg_catalog.regclass::pg_catalog.oid::bigint;

-- The channel on which a sleeping relay is woken.
CREATE FUNCTION "outbox"."outbox_channel"() RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'outbox_new';

-- Tenant and ordering key as one text, unambiguous because the tenant's length comes first.
-- The cast makes every part immutable; without it a claim would call this function for each event instead of inlining it.
CREATE FUNCTION "outbox"."outbox_key"(tenant_id text, ordering_key text) RETURNS text
    LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN length(tenant_id)::text || ':' || tenant_id || ordering_key;

-- The tenant in such a text, and the ordering key.
CREATE FUNCTION "outbox"."outbox_key_tenant"(key text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN substr(key, strpos(key, ':') + 1, split_part(key, ':', 1)::integer);
CREATE FUNCTION "outbox"."outbox_key_name"(key text) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE
    RETURN substr(key, strpos(key, ':') + 1 + split_part(key, ':', 1)::integer);
