-- Which migrations of the outbox were applied. Apart from the application's own, so that neither refuses the other's.
CREATE TABLE IF NOT EXISTS "outbox"."outbox_migration" (
    version    integer     NOT NULL PRIMARY KEY,
    name       text        NOT NULL,
    applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
