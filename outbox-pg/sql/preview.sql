-- How many failed events filter $1 picks, by type, with the ids of the first $3 of each. $2: discarded ones too, by id.
SELECT event.event_type, count(*) AS events, (array_agg(event.id ORDER BY event.seq))[1:$3] AS samples
FROM "outbox"."outbox_find_failed"($1::text::json, clock_timestamp(), 0, NULL, $2) AS found
JOIN "outbox"."outbox" AS event ON event.id = found.id AND event.seq = found.seq
GROUP BY event.event_type ORDER BY count(*) DESC, event.event_type
