"""Data directories made by a real server process: a little of everything that can happen to a message."""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import subprocess
import time
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.queues.run_blocks import RunBlocks
from delayserver.broker.reads import Reads
from delayserver.cli import main
from delayserver.client import Client
from store.disk.filesystem import RealFileSystem
from store.logs.due_windows import DAY_MS
from store.records.batches import RunBatch
from store.tables import checkpoint
from store.tables.ledger import Ledger
from tests.forked import Program

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 60
MINUTE_MS = 60_000
OVERDUE_MS = 1_000


@dataclass(slots=True)
class Made:
    """A directory with what was put into it. `receipts` by the name of what became of the message."""

    path: Path
    server_id: str
    receipts: dict[str, str] = field(default_factory=dict)
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The JSON objects that it printed."""
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def last(self) -> dict[str, Any]:
        """The last of them."""
        return self.rows[-1]

    def kinds(self) -> list[str]:
        """The kinds of the findings of a check, sorted."""
        return sorted({finding["kind"] for finding in self.last["findings"]})


class ServerProcess:
    """`delayserver serve` on a directory, killed at the end of the block unless it was stopped."""

    def __init__(self, path: Path, *arguments: str) -> None:
        self.process = Program(
            ["serve", "--data-dir", str(path), "--port", "0", "--http-port", "0", "--json", *arguments],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"the server did not start: {self.process.communicate()[1].decode()}")
        ready = json.loads(line)
        self.address = f"{ready['host']}:{ready['port']}"
        self.server_id: str = ready["server_id"]

    def __enter__(self) -> ServerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)

    def stop(self, number: int = signal.SIGTERM) -> str:
        """Send a signal and wait for the end; what was written to stderr."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.communicate(timeout=SECONDS_MAX)[1].decode() if not self.process.stderr.closed else ""  # type: ignore[union-attr]


def recover(*arguments: str, stdin: bytes = b"") -> Done:
    """Run `delayserver recover …` to its end."""
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR")}
    process = Program(
        ["recover", *arguments],
        cwd=ROOT,
        env=environment | {"TZ": "UTC"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    out, err = process.communicate(stdin, timeout=SECONDS_MAX)
    return Done(process.returncode, out.decode(), err.decode())


def in_process(*arguments: str) -> Done:
    """The same command in this process: a tenth of the time, for tables of many cases."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = main(["recover", *arguments])
    return Done(code, out.getvalue(), err.getvalue())


# Small files, so that copies of a directory cost little.
SMALL = (
    *("--set", "storage.message_log_segment_bytes=64KiB", "--set", "broker.segment_bytes=64KiB"),
    *("--set", "storage.dispatch_reserve_bytes=64KiB"),
)


# Windows of a second that are retired at once, while message_log keeps its sealed segments.
AGED = (
    *SMALL,
    *(
        "--set",
        "storage.window_ms=1s",
        "--set",
        "storage.retention_ms=0",
        "--set",
        "storage.checkpoint_interval_ms=200",
    ),
)


def make_aged(path: Path) -> Made:
    """A directory with several sealed segments, retired windows in the ledger, and a spilled block of a consume queue."""
    with ServerProcess(path, *AGED) as server, Client(server.address) as client:
        made = Made(path, server.server_id)
        now_ms = int(time.time() * 1000)
        # A window that is retired takes no more messages: there is time to send all before the first one is due.
        start_ms = now_ms - now_ms % 1000 + 6000
        for step in range(4):  # two in each of two windows
            batch = client.send_columns("aged", [start_ms + 500 * step] * 40, [b"x" * 1000] * 40)
            made.accepted += len(batch.sequence)
            client.lookup(batch.receipts()[0])
        kept = client.send_columns("kept", [now_ms + 3_600_000] * 10, [b"later"] * 10)
        made.accepted += len(kept.sequence)
        deadline = time.monotonic() + SECONDS_MAX
        while _ledger_windows(path, int(server.server_id, 16)) < 2 or _names_window_before(path, start_ms + 2000):
            assert time.monotonic() < deadline, "no window was retired"
            time.sleep(0.1)
        server.stop()
    _spill(path, int(made.server_id, 16))
    return made


def _ledger_windows(path: Path, server_id: int) -> int:
    ledger = Ledger.open(RealFileSystem(), str(path), server_id, write=False)
    ledger.close()
    return len(ledger)


def _names_window_before(path: Path, end_ms: int) -> bool:
    """True if a checkpoint names files of such a window: it was written before they were retired, or between."""
    found = checkpoint.read(RealFileSystem(), f"{path}/{checkpoint.FILE_NAME}")
    return found is None or bool((found.schedule.start_ms < end_ms).any() or (found.dispatch.start_ms < end_ms).any())


def _spill(path: Path, server_id: int) -> None:
    """Two blocks as a queue of many runs leaves them; none of them is named by the checkpoint."""
    blocks = RunBlocks.open(RealFileSystem(), f"{path}/broker/queue", server_id, BrokerLimits(), 0, Reads())
    for first in (0, 4):
        blocks.append(
            RunBatch.filled(
                4,
                position=np.arange(first, first + 4),
                store_offset=np.array([64, 64, 128, 64]),
                row_count=np.array([1, 2, 1, 1]),
            )
        )
        blocks.tail().sync()
    blocks.close()


def make(path: Path, *arguments: str, number: int = signal.SIGTERM) -> Made:
    """Messages of all outcomes, near and far, then a stop by the signal."""
    with ServerProcess(path, *arguments) as server, Client(server.address) as client:
        made = Made(path, server.server_id)
        fill(client, made)
        wait_for_outcomes(client)
        server.stop(number)
    return made


def fill(client: Client, made: Made) -> None:
    """Delivered, cancelled, deduplicated, expired, rescheduled, pending soon, pending beyond the fine horizon."""
    now_ms = client.ping() // 1000
    if now_ms % MINUTE_MS < OVERDUE_MS:  # what is overdue would lie in the minute before
        time.sleep(OVERDUE_MS / 1000)
        now_ms += OVERDUE_MS
    hour_ms = now_ms + 3_600_000
    far_ms = now_ms - now_ms % DAY_MS + 20 * DAY_MS
    sent = client.send_columns("orders", now_ms - OVERDUE_MS, [b"body %04d" % i for i in range(300)])
    made.accepted += len(sent.sequence)
    made.receipts["delivered"] = sent.receipts()[7]
    near = client.send_columns(["orders", "mails"], hour_ms, [b"x"] * 40, subject_index=[0, 1] * 20)
    made.accepted += len(near.sequence)
    client.lookup(near.receipts()[0])  # answered after its replay: the next ones are another record of the file
    far = client.send_columns("far", [far_ms + 60_000 * i for i in range(50)], [b"far away"] * 50)
    made.accepted += len(far.sequence)
    made.receipts["far"] = far.receipts()[3]
    made.receipts["far_cancelled"] = far.receipts()[4]
    for name, due_ms in (("cancelled", hour_ms), ("moved", hour_ms), ("original", hour_ms), ("pending", hour_ms)):
        made.receipts[name] = client.send("single", name, due_ms=due_ms, message_id=name).receipt
    made.receipts["copy"] = client.send("single", "original", due_ms=hour_ms, message_id="original").receipt
    expired = client.send("single", "expired", due_ms=now_ms - 10, expires_ms=now_ms - 5, message_id="e")
    made.receipts["expired"] = expired.receipt
    made.accepted += 6
    client.cancel(made.receipts["cancelled"])
    client.cancel(made.receipts["far_cancelled"])
    moved = client.reschedule(made.receipts["moved"], due_ms=hour_ms + 120_000)
    assert moved.new_receipt is not None
    made.receipts["moved_to"] = moved.new_receipt
    made.accepted += 1
    deliveries = client.pull("orders", "workers", 5, SECONDS_MAX)
    client.nack("orders", "workers", [deliveries[0].delivery], timedelta(0))
    client.ack("orders", "workers", [delivery.delivery for delivery in deliveries[1:]])
    # The first one is stored a second time.
    left, deadline = 300 - len(deliveries) + 1, time.monotonic() + SECONDS_MAX
    while [group.lag for group in client.groups("orders")] != [left]:
        assert time.monotonic() < deadline, client.groups("orders")
        time.sleep(0.02)


def wait_for_outcomes(client: Client) -> None:
    """Return when everything that is due has its outcome, and a checkpoint had the time to follow."""
    deadline = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline:
        status = client.status()
        if status["delivered"] >= 300 and status["cancelled"] >= 3 and status["expired"] and status["deduplicated"]:
            return
        time.sleep(0.02)
    raise AssertionError("the server did not come to an end with its messages")


def copy(made: Made, target: Path) -> Made:
    """The same directory once more, to be damaged."""
    shutil.copytree(made.path, target)
    return Made(target, made.server_id, made.receipts, made.accepted)
