"""Client processes that pull with long polling and record when each message came, and checks of these records."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ops.bench.bodies import read_numbers
from ops.bench.children import CONTEXT, Child, ChildFailed, Gate
from ops.bench.figures import expect, rounded
from ops.bench.producing import open_client

GROUP: Final = "bench"
PULL_MESSAGES_MAX: Final = 8192
WAIT_S: Final = 0.25  # the interval in which an idle consumer checks for the call to stop
LINGER_S: Final = 0.3  # consumers go on this long after the last message, to receive duplicates
QUIET_S_MAX: Final = 30.0  # missing messages are lost if none came for this long


@dataclass(frozen=True, slots=True)
class Received:
    """Columns i64[n] of the received messages, in order of arrival."""

    number: NDArray[np.int64]
    due_ms: NDArray[np.int64]
    received_us: NDArray[np.int64]
    dispatched_us: NDArray[np.int64]

    @property
    def late_ms(self) -> NDArray[np.float64]:
        """The time of receipt minus the due time, f64[n]."""
        return self.received_us / 1000 - self.due_ms

    @property
    def dispatched_late_ms(self) -> NDArray[np.float64]:
        """The time of hand-off to the broker minus the due time, f64[n]."""
        return self.dispatched_us / 1000 - self.due_ms

    def within(self, begin_ms: int, end_ms: int) -> Received:
        """The messages due in [begin_ms, end_ms)."""
        keep = (self.due_ms >= begin_ms) & (self.due_ms < end_ms)
        return Received(*(getattr(self, name)[keep] for name in self.__dataclass_fields__))


def consume(gate: Gate, address: str, subject: str, counts: Any, place: int) -> Received:
    """Pulls until the call to stop. Each pull acks the one before. ``counts[place]`` counts the received messages."""
    rows: list[Received] = []
    previous = None
    with open_client(address) as client:
        gate.wait()
        while not gate.stopped():
            pulled = client.pull_columns(subject, GROUP, PULL_MESSAGES_MAX, WAIT_S, ack=previous)
            received_us = time.time_ns() // 1000
            previous = pulled if pulled.count else None
            if pulled.count:
                counts[place] += pulled.count
                received = np.full(pulled.count, received_us, np.int64)
                # Copies, because a view would keep the whole frame in memory.
                rows.append(Received(read_numbers(pulled), pulled.due_ms.copy(), received, pulled.dispatched_us.copy()))
        if previous is not None:
            client.ack(subject, GROUP, previous)
    return join(rows)


def join(parts: Sequence[Received]) -> Received:
    """The rows of all parts."""
    names = Received.__dataclass_fields__
    empty = np.empty(0, np.int64)
    return Received(*(np.concatenate([empty, *(getattr(part, name) for part in parts)]) for name in names))


def wait_for_counts(counts: Any, messages: int, due_ms: int) -> None:
    """Waits until ``counts`` add up to so many messages, and LINGER_S longer. Raises `ChildFailed` if none comes for
    QUIET_S_MAX after ``due_ms``, the last due time."""
    seen, seen_s = -1, time.time()
    while (now := sum(counts)) < messages:
        if now != seen:
            seen, seen_s = now, time.time()
        elif time.time() - max(seen_s, due_ms / 1000) > QUIET_S_MAX:
            raise ChildFailed(f"{now} of {messages} messages were delivered, and none for {QUIET_S_MAX:g} s")
        time.sleep(0.02)
    time.sleep(LINGER_S)


class Consumers:
    """Consumers of one subject, which the parent stops when all messages have come."""

    def __init__(self, address: str, subject: str, count: int = 1) -> None:
        self.counts = CONTEXT.RawArray("q", count)
        self.targets = [(consume, address, subject, self.counts, place) for place in range(count)]

    def wait_for(self, messages: int, due_ms: int) -> None:
        """Waits until so many messages have come; see `wait_for_counts`."""
        wait_for_counts(self.counts, messages, due_ms)

    @staticmethod
    def stop(started: Sequence[Child]) -> Received:
        """Stops the consumers and returns the received messages."""
        for child in started:
            child.tell()
        return join([child.result() for child in started])


def verify(received: Received, messages: int) -> None:
    """Raises `WrongResult` unless the numbers 0…messages-1 came exactly once each, and none before it was due."""
    counts = np.bincount(received.number, minlength=messages)
    expect(len(counts) == messages, f"a message that was never sent came: number {len(counts) - 1}")
    expect(
        bool((counts == 1).all()), f"{(counts == 0).sum()} of {messages} never came, {(counts > 1).sum()} came twice"
    )
    early = int((received.late_ms < 0).sum() + (received.dispatched_late_ms < 0).sum())
    expect(early == 0, f"{early} messages came early")


def lateness(received: Received) -> dict[str, Any]:
    """Percentiles of lateness at the consumer, and of hand-off by the server, in milliseconds."""
    late = received.late_ms
    p50, p99, p999 = (rounded(float(value)) for value in np.percentile(late, [50, 99, 99.9]))
    return {
        "delivered": len(late),
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": rounded(float(late.max())),
        "early": int((late < 0).sum()),
        "dispatched_p99_ms": rounded(float(np.percentile(received.dispatched_late_ms, 99))),
    }
