"""The row `pending-10m`: the server's memory while it holds messages that are due in a day."""

from __future__ import annotations

import time
from typing import Any, Final

from ops.bench.children import run_together
from ops.bench.delivering import load_targets
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, Sent, rate_of
from ops.bench.server_process import ServerProcess, fresh_directory

MESSAGES: Final = 10_000_000
SETTLE_S: Final = 3.0
MEGABYTE: Final = 1_000_000


def measure_pending(options: Options) -> Run:
    """Measures the resident memory with a tenth of the messages and with all of them, which is the value."""
    messages = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        empty = server.memory_bytes()
        tenth = messages // 10
        hold(server, tenth)
        time.sleep(SETTLE_S)
        part = server.memory_bytes()
        results = hold(server, messages - tenth)
        time.sleep(SETTLE_S)
        full = server.memory_bytes()
        status = server.status()
    expect(status["pending"] == messages, f"{messages} were sent, the server holds {status['pending']}")
    details: dict[str, Any] = {
        "messages": messages,
        "empty_mb": rounded(empty["rss"] / MEGABYTE),
        "tenth_mb": rounded(part["rss"] / MEGABYTE),
        "anonymous_mb": rounded(full["anonymous"] / MEGABYTE),
        "peak_mb": rounded(full["peak"] / MEGABYTE),
        "bytes_per_message": rounded((full["rss"] - empty["rss"]) / messages),
        "load_rate": rounded(rate_of(results)),
    }
    return Run(full["rss"] / MEGABYTE, details)


def hold(server: ServerProcess, messages: int) -> list[Sent]:
    """Sends messages that are due one day after their send, and waits until all are replayed."""
    results: list[Sent] = run_together(load_targets(server, SUBJECT, messages, 0))
    server.wait_replayed()
    return results
