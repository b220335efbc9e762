"""The rows `neighbour-…`: a normal client's round trips beside one client that pipelines one dear operation.

The normal client sends a message that is due now, pulls it with a long poll and acks it. The value is the p99 of its round
trips. `stall_ms` is the longest step of the server's event loop meanwhile, `cpu_s` its processor time.
"""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np

from delayserver.client import Client
from delayserver.protocol.frames import encode_request
from ops.bench.children import Gate, children
from ops.bench.fairness import READ_BYTES, round_trips
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import open_client
from ops.bench.server_process import ServerProcess, fresh_directory

SECONDS: Final = 5.0
BULK: Final = "bulk"
ROWS: Final = 16_384
GROUPS: Final = 3_000
ACKED: Final = 1 << 20
LOOKED_UP: Final = 5_000
KNOWN: Final = 64
LONG_PROPERTY: Final = "a" * 16_000
PATTERNS: Final = " OR ".join([f"p LIKE '%{'a' * 80}{letter}%'" for letter in "bcdefghijklmnop"])


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A greedy client: what it needs before, and the arguments of its requests, by their numbers."""

    summary: str
    operation: str
    arguments: Callable[[int], dict[str, Any]]
    prepare: Callable[[Client], None] = lambda _: None


def _messages(client: Client, **columns: Any) -> None:
    """Two replies' worth of messages with bodies of 100 bytes."""
    for _ in range(2):
        client.publish_columns(BULK, [bytes(100)] * ROWS, **columns)


def _known_groups(client: Client) -> None:
    """Groups that have all messages before them, but for one."""
    _messages(client)
    for number in range(KNOWN):
        client.pull(BULK, f"g{number}", 1, 0.0)


def _groups(client: Client) -> None:
    """Consumer groups, each with a message before it."""
    client.publish(BULK, b"")
    for number in range(GROUPS):
        client.pull(BULK, f"group{number}", 1, 0.0)


def _long_properties(client: Client) -> None:
    """Messages that a filter with the patterns looks at for long, in vain."""
    for number in range(250):
        client.publish(BULK, b"", properties={"p": f"{number}{LONG_PROPERTY}"})


def _acked_group(client: Client) -> None:
    _messages(client)
    client.pull(BULK, "g", 1, 0.0)


NEIGHBOURS: Final = {
    "status": Neighbour("`status`", "status", lambda _: {}),
    "lookup": Neighbour("lookups of 5,000 receipts", "lookup", lambda _: {"receipts": [""] * LOOKED_UP}),
    "pull": Neighbour(
        "pulls of 16,384 rows",
        "pull",
        lambda number: {"subject": BULK, "group": f"g{number % KNOWN}", "max_messages": ROWS, "max_bytes": 1 << 30},
        _known_groups,
    ),
    "read": Neighbour(
        "reads of 16,384 rows",
        "read",
        lambda _: {"subject": BULK, "position": 0, "max_messages": ROWS, "max_bytes": 1 << 30},
        _messages,
    ),
    "groups": Neighbour("pages of 3,000 groups", "groups", lambda number: {"after": [1, 10 * (number % 200)]}, _groups),
    "ack": Neighbour(
        "acks of 1,048,576 scattered deliveries",
        "ack",
        lambda number: {
            "subject": BULK,
            "group": "g",
            "count": ACKED,
            "deliveries": np.random.default_rng(number).integers(0, 1 << 62, ACKED).tobytes(),
        },
        _acked_group,
    ),
    "like": Neighbour(
        "pulls with 15 LIKE patterns over properties of 16 KB",
        "pull",
        lambda number: {
            "subject": BULK,
            "group": f"g{number % KNOWN}",
            "max_messages": 100,
            "where": PATTERNS,
            "wait_ms": 1,
        },
        _long_properties,
    ),
}


def measure_neighbour(name: str) -> Callable[[Options], Run]:
    """The measurement of one row."""

    def measure(options: Options) -> Run:
        seconds = options.seconds or SECONDS
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            with open_client(server.address) as client:
                NEIGHBOURS[name].prepare(client)
            before_s, before = server.cpu_s(), server.memory_bytes()["rss"]
            targets = [(round_trips, server.address, seconds), (press, server.address, name)]
            with children(targets) as (normal, neighbour):
                neighbour.tell()
                normal.tell()
                trips: list[float] = normal.result()
                grown_mb = (server.memory_bytes()["peak"] - before) / 1e6
                neighbour.tell()
                answered: int = neighbour.result()
            expect(answered > 0, "the neighbour got no answer")
            with open_client(server.address) as client:
                stall_ms = client.status()["event_loop"]["longest_stall_ms"]
            p50_ms, p99_ms, worst_ms = (np.percentile(trips, [50, 99, 100]) * 1000).tolist()
            details = {
                "trips": len(trips),
                "trip_p50_ms": rounded(p50_ms),
                "trip_max_ms": rounded(worst_ms),
                "stall_ms": stall_ms,
                "answered": answered,
                "cpu_s": rounded(server.cpu_s() - before_s),
                "grown_mb": rounded(grown_mb),
            }
        return Run(p99_ms, details)

    return measure


def press(gate: Gate, address: str, name: str) -> int:
    """Sends the requests of a neighbour, as fast as the server takes them. Returns the number of replies, about."""
    # It stands for another machine, so it runs only when the server and the normal client leave the processor.
    os.nice(19)
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port))) as connection:
        stop = threading.Event()
        requests = _requests(NEIGHBOURS[name])
        gate.wait()
        reader = threading.Thread(target=_drain, args=(connection, stop), daemon=True)
        reader.start()
        sent = 0
        connection.settimeout(0.05)
        for data in requests:
            left = memoryview(data)
            while left and not gate.stopped():
                try:
                    left = left[connection.send(left) :]
                except TimeoutError:
                    continue
            if gate.stopped():
                break
            sent += 1
        stop.set()
        reader.join()
        return sent


def _requests(neighbour: Neighbour) -> Iterator[bytes]:
    for number in count(1):
        yield encode_request(number, neighbour.operation, neighbour.arguments(number))


def _drain(connection: socket.socket, stop: threading.Event) -> None:
    while not stop.is_set():
        if select.select([connection], [], [], 0.05)[0] and not connection.recv(READ_BYTES):
            return
