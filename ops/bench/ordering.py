"""Row `ordered`: a consumer takes a backlog of messages with order keys, against one without keys."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import numpy as np

from ops.bench.bodies import BODY, BODY_BYTES, make_bodies, write_bodies
from ops.bench.children import Gate, run_together
from ops.bench.consuming import PULL_MESSAGES_MAX
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import open_client
from ops.bench.server_process import ServerProcess, fresh_directory

MESSAGES: Final = 500_000
BATCH: Final = 1000
KEYS: Final = 10_000
ROUNDS: Final = 3
PLAIN, KEYED = "plain", "keyed"


def measure_ordered(options: Options) -> Run:
    """New groups take the same backlog several times, in turns with and without keys."""
    count = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        run_together([(_load, server.address, subject, count) for subject in (PLAIN, KEYED)])
        rates: dict[str, list[float]] = {PLAIN: [], KEYED: []}
        for number in range(ROUNDS):
            for subject, found in rates.items():
                [seconds] = run_together([(_consume, server.address, subject, f"group-{number}", count)])
                found.append(count / seconds)
    plain, keyed = (statistics.median(found) for found in rates.values())
    details = {"messages": count, "keys": KEYS, "plain_rate": rounded(plain), "keyed_rate": rounded(keyed)}
    return Run(keyed / plain, details)


def key_of(number: int) -> str:
    """The order key of a message: neighbours have different ones."""
    return f"key-{number % KEYS}"


def _load(gate: Gate, address: str, subject: str, count: int) -> None:
    bodies = make_bodies(BATCH)
    with open_client(address) as client:
        gate.wait()
        for number in range(0, count, BATCH):
            rows = min(BATCH, count - number)
            blob = write_bodies(bodies[:rows], time.time_ns() // 1_000_000, number)
            keys = [key_of(number + row) for row in range(rows)] if subject == KEYED else None
            published = client.publish_columns(subject, blob, body_length=BODY_BYTES, count=rows, order_keys=keys)
            expect(published.accepted == rows, f"{published.accepted} of {rows} accepted")


def _consume(gate: Gate, address: str, subject: str, group: str, count: int) -> float:
    """Pulls and acks everything; returns the seconds that it took. Raises `WrongResult` if a key was not in order."""
    numbers: list[Any] = []
    left, previous = count, None
    with open_client(address) as client:
        gate.wait()
        begin_s = time.perf_counter()
        while left > 0:
            pulled = client.pull_columns(subject, group, PULL_MESSAGES_MAX, 5.0, ack=previous)
            expect(pulled.count > 0, f"{left} messages never came")
            numbers.append(np.frombuffer(pulled.bodies.blob, BODY)["number"].copy())
            left -= pulled.count
            previous = pulled
        if previous is not None:
            client.ack(subject, group, previous)
        seconds = time.perf_counter() - begin_s
    found = np.concatenate(numbers)
    by_key = found[np.argsort(found % KEYS, kind="stable")]
    same = np.diff(by_key % KEYS) == 0
    expect(bool((np.diff(by_key)[same] > 0).all()), "messages of a key came out of order")
    expect(bool(np.array_equal(np.sort(found), np.arange(count))), "other messages came than were published")
    return seconds
