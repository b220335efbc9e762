"""Row `filter-1in100`: a group whose filter takes one message in a hundred passes over a backlog, against delivering all.

The filter is a tag, or an expression over properties."""

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
WHERE: Final = "kind = 'rare'"
DELIVERED_S_MAX: Final = 120.0


def measure_filter(options: Options) -> Run:
    """The value is the ratio of the tag, and `where_ratio` that of an expression, over as many messages with properties."""
    count = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        tag = _passing(server, f"{SUBJECT}-tags", count, {"tags": TAGS[1]})
        where = _passing(server, f"{SUBJECT}-where", count, {"where": WHERE})
        filtered = server.status()["broker"]["filtered"]
    expect(filtered == 2 * ROUNDS * (count - _wanted(count)), f"{filtered} messages were filtered")
    details = {
        "messages": count,
        "all_rate": rounded(tag[0]),
        "filtered_rate": rounded(tag[1]),
        "where_all_rate": rounded(where[0]),
        "where_rate": rounded(where[1]),
        "where_ratio": rounded(where[1] / where[0]),
    }
    return Run(tag[1] / tag[0], details)


def _passing(server: ServerProcess, subject: str, count: int, wanted: dict[str, str]) -> tuple[float, float]:
    """The messages a second of groups that get all messages of a subject, and of groups with a filter. Both pass over the
    same messages, one after the other, in new groups, several times."""
    before = server.status()["broker"]["delivered"]
    share = -(-count // PRODUCERS)
    targets = [
        (_load, server.address, subject, first, min(share, count - first), "where" in wanted)
        for first in range(0, count, share)
    ]
    run_together(targets)
    _wait_for(server, before + count)
    rates: tuple[list[float], list[float]] = ([], [])
    for number in range(ROUNDS):
        for manner, found, filters in zip(("all", "some"), rates, ({}, wanted), strict=True):
            [seconds] = run_together([(_consume, server.address, subject, f"{manner}-{number}", filters, count)])
            found.append(count / seconds)
    everything, some = (statistics.median(found) for found in rates)
    return everything, some


def _wanted(count: int) -> int:
    """How many of the numbers below ``count`` have the rare tag."""
    return -(-count // ONE_IN)


def _load(gate: Gate, address: str, subject: str, first: int, count: int, with_properties: bool) -> None:
    """Sends messages that are due now. Every hundredth number has the rare tag, or that kind among its properties."""
    bodies = make_bodies(BATCH)
    with open_client(address) as client:
        gate.wait()
        for number in range(first, first + count, BATCH):
            rows = min(BATCH, first + count - number)
            due_ms = time.time_ns() // 1_000_000
            index = 1 + (np.arange(number, number + rows) % ONE_IN == 0).astype(np.uint32)
            blob = write_bodies(bodies[:rows], due_ms, number)
            columns: dict[str, Any] = {"tags": TAGS, "tag_index": index}
            if with_properties:
                columns = {"properties": [{"kind": TAGS[code - 1]} for code in index.tolist()]}
            sent = client.send_columns(subject, due_ms, blob, body_length=BODY_BYTES, count=rows, **columns)
            expect(sent.accepted == rows, f"{sent.accepted} of {rows} accepted")


def _wait_for(server: ServerProcess, count: int) -> None:
    """Waits until the broker has all messages."""
    until_s = time.monotonic() + DELIVERED_S_MAX
    while (delivered := server.status()["broker"]["delivered"]) < count:
        expect(time.monotonic() < until_s, f"{delivered} of {count} messages were delivered")
        time.sleep(0.1)


def _consume(gate: Gate, address: str, subject: str, group: str, wanted: dict[str, str], count: int) -> float:
    """Pulls and acks all that the group gets; returns the seconds that it took. Raises `WrongResult`."""
    numbers: list[Any] = []
    left = _wanted(count) if wanted else count
    previous = None
    with open_client(address) as client:
        gate.wait()
        begin_s = time.perf_counter()
        while left > 0:
            pulled = client.pull_columns(
                subject,
                group,
                PULL_MESSAGES_MAX,
                5.0,
                ack=previous,
                tags=wanted.get("tags"),
                where=wanted.get("where"),
            )
            expect(pulled.count > 0, f"{left} messages never came")
            numbers.append(read_numbers(pulled))
            left -= pulled.count
            previous = pulled
        if previous is not None:
            client.ack(subject, group, previous)
        seconds = time.perf_counter() - begin_s
    found = np.sort(np.concatenate(numbers))
    expected = np.arange(0, count, ONE_IN if wanted else 1)
    expect(bool(np.array_equal(found, expected)), "other messages came than those that match")
    return seconds
