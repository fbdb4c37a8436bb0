-- Statements of this transaction may take $1 milliseconds, or less if the session says so.
SELECT set_config('statement_timeout', CASE
    WHEN current_setting('statement_timeout')::interval BETWEEN interval '1 ms' AND $1 * interval '1 ms'
        THEN current_setting('statement_timeout')
    ELSE $1::text END, true)
