-- A connection of the relay. Its statements have to work whatever the defaults of the role and the database are.
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
-- Every statement of the relay looks rows up, whatever the statistics say: so one plan does for good. Without the
-- settings below it might be made for a small table, and kept while that grows.
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET jit = off;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET idle_session_timeout = 0;
-- What others may create in a schema on the path cannot take the place of what the statements mean.
SET search_path = pg_catalog, pg_temp;
