-- Leases events; see the function. One row per lease.
SELECT lease, ids, seqs FROM "outbox"."outbox_claim"($1, $2, $3, $4, $5 * interval '1 millisecond', $6, $7)
