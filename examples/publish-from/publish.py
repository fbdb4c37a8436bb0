"""Publish from Python, in the transaction of the change.

Run with: pip install 'psycopg[binary]'; DATABASE_URL=postgres://... python examples/publish-from/publish.py
See: the order and its event are committed together; the order that is rolled back leaves no event.
"""

import os
import uuid

import psycopg
from psycopg.types.json import Json


def place_order(connection: psycopg.Connection, order: int, total: str) -> bool:
    """Writes an order and publishes that it was placed. The caller commits both, or neither."""
    connection.execute("INSERT INTO orders VALUES (%s, %s)", (order, total))
    row = connection.execute(
        "SELECT outbox.outbox_publish(%s, %s, id => %s, ordering_key => %s)",
        ("OrderPlaced", Json({"order": order, "total": total}), uuid.uuid4(), f"order-{order}"),
    ).fetchone()
    return row[0]


with psycopg.connect(os.environ["DATABASE_URL"]) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id bigint PRIMARY KEY, total numeric NOT NULL)")
    print("new:", place_order(connection, 3, "9.50"))
    connection.commit()

    place_order(connection, 4, "1")
    connection.rollback()

    try:
        with connection.transaction():
            connection.execute("SELECT outbox.outbox_publish('', '{}')")
    except psycopg.errors.InvalidParameterValue as refusal:
        print("refused:", refusal.diag.message_primary)

    events = connection.execute("SELECT count(*) FROM outbox.outbox").fetchone()[0]
    print("events:", events)
