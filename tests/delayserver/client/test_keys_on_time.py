"""Delayed messages of one key on a real server: a run of single sends, then a downtime with many that are overdue."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from delayserver.client import Client, Delivery
from tests.delayserver.cli.conftest import serving

SUBJECT, GROUP = "due", "readers"
SETTINGS = ("--set", "storage.durability=os", "--set", "storage.window_ms=1s")
SINGLE, OVERDUE, FRESH = 300, 16_000, 40
WAIT_S = 300


def take(client: Client, count: int, subject: str = SUBJECT) -> list[Delivery]:
    """Pull and ack until so many messages came."""
    found: list[Delivery] = []
    deadline = time.monotonic() + WAIT_S
    while len(found) < count and time.monotonic() < deadline:
        messages = client.pull(subject, GROUP, 4000, wait_s=5)
        found += messages
        if messages:
            client.ack(subject, GROUP, messages)
    return found


def test_messages_of_a_key_come_in_the_order_in_which_they_are_due(tmp_path: Path) -> None:
    with serving(tmp_path / "data", *SETTINGS) as server, Client(server.address) as client:
        # So far ahead that none is late. Where the machine stands still that long, the next subject has more time.
        for ahead_ms in (2_000, 20_000, 200_000):
            subject, began_s = f"{SUBJECT}.{ahead_ms}", time.monotonic()
            for number in range(SINGLE):
                client.send(subject, b"single", delay_ms=ahead_ms + number * 37 % 50, order_key="k")
            while client.status()["storage"]["replay_lag_bytes"]:
                time.sleep(0.01)
            if (time.monotonic() - began_s) * 1000 < ahead_ms:
                break
        found = take(client, SINGLE, subject)
        assert len(found) == SINGLE
        assert [(each.due_ms, each.sequence) for each in found] == sorted(
            (each.due_ms, each.sequence) for each in found
        )
        # Due while the server is down, over many windows.
        chance = np.random.default_rng(1)
        dues = int(time.time() * 1000) + 1_500 + chance.integers(0, 6_000, OVERDUE)
        sent = client.send_columns(SUBJECT, dues, b"overdue" * OVERDUE, body_length=7, order_keys=["k"] * OVERDUE)
        assert sent.accepted == OVERDUE
    while time.time() * 1000 < dues.max():
        time.sleep(0.1)
    with serving(tmp_path / "data", *SETTINGS) as server, Client(server.address) as client:
        for _ in range(FRESH):
            client.send(SUBJECT, b"fresh", delay_ms=10, order_key="k")
        found = take(client, OVERDUE + FRESH)
        assert len(found) == OVERDUE + FRESH
        assert [(each.due_ms, each.sequence) for each in found] == sorted(
            (each.due_ms, each.sequence) for each in found
        )
