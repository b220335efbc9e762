"""Row `filter-1in100`: a group whose filter takes one message in a hundred passes over a backlog, against delivering all."""

from __future__ import annotations

import statistics
import time
from typing import Any, Final

import numpy as np

from ops.bench.bodies import BODY_BYTES, make_bodies, read_numbers, write_bodies
from ops.bench.children import Gate, run_together
from ops.bench.consuming import PULL_MESSAGES_MAX
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, open_client
from ops.bench.server_process import ServerProcess, fresh_directory

MESSAGES: Final = 1_000_000
BATCH: Final = 1000
PRODUCERS: Final = 2
ROUNDS: Final = 3
ONE_IN: Final = 100
TAGS: Final = ("common", "rare")
DELIVERED_S_MAX: Final = 120.0


def measure_filter(options: Options) -> Run:
    """Both pass over the same messages, one after the other, in new groups, several times."""
    count = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        share = -(-count // PRODUCERS)
        firsts = range(0, count, share)
        run_together([(_load, server.address, first, min(share, count - first)) for first in firsts])
        _wait_for(server, count)
        rates: dict[str | None, list[float]] = {None: [], TAGS[1]: []}
        for number in range(ROUNDS):
            for tags, found in rates.items():
                [seconds] = run_together([(_consume, server.address, f"{tags}-{number}", tags, count)])
                found.append(count / seconds)
        filtered = server.status()["broker"]["filtered"]
    expect(filtered == ROUNDS * (count - _wanted(count)), f"{filtered} messages were filtered")
    everything, rare = (statistics.median(found) for found in rates.values())
    details = {"messages": count, "all_rate": rounded(everything), "filtered_rate": rounded(rare)}
    return Run(rare / everything, details)


def _wanted(count: int) -> int:
    """How many of the numbers below ``count`` have the rare tag."""
    return -(-count // ONE_IN)


def _load(gate: Gate, address: str, first: int, count: int) -> None:
    """Sends messages that are due now. Every hundredth number has the rare tag."""
    bodies = make_bodies(BATCH)
    with open_client(address) as client:
        gate.wait()
        for number in range(first, first + count, BATCH):
            rows = min(BATCH, first + count - number)
            due_ms = time.time_ns() // 1_000_000
            index = 1 + (np.arange(number, number + rows) % ONE_IN == 0).astype(np.uint32)
            blob = write_bodies(bodies[:rows], due_ms, number)
            sent = client.send_columns(
                SUBJECT, due_ms, blob, body_length=BODY_BYTES, count=rows, tags=TAGS, tag_index=index
            )
            expect(sent.accepted == rows, f"{sent.accepted} of {rows} accepted")


def _wait_for(server: ServerProcess, count: int) -> None:
    """Waits until the broker has all messages."""
    until_s = time.monotonic() + DELIVERED_S_MAX
    while (delivered := server.status()["broker"]["delivered"]) < count:
        expect(time.monotonic() < until_s, f"{delivered} of {count} messages were delivered")
        time.sleep(0.1)


def _consume(gate: Gate, address: str, group: str, tags: str | None, count: int) -> float:
    """Pulls and acks all that the group gets; returns the seconds that it took. Raises `WrongResult`."""
    numbers: list[Any] = []
    left = count if tags is None else _wanted(count)
    previous = None
    with open_client(address) as client:
        gate.wait()
        begin_s = time.perf_counter()
        while left > 0:
            pulled = client.pull_columns(SUBJECT, group, PULL_MESSAGES_MAX, 5.0, ack=previous, tags=tags)
            expect(pulled.count > 0, f"{left} messages never came")
            numbers.append(read_numbers(pulled))
            left -= pulled.count
            previous = pulled
        if previous is not None:
            client.ack(SUBJECT, group, previous)
        seconds = time.perf_counter() - begin_s
    found = np.sort(np.concatenate(numbers))
    expected = np.arange(0, count, 1 if tags is None else ONE_IN)
    expect(bool(np.array_equal(found, expected)), "other messages came than those that match")
    return seconds
