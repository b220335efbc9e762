"""The row `isolation-backlog`: p99 lateness of a quiet broker group beside a backlog, against the quiet group alone.

The backlog is very many messages of another group, which wait in memory for a slow node. They are sent in parts, with
a kill -9 of the server between them. Each start skips sequences, so those of the backlog spread over a wide range.
Windows are short and loaded shortly before they begin. So the messages of the quiet group are read from disk every few
seconds, beside the waiting rows.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, Final

from ops.bench.children import children, run_together
from ops.bench.consuming import Consumers, Received, lateness, verify
from ops.bench.delivering import LOAD_RATE_MIN, load_targets, whole_second_ms
from ops.bench.figures import Options, Run, expect
from ops.bench.producing import Sent, steady
from ops.bench.server_process import ServerProcess, free_port, fresh_directory
from ops.bench.slow_link import relay

MESSAGES: Final = 1_000_000
RATE: Final = 1000
SECONDS: Final = 25.0
PARTS: Final = 5
PART_S: Final = 3.0
"""The time allowed per part for a kill, a start and the start of the producers."""
DELAY_MS: Final = 11_000
"""Longer than a window and its load-ahead time, so that every message is read from its file."""
SETTLE_S: Final = 6.0
REPLY_AFTER_S: Final = 3.0
DRAIN_S_MAX: Final = 180.0
WAITING_SHARE_MIN: Final = 0.5
CALM, BACKLOG = "calm", "backlog"

CONFIG: Final = """
[storage]
window_ms = 5000

[wheel]
load_ahead_ms = 5000

[[groups]]
name = "calm"
nodes = ["embedded"]

[[groups]]
name = "backlog"
nodes = ["{node}"]

[[routes]]
pattern = "backlog*"
groups = ["backlog"]

[[routes]]
pattern = "*"
groups = ["calm"]
"""


def measure_backlog(options: Options) -> Run:
    """The value is the ratio of the p99 lateness of the messages due while the backlog waits."""
    messages = options.messages or MESSAGES
    seconds = options.seconds or SECONDS
    alone, _ = _measure(options, 0, seconds)
    beside, details = _measure(options, messages, seconds)
    quiet, loaded = lateness(alone), lateness(beside)
    for name in ("p50_ms", "p99_ms", "max_ms", "dispatched_p99_ms"):
        details |= {f"alone_{name}": quiet[name], f"beside_{name}": loaded[name]}
    return Run(loaded["p99_ms"] / quiet["p99_ms"], {"messages": messages, **details})


def _measure(options: Options, messages: int, seconds: float) -> tuple[Received, dict[str, Any]]:
    with fresh_directory(options.data_dir) as near, fresh_directory(options.data_dir) as far:
        with ServerProcess(far) as node:
            port = free_port()
            with children([(relay, port, node.address, REPLY_AFTER_S)]) as (link,):
                link.tell()
                config = f"{near}/config.toml"
                Path(config).write_text(CONFIG.format(node=f"127.0.0.1:{port}"))
                with ServerProcess(near, config) as server:
                    received, details = _run(server, messages, seconds)
                    link.tell()  # ends the delay of replies
                    _verify_all(server, node, messages, received)
                link.tell()
                link.result()
    return received, details


def _run(server: ServerProcess, messages: int, seconds: float) -> tuple[Received, dict[str, Any]]:
    if messages:
        _load(server, messages)
    calm = Consumers(server.address, CALM)
    targets = [*calm.targets, (steady, server.address, CALM, RATE, seconds, DELAY_MS)]
    with children(targets) as (consumer, producer):
        consumer.tell()
        producer.tell()
        sent: Sent = producer.result()
        before = server.status()
        calm.wait_for(sent.messages, time.time_ns() // 1_000_000 + DELAY_MS)
        after = server.status()
        received = calm.stop([consumer])
    verify(received, sent.messages)
    waiting = [status["groups"][BACKLOG]["waiting"] for status in (before, after)]
    expect(
        min(waiting) >= messages * WAITING_SHARE_MIN,
        f"only {min(waiting)} of {messages} messages waited in memory: the node was too quick",
    )
    loads = after["wheel"]["loads"] - before["wheel"]["loads"]
    return received, {"waiting_begin": waiting[0], "waiting_end": waiting[1], "loads_after_send": loads}


def _load(server: ServerProcess, messages: int) -> None:
    """Sends the backlog, all due at one whole second, and waits until it is due and in memory."""
    due_ms = whole_second_ms(messages / LOAD_RATE_MIN + PARTS * PART_S)
    part = -(-messages // PARTS)
    for first in range(0, messages, part):
        if first:
            server.kill()
            server.start()
        run_together(load_targets(server, BACKLOG, min(part, messages - first), due_ms))
    expect(time.time() < due_ms / 1000, "the backlog could not be loaded in time")
    time.sleep(max(due_ms / 1000 - time.time(), 0) + SETTLE_S)


def _verify_all(server: ServerProcess, node: ServerProcess, messages: int, received: Received) -> None:
    """Raises `WrongResult` unless every message of the backlog reached the node's store exactly once."""
    expected = messages + len(received.number)
    end_s = time.monotonic() + DRAIN_S_MAX
    while (delivered := server.status()["delivered"]) < expected and time.monotonic() < end_s:
        time.sleep(0.2)
    expect(delivered == expected, f"{expected} messages were sent, the server says delivered = {delivered}")
    stored = node.status()["broker"]["delivered"]
    expect(stored == messages, f"{messages} messages were routed to the node, it stored {stored}")
    suppressed = server.status()["groups"][BACKLOG]["duplicates_suppressed"]
    expect(suppressed == 0, f"{suppressed} messages of the backlog were delivered twice")
