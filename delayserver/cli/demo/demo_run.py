"""The work of the demo: a server process, one sender, one consumer, and their measurements. Prints nothing."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import numpy as np
from numpy.typing import NDArray

from delayserver.client import Client
from delayserver.runtime.child_process import child_command
from delayserver.runtime.clock import SystemClock

SUBJECT: Final = "demo"
GROUP: Final = "demo-consumer"
BATCH: Final = 10_000
START_SECONDS_MAX: Final = 30
STOP_SECONDS_MAX: Final = 15
GRACE_MS: Final = 20_000
"""A message is missing if it has not arrived this long after the last due time: 1,000 times the expected lateness."""
LEAD_MS: Final = 500
SHOW_SECONDS: Final = 0.2
SENDING_MS_PER_BATCH: Final = 200
STRIDE: Final = 7_919
"""A prime. Message i is due at place i * STRIDE, so that the order of sending differs from the order of due times."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """The address and the data directory of the demo's server process."""

    address: str
    directory: str


@dataclass(frozen=True, slots=True)
class Measurements:
    """The measurements so far. Lateness in ms, one value per message, f64[n].

    ``dispatched_ms`` is measured by the server at hand-off, ``received_ms`` by the consumer's clock after the network.
    """

    scheduled: int
    delivered: int
    duplicates: int
    early: int
    dispatched_ms: NDArray[np.float64]
    received_ms: NDArray[np.float64]

    @property
    def missing(self) -> int:
        """Messages that have not arrived yet."""
        return self.scheduled - self.delivered

    @property
    def ok(self) -> bool:
        """True if every message arrived once, and none before it was due."""
        return not (self.missing or self.early or self.duplicates)

    def summary(self) -> dict[str, Any]:
        """The fields of ``--json``."""
        return {
            "scheduled": self.scheduled,
            "delivered": self.delivered,
            "missing": self.missing,
            "duplicates": self.duplicates,
            "early": self.early,
            "lateness_ms": quantiles(self.dispatched_ms),
            "received_lateness_ms": quantiles(self.received_ms),
            "ok": self.ok,
        }


def quantiles(lateness_ms: NDArray[np.float64]) -> dict[str, float | None]:
    """Exact p50, p99 and max in ms; None without values."""
    if not len(lateness_ms):
        return {"p50": None, "p99": None, "max": None}
    p50, p99 = np.percentile(lateness_ms, [50, 99], method="inverted_cdf").tolist()
    return {"p50": round(p50, 3), "p99": round(p99, 3), "max": round(float(lateness_ms.max()), 3)}


@contextmanager
def running_server(directory: str) -> Iterator[RunningServer]:
    """Runs a server process on a free port, with its data in ``directory``, and stops it at the end.

    If it does not start, raises `click.ClickException` with the last line of its log.
    """
    data_dir = str(Path(directory) / "data")
    log = Path(directory) / "server.log"
    command = child_command("delayserver", "serve", "--data-dir", data_dir, "--port", "0", "--json", "--http-port", "0")
    with log.open("wb") as errors:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors)
    # Kills a server that neither starts nor ends, which would block `readline` below for ever.
    watchdog = threading.Timer(START_SECONDS_MAX, process.kill)
    watchdog.start()
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        watchdog.cancel()
        if not line:
            words = log.read_text(errors="replace").strip().splitlines() or [f"no word within {START_SECONDS_MAX} s"]
            raise click.ClickException(f"the demo's server did not start: {words[-1]}")
        ready = json.loads(line)
        yield RunningServer(f"{ready['host']}:{ready['port']}", data_dir)
    finally:
        watchdog.cancel()
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Demo:
    """One run. Call `schedule`, then iterate `consume` to its end."""

    def __init__(self, address: str, messages: int, seconds: float) -> None:
        self._address = address
        self._messages = messages
        self._span_ms = seconds * 1000
        self._clock = SystemClock()
        self._seen = np.zeros(messages, np.bool_)
        self._duplicates = 0
        self._early = 0
        self._dispatched_ms: list[NDArray[np.float64]] = []
        self._received_ms: list[NDArray[np.float64]] = []
        self._first_sequence = 0
        self._end_us = 0
        self.send_ms = 0.0

    def schedule(self) -> Measurements:
        """Sends all messages, in another order than that of their due times."""
        with Client(self._address) as client:
            start_us = client.ping()
            batches = -(-self._messages // BATCH)
            first_due_ms = start_us // 1000 + LEAD_MS + batches * SENDING_MS_PER_BATCH
            place = np.arange(self._messages, dtype=np.int64) * STRIDE % self._messages
            due_ms = first_due_ms + (place * self._span_ms / self._messages).astype(np.int64)
            for start in range(0, self._messages, BATCH):
                end = min(start + BATCH, self._messages)
                bodies = [b"message %d of the demo" % number for number in range(start, end)]
                sent = client.send_columns(SUBJECT, due_ms[start:end], bodies)
                if sent.rejected:
                    raise sent.rejected[0].error
                if start == 0:
                    self._first_sequence = sent.first_sequence
            self.send_ms = (client.ping() - start_us) / 1000
        self._end_us = (int(due_ms.max()) + GRACE_MS) * 1000
        return self._progress()

    def consume(self) -> Iterator[Measurements]:
        """Pulls until all messages have arrived or GRACE_MS is over. Yields the progress about five times a second."""
        with Client(self._address) as client:
            shown_us = 0
            earlier = None
            while self._missing and self._clock.now_us() < self._end_us:
                pulled = client.pull_columns(SUBJECT, GROUP, BATCH, SHOW_SECONDS, ack=earlier)
                received_us = self._clock.now_us()
                earlier = pulled if pulled.count else None
                self._note(pulled.sequence, pulled.due_ms, pulled.dispatched_us, pulled.lateness_us, received_us)
                if received_us - shown_us > SHOW_SECONDS * 1_000_000:
                    shown_us = received_us
                    yield self._progress()
            if earlier is not None:
                client.ack(SUBJECT, GROUP, earlier)
        yield self._progress()

    @property
    def _missing(self) -> bool:
        return not bool(self._seen.all())

    def _note(
        self,
        sequence: NDArray[np.int64],
        due_ms: NDArray[np.int64],
        dispatched_us: NDArray[np.int64],
        lateness_us: NDArray[np.int64],
        received_us: int,
    ) -> None:
        rows, counts = np.unique(sequence - self._first_sequence, return_counts=True)
        self._duplicates += int(counts.sum() - len(rows)) + int(self._seen[rows].sum())
        self._seen[rows] = True
        due_us = due_ms * 1000
        # A message is early if either clock says so: the server's at hand-off, or the consumer's.
        self._early += int(((dispatched_us < due_us) | (received_us < due_us)).sum())
        self._dispatched_ms.append(lateness_us / 1000)
        self._received_ms.append((received_us - due_us) / 1000)

    def _progress(self) -> Measurements:
        return Measurements(
            scheduled=self._messages,
            delivered=int(self._seen.sum()),
            duplicates=self._duplicates,
            early=self._early,
            dispatched_ms=np.concatenate([np.empty(0), *self._dispatched_ms]),
            received_ms=np.concatenate([np.empty(0), *self._received_ms]),
        )
