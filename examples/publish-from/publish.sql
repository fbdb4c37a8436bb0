-- Publish from SQL. Run with: psql "$DATABASE_URL" -f examples/publish-from/publish.sql
-- See: the order and its event are committed together; the order that is rolled back leaves no event.
\set ON_ERROR_STOP on
\set QUIET on
\pset format unaligned
\pset tuples_only on

CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, total numeric NOT NULL);

BEGIN;
INSERT INTO orders VALUES (1, 9.50);
SELECT 'new: ' || outbox.outbox_publish('OrderPlaced', '{"order": 1, "total": "9.50"}',
    ordering_key => 'order-1', aggregate_type => 'order', aggregate_id => '1',
    headers => '{"correlation-id": "cart-17"}');
COMMIT;

BEGIN;
INSERT INTO orders VALUES (2, 1);
SELECT 'new: ' || outbox.outbox_publish('OrderPlaced', '{"order": 2, "total": "1"}', ordering_key => 'order-2');
ROLLBACK;

-- A reminder for tomorrow, at most once: its id is derived from the order.
SELECT 'new: ' || outbox.outbox_publish('PaymentDue', '{"order": 1}', id => md5('payment-due 1')::uuid, delay => '1 day');
SELECT 'new: ' || outbox.outbox_publish('PaymentDue', '{"order": 1}', id => md5('payment-due 1')::uuid, delay => '1 day');

SELECT 'events: ' || count(*) FROM outbox.outbox;
