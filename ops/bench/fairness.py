"""The row `fairness`: the cost of greedy clients for a normal one, beside 1,000 messages per second that fall due.

The normal client repeats round trips: it sends a message that is due now, pulls it and acks it. The value is the worst
ratio of the p99 of its round trips to the p99 without greedy clients.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

import numpy as np

from delayserver.protocol.frames import encode_frame, encode_request, frame_of
from ops.bench.children import Gate, children
from ops.bench.consuming import GROUP, Consumers, lateness, verify
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, Sent, open_client, steady
from ops.bench.server_process import ServerProcess, fresh_directory

SECONDS: Final = 4.0
# The abuser starts this long before the normal client is measured.
LEAD_S: Final = 0.5
DELAY_MS: Final = 1000
RATE: Final = 1000
NORMAL: Final = "normal"
READ_BYTES: Final = 1 << 20


def _requests(operation: str, arguments: dict[str, Any], pipelined: int) -> bytes:
    return b"".join(encode_request(number, operation, arguments) for number in range(1, pipelined + 1))


def _empty_maps() -> bytes:
    """A frame of 16 MB that exceeds only the bounds of lists."""
    maps = 15 << 20
    head = encode_frame((1, "send", {"messages": []}))[4:-1]
    return frame_of(head + b"\xdd" + maps.to_bytes(4, "big") + b"\x80" * maps)


@dataclass(frozen=True, slots=True)
class Abuse:
    """One kind of abuser. Its connections send the data repeatedly. With ``reads`` they read the replies."""

    name: str
    connections: int
    data: Callable[[], bytes]
    reads: bool = True


ABUSES: Final = (
    Abuse("status", 1, lambda: _requests("status", {}, 90)),
    Abuse("lookups", 10, lambda: _requests("lookup", {"receipts": [""] * 5000}, 100)),
    Abuse(
        "reschedules",
        1,
        lambda: _requests("reschedule", {"items": [{"receipt": "r", "due_ms": 1 << 41}] * 1000}, 16),
    ),
    Abuse("empty_maps", 1, _empty_maps),
    Abuse("unread", 4, lambda: _requests("lookup", {"receipts": [""] * 5000}, 100), reads=False),
)


def measure_fairness(options: Options) -> Run:
    """Measures the normal client alone, then beside each abuser, each time on a new server."""
    seconds = options.seconds or SECONDS
    alone = _measure(options, None, seconds)
    details: dict[str, Any] = {f"alone_{name}": rounded(value) for name, value in alone.items()}
    worst = worst_late = 0.0
    for abuse in ABUSES:
        beside = _measure(options, abuse, seconds)
        details |= {f"{abuse.name}_{name}": rounded(value) for name, value in beside.items()}
        worst = max(worst, beside["trip_p99_ms"] / alone["trip_p99_ms"])
        worst_late = max(worst_late, beside["late_p99_ms"] / alone["late_p99_ms"])
    details["late_ratio"] = rounded(worst_late)
    return Run(worst, details)


def _measure(options: Options, abuse: Abuse | None, seconds: float) -> dict[str, float]:
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        return _beside(server, abuse, seconds)


def _beside(server: ServerProcess, abuse: Abuse | None, seconds: float) -> dict[str, float]:
    consumers = Consumers(server.address, SUBJECT)
    targets: list[tuple[Any, ...]] = [
        *consumers.targets,
        (steady, server.address, SUBJECT, RATE, seconds, DELAY_MS),
        (round_trips, server.address, seconds),
    ]
    if abuse is not None:
        targets.append((harm, server.address, ABUSES.index(abuse)))
    with children(targets) as (consuming, producer, normal, *abusers):
        consuming.tell()
        for child in abusers:
            child.tell()
        time.sleep(LEAD_S)
        producer.tell()
        normal.tell()
        trips: list[float] = normal.result()
        sent: Sent = producer.result()
        consumers.wait_for(sent.messages, time.time_ns() // 1_000_000 + DELAY_MS)
        for child in abusers:
            child.tell()
            expect(child.result() > 0, "the abuser sent nothing")
        received = consumers.stop([consuming])
    verify(received, sent.messages)
    p50_ms, p99_ms = (np.percentile(trips, [50, 99]) * 1000).tolist()
    return {
        "trips": len(trips),
        "trip_p50_ms": p50_ms,
        "trip_p99_ms": p99_ms,
        "late_p99_ms": float(lateness(received)["p99_ms"]),
    }


def round_trips(gate: Gate, address: str, seconds: float) -> list[float]:
    """The duration of each round trip of a normal client, in seconds. Raises `WrongResult` for a wrong message."""
    took: list[float] = []
    with open_client(address) as client:
        gate.wait()
        end = time.perf_counter() + seconds
        for number in count():
            begun = time.perf_counter()
            if begun >= end:
                return took
            body = b"%d" % number
            client.send(NORMAL, body, delay_ms=0)
            pulled = client.pull(NORMAL, GROUP, 1, 30.0)
            expect([one.body for one in pulled] == [body], "a message came that is not the next one")
            client.ack(NORMAL, GROUP, pulled)
            took.append(time.perf_counter() - begun)
    return took


def harm(gate: Gate, address: str, place: int) -> int:
    """Sends the data of an abuser until the call to stop. Returns the bytes that the server took."""
    # An abuser stands for another machine, so it runs only when the server and the normal client leave the processor.
    os.nice(19)
    abuse = ABUSES[place]
    data = abuse.data()
    with contextlib.ExitStack() as stack:
        abusers = [stack.enter_context(_Abuser(address, abuse, data)) for _ in range(abuse.connections)]
        gate.wait()
        while not gate.stopped():
            moved = [abuser.go_on() for abuser in abusers]
            if not any(moved):
                time.sleep(0.001)
        return sum(abuser.sent_bytes for abuser in abusers)


class _Abuser:
    """One connection that sends the data repeatedly, as fast as the server takes it."""

    def __init__(self, address: str, abuse: Abuse, data: bytes) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._reads = abuse.reads
        self._data = data
        self._left = memoryview(b"")
        self.sent_bytes = 0
        self._connect()

    def _connect(self) -> None:
        self._socket = socket.create_connection(self._address)
        self._socket.setblocking(False)

    def __enter__(self) -> _Abuser:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def go_on(self) -> bool:
        """Sends and reads without blocking. False if neither was possible. Reconnects if the server has closed."""
        moved = False
        try:
            with contextlib.suppress(BlockingIOError):
                self._left = self._left or memoryview(self._data)
                taken = self._socket.send(self._left)
                self._left = self._left[taken:]
                self.sent_bytes += taken
                moved = taken > 0
            if self._reads:
                with contextlib.suppress(BlockingIOError):
                    if not self._socket.recv(READ_BYTES):
                        raise ConnectionResetError
                    moved = True
        except ConnectionError:
            self._socket.close()
            self._left = memoryview(b"")
            self._connect()
        return moved
