"""Rows `ingest-*`: messages per second that are acknowledged as durable, from C connections with batches of B."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from ops.bench.children import run_together
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import HOUR_MS, Sent, ingest, rate_of
from ops.bench.server_process import ServerProcess, fresh_directory

YEAR_MS: Final = 365 * 86_400_000
SECONDS: Final = 4.0
SPREAD_SECONDS: Final = 10.0
SUSTAINED_SECONDS: Final = 60.0
LAG_BYTES_MAX: Final = 512 * 1024 * 1024 + 64 * 1024 * 1024  # the server's bound, plus the bound of gathered bytes
FILES_WATCH_S: Final = 0.05


@dataclass(slots=True)
class Watch:
    """The maxima of the replay lag and of the open files while the clients run."""

    server: ServerProcess
    lag_bytes_max: int = 0
    open_files_max: int = 0
    samples: int = field(default=0)

    def lag(self) -> None:
        """Samples the replay lag and the open files."""
        lag_bytes = self.server.status()["storage"]["replay_lag_bytes"]
        self.lag_bytes_max = max(self.lag_bytes_max, lag_bytes)
        self.files()

    def files(self) -> None:
        """Samples the server's open files."""
        self.open_files_max = max(self.open_files_max, self.server.open_files())
        self.samples += 1


def measure_ingest(connections: int, batch: int) -> Callable[[Options], Run]:
    """A row: only ingest, of messages due one day ahead."""

    def measure(options: Options) -> Run:
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            targets = _targets(server, connections, batch, options.seconds or SECONDS)
            before_s = server.cpu_s()
            results = run_together(targets)
            server_cpu_s = server.cpu_s() - before_s
            lag_s = server.wait_replayed()
            details = _verified(server, results)
        return Run(rate_of(results), {**details, "server_cpu_s": rounded(server_cpu_s), "lag_s": rounded(lag_s)})

    return measure


def measure_sustained(options: Options) -> Run:
    """The row `ingest-sustained`: the rate over the time until everything is replayed."""
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        run = _until_replayed(server, options.seconds or SUSTAINED_SECONDS, 0)
    lag_bytes_max = run.details["lag_bytes_max"]
    expect(lag_bytes_max <= LAG_BYTES_MAX, f"the replayer lagged {lag_bytes_max} bytes, above the bound")
    return run


def measure_spread(options: Options) -> Run:
    """The row `ingest-spread`: due times spread uniformly over one year against one hour, both with the replay."""
    rates: dict[str, Any] = {}
    for name, spread_ms in (("hour", HOUR_MS), ("year", YEAR_MS)):
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            run = _until_replayed(server, options.seconds or SPREAD_SECONDS, spread_ms)
        rates[f"{name}_rate"] = rounded(run.value)
        rates |= {f"{name}_{key}": run.details[key] for key in ("acked_rate", "messages", "open_files_max")}
    return Run(rates["year_rate"] / rates["hour_rate"], rates)


def _until_replayed(server: ServerProcess, seconds: float, spread_ms: int) -> Run:
    watch = Watch(server)
    targets = _targets(server, 8, 1000, seconds, spread_ms)
    results = run_together(targets, watch.files if spread_ms else watch.lag, FILES_WATCH_S if spread_ms else 0.25)
    watch.lag()
    server.wait_replayed()
    elapsed = time.perf_counter() - min(sent.begin_s for sent in results)
    watch.files()
    details = _verified(server, results)
    extra = {
        "acked_rate": rounded(rate_of(results)),
        "seconds": rounded(elapsed),
        "lag_bytes_max": watch.lag_bytes_max,
        "open_files_max": watch.open_files_max,
    }
    return Run(details["messages"] / elapsed, {**details, **extra})


def _targets(
    server: ServerProcess, connections: int, batch: int, seconds: float, spread_ms: int = 0
) -> list[tuple[Any, ...]]:
    return [(ingest, server.address, batch, seconds, spread_ms)] * connections


def _verified(server: ServerProcess, results: list[Sent]) -> dict[str, Any]:
    """Details of a run. Raises `WrongResult` unless the server has accepted and holds exactly the sent messages."""
    messages = sum(sent.messages for sent in results)
    status = server.status()
    for name in ("accepted", "pending"):
        expect(status[name] == messages, f"{messages} were sent, but the server says {name} = {status[name]}")
    return {
        "messages": messages,
        "call_p50_ms": rounded(sum(sent.call_p50_ms for sent in results) / len(results)),
        "call_p99_ms": rounded(max(sent.call_p99_ms for sent in results)),
        "messages_per_commit": rounded(messages / max(status["storage"]["group_commits"], 1)),
    }
