"""The rows `after-downtime-*`: a server starts with a backlog after days of downtime, while fresh messages come in.

A server whose clock is behind accepts messages that are due during the downtime, and stops. The next server has the
right clock.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from delayserver.client import Client
from ops.bench.bodies import make_bodies, write_bodies
from ops.bench.children import children
from ops.bench.consuming import Consumers, Received, verify
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.past_server import READY
from ops.bench.producing import DAY_MS, Sent, open_client, send_batch, steady
from ops.bench.server_process import ROOT, ServerProcess, fresh_directory, python_path

OLD, FRESH = "old", "fresh"
BATCH: Final = 1000
SPARE_MS: Final = 60_000
"""The last message of the backlog is due this long before the next start."""
RATE: Final = 100
FRESH_DELAY_MS: Final = 50
FRESH_S: Final = 8.0
FIRST_S: Final = 2.0
"""Fresh messages sent within this time after the start count as the first ones."""
SETTLED_S_MAX: Final = 120.0


def measure_downtime(days: int, messages: int) -> Callable[[Options], Run]:
    """A row: so many messages due over so many days. The value is the time from "ready" until the last one came."""

    def measure(options: Options) -> Run:
        count = options.messages or messages
        seconds = options.seconds or FRESH_S
        with fresh_directory(options.data_dir) as directory:
            server = ServerProcess(directory)
            first_ms = _fill(server, count, days * DAY_MS)
            with server:
                return _run(server, count, seconds, first_ms)

    return measure


def _fill(server: ServerProcess, count: int, down_ms: int) -> int:
    """Sends the backlog to a server whose clock is behind, and stops it. Returns the first possible due time in ms."""
    command = [sys.executable, "-m", "ops.bench.past_server", f"{server.directory}/data"]
    command += [server.address.rpartition(":")[2], str(down_ms)]
    environment = {"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT, env=environment) as past:
        assert past.stdout is not None
        expect(past.stdout.readline().decode().strip() == READY, "the server of the past did not start")
        chance = np.random.default_rng()
        first_ms = time.time_ns() // 1_000_000 - down_ms + SPARE_MS
        with open_client(server.address) as client:
            for number in range(0, count, BATCH):
                rows = min(BATCH, count - number)
                due_ms = first_ms + chance.integers(0, down_ms - 2 * SPARE_MS, rows)
                send_batch(client, OLD, due_ms, write_bodies(make_bodies(rows), due_ms, number), rows)
            _wait_replayed(client)
        past.send_signal(signal.SIGTERM)
        expect(past.wait(60) == 0, "the server of the past did not stop cleanly")
    return first_ms


def _wait_replayed(client: Client) -> None:
    end_s = time.monotonic() + SETTLED_S_MAX
    while client.status()["storage"]["replay_lag_bytes"]:
        expect(time.monotonic() < end_s, "the replayer does not come to its end")
        time.sleep(0.02)


def _run(server: ServerProcess, count: int, seconds: float, first_ms: int) -> Run:
    began_s = time.time()
    old, fresh = Consumers(server.address, OLD), Consumers(server.address, FRESH)
    targets = [*old.targets, *fresh.targets, (steady, server.address, FRESH, RATE, seconds, FRESH_DELAY_MS)]
    with children(targets) as (old_child, fresh_child, producer):
        for child in (old_child, fresh_child, producer):
            child.tell()
        sent: Sent = producer.result()
        fresh.wait_for(sent.messages, time.time_ns() // 1_000_000 + FRESH_DELAY_MS)
        old.wait_for(count, first_ms)
        received, news = old.stop([old_child]), fresh.stop([fresh_child])
    verify(received, count)
    verify(news, sent.messages)
    _wait_delivered(server, count + sent.messages)
    drain_s = float(received.received_us.max()) / 1e6 - began_s
    details: dict[str, Any] = {"messages": count, "fresh_messages": sent.messages, **_waits(news)}
    begin_s = time.monotonic()
    expect(server.stop() == 0, "the server did not stop cleanly")
    details["stop_s"] = rounded(time.monotonic() - begin_s)
    return Run(drain_s, details)


def _wait_delivered(server: ServerProcess, count: int) -> None:
    """Waits until the server counts all messages as delivered, which is after the consumer receives them."""
    end_s = time.monotonic() + SETTLED_S_MAX
    while (delivered := server.status()["delivered"]) != count:
        expect(time.monotonic() < end_s, f"the server says delivered = {delivered}")
        time.sleep(0.02)


def _waits(news: Received) -> dict[str, float]:
    """The longest waits of fresh messages: of the first ones, and of all others."""
    late, due_ms = news.late_ms, news.due_ms
    first = due_ms < int(due_ms.min()) + FIRST_S * 1000
    return {
        "fresh_first_max_ms": rounded(float(late[first].max())),
        "fresh_later_max_ms": rounded(float(late[~first].max(initial=0))),
        "fresh_p50_ms": rounded(float(np.median(late))),
    }
