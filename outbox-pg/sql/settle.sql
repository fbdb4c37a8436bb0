-- Ends claimed events; see the function. One row per event that was no longer held.
SELECT lost_lease, lost_seq FROM "outbox"."outbox_settle"($1, $2, $3, $4, $5::text::json, $6, $7)
