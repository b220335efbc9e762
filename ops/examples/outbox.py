"""An order and the message about it, both or neither: a shop with a PostgreSQL database, and no outbox table.

The message is prepared, the order is inserted and committed, the message is committed. A shop that dies in between leaves a
prepared message, and the server asks any living shop about it. The shop looks into its own table: the order is there, so the
message is committed; it is not, so the message is rolled back. The table of orders is all that is needed to decide.

    python -m ops.examples.outbox place 17 --dsn "host=localhost dbname=shop" --server 127.0.0.1:20801
    python -m ops.examples.outbox answer --dsn "host=localhost dbname=shop" --server 127.0.0.1:20801 --seconds 5

`--die-at` ends the program in the middle, as a power failure would: the test of this file does that at every step.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from datetime import timedelta

import psycopg

from delayserver.client import CheckBack, Client

SUBJECT = "orders.placed"
GROUP = "shop"
# Longer than the longest transaction of the database: a check-back that comes while an order is still being inserted
# would be answered with a rollback.
CHECK_AFTER = timedelta(seconds=2)
STEPS = ("prepared", "inserted", "stored", "committed")

Database = psycopg.Connection[tuple[object, ...]]


def create_table(database: Database) -> None:
    """The table of the shop. It knows nothing of messages."""
    database.execute("CREATE TABLE IF NOT EXISTS orders (number bigint PRIMARY KEY)")


def place(database: Database, client: Client, number: int, die_at: str = "") -> None:
    """Stores an order and sends a message about it, both or neither."""

    def reached(step: str) -> None:
        if step == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    body = json.dumps({"number": number})
    # By the id the server recognises a retry: the same order is not announced twice.
    prepared = client.transaction(SUBJECT, body, group=GROUP, message_id=f"order-{number}", check_after=CHECK_AFTER)
    with prepared:
        reached("prepared")
        with database.transaction():
            database.execute("INSERT INTO orders VALUES (%s)", [number])
            reached("inserted")
        reached("stored")
    reached("committed")


def answer(database: Database, client: Client, check: CheckBack) -> None:
    """Answers a check-back by what the table says."""
    number = json.loads(check.body)["number"]
    found = database.execute("SELECT 1 FROM orders WHERE number = %s", [number]).fetchone()
    client.answer(check, commit=found is not None)


def answer_for(database: Database, client: Client, seconds: float) -> None:
    """Answers check-backs for some time. A real shop does this as long as it runs, in a task beside its work."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for check in client.check_backs(GROUP, wait_s=1):
            answer(database, client, check)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="A shop whose orders and messages agree.")
    parser.add_argument("action", choices=["place", "answer"])
    parser.add_argument("number", type=int, nargs="?", default=1)
    parser.add_argument("--dsn", required=True)
    parser.add_argument("--server", default="127.0.0.1:20801")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--die-at", choices=STEPS, default="")
    given = parser.parse_args()
    with psycopg.connect(given.dsn, autocommit=True) as database, Client(given.server) as client:
        create_table(database)
        if given.action == "place":
            place(database, client, given.number, given.die_at)
        else:
            answer_for(database, client, given.seconds)


if __name__ == "__main__":
    main()
