-- Keeps leases; returns the numbers of those lost.
SELECT "outbox"."outbox_extend"($1, $2, $3 * interval '1 millisecond')
