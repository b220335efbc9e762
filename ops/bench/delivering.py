"""Rows `steady-*` and `thunder-*`: lateness at a pulling consumer, at a steady rate and with all due in one second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from ops.bench.children import children, run_together
from ops.bench.consuming import Consumers, Received, lateness, verify
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, Sent, load, rate_of, steady
from ops.bench.server_process import ServerProcess, fresh_directory

SECONDS: Final = 20.0
DELAY_MS: Final = 5000
LOADERS: Final = 2
LOAD_RATE_MIN: Final = 100_000  # from which the due second is computed; for a slower machine the time is doubled
SPARE_S: Final = 1.0
TRIES_MAX: Final = 5
SETTLED_S_MAX: Final = 30.0


def measure_steady(rate: int) -> Callable[[Options], Run]:
    """A row: ``rate`` messages per second, each due 5 s after its send."""

    def measure(options: Options) -> Run:
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            return steady_at(server, rate, options.seconds or SECONDS)

    return measure


def steady_at(server: ServerProcess, rate: int, seconds: float, *, others: int = 0) -> Run:
    """``rate`` messages per second for so long, each due 5 s after its send. `others`: see `verified`."""
    consumers = Consumers(server.address, SUBJECT)
    targets = [*consumers.targets, (steady, server.address, SUBJECT, rate, seconds, DELAY_MS)]
    before_s = server.cpu_s()
    with children(targets) as (*pulling, producer):
        for child in (*pulling, producer):
            child.tell()
        sent: Sent = producer.result()
        consumers.wait_for(sent.messages, time.time_ns() // 1_000_000 + DELAY_MS)
        received = consumers.stop(pulling)
    used_s = rounded(server.cpu_s() - before_s)
    details = {"server_cpu_s": used_s, **verified(server, received, sent.messages, others=others)}
    details["sent_rate"] = rounded(rate_of([sent]))
    return Run(details["p99_ms"], details)


def measure_thunder(messages: int) -> Callable[[Options], Run]:
    """A row: so many messages due at one whole second. The value is the time until the last one has come."""

    def measure(options: Options) -> Run:
        count = options.messages or messages
        lead_s = count / LOAD_RATE_MIN + 2
        for _ in range(TRIES_MAX):
            with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
                run = _thunder(server, count, lead_s)
            if run is not None:
                return run
            lead_s *= 2
        raise RuntimeError(f"{count} messages could not be loaded {SPARE_S:g} s before they were due")

    return measure


def _thunder(server: ServerProcess, messages: int, lead_s: float) -> Run | None:
    consumers = Consumers(server.address, SUBJECT)
    with children(consumers.targets) as pulling:
        due_ms = whole_second_ms(lead_s)
        loaded = run_together(load_targets(server, SUBJECT, messages, due_ms))
        if time.time() > due_ms / 1000 - SPARE_S:
            return None
        for child in pulling:
            child.tell()
        consumers.wait_for(messages, due_ms)
        received = consumers.stop(pulling)
    details = verified(server, received, messages)
    drain_s = float(received.late_ms.max()) / 1000
    details |= {"load_rate": rounded(rate_of(loaded)), "drain_rate": rounded(messages / drain_s)}
    return Run(drain_s, details)


def whole_second_ms(lead_s: float) -> int:
    """The first whole second that is at least ``lead_s`` away."""
    return (int(time.time() + lead_s) + 1) * 1000


def load_targets(server: ServerProcess, subject: str, messages: int, due_ms: int) -> list[tuple[Any, ...]]:
    """Producers that together send the numbers 0…messages-1 in batches of 1,000."""
    share = -(-messages // LOADERS)
    firsts = range(0, messages, share)
    return [
        (load, server.address, subject, first, min(share, messages - first), due_ms, min(1000, share))
        for first in firsts
    ]


def _settled(server: ServerProcess, messages: int) -> dict[str, Any]:
    """The status in which the outcomes of so many messages are counted. They are written behind the hand-off, so a message
    can be here before its outcome. After SETTLED_S_MAX the status as it is."""
    end_s = time.monotonic() + SETTLED_S_MAX
    while (status := server.status())["delivered"] < messages and time.monotonic() < end_s:
        time.sleep(0.05)
    return status


def verified(server: ServerProcess, received: Received, messages: int, *, others: int = 0) -> dict[str, Any]:
    """The lateness. Raises `WrongResult` unless all messages came exactly once, and the server counts the same.
    `others` were sent beside these, and are not due yet."""
    verify(received, messages)
    status, sent = _settled(server, messages), messages + others
    expect(status["accepted"] == sent, f"{sent} were sent, the server accepted {status['accepted']}")
    expect(status["delivered"] == messages, f"{messages} came, the server says delivered = {status['delivered']}")
    expect(status["early"] == 0, f"the server handed off {status['early']} messages early")
    return lateness(received)
