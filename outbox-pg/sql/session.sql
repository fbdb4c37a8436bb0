-- A connection of the relay. Its statements have to work whatever the defaults of the role and the database are.
SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL READ COMMITTED, READ WRITE;
-- Plans made for a small table would be kept while it grows.
SET plan_cache_mode = force_custom_plan;
SET jit = off;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
