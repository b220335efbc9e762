"""The row `cancel`: durable cancels per second in batches of 1,000 receipts.

The messages are due half an hour after their send ("the order is paid"). Also measured: the columnar form, and receipts
of messages with due times spread over an hour, so that each batch touches sixty files.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.client import CancelResult, Client, ColumnsSent, Outcome
from ops.bench.bodies import BODY_BYTES, make_bodies
from ops.bench.children import Gate, children
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import HOUR_MS, SUBJECT, Sent, open_client, rate_of
from ops.bench.server_process import ServerProcess, fresh_directory

MESSAGES: Final = 1_000_000  # two fifths each by receipts and as columns, a fifth by receipts of spread due times
BATCH: Final = 1000
CONNECTIONS: Final = 4
DELAY_MS: Final = 30 * 60_000


@dataclass(frozen=True, slots=True)
class Manner:
    """The form of the cancels, and the time over which due times are spread uniformly (0: all have the same delay)."""

    as_columns: bool
    spread_ms: int


RECEIPTS, COLUMNS, SPREAD = Manner(False, 0), Manner(True, 0), Manner(False, HOUR_MS)


def measure_cancel(options: Options) -> Run:
    """Measures all manners in turn on one server. The value is that of the receipts."""
    fifth = max((options.messages or MESSAGES) // (5 * CONNECTIONS), 1)
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        receipts = _cancel_all(server, 2 * fifth, RECEIPTS)
        columns = _cancel_all(server, 2 * fifth, COLUMNS)
        spread = _cancel_all(server, fifth, SPREAD)
        status = server.status()
    messages = 5 * CONNECTIONS * fifth
    for name, value in (("accepted", messages), ("cancelled", messages), ("pending", 0), ("delivered", 0)):
        expect(status[name] == value, f"all {messages} were cancelled, but the server says {name} = {status[name]}")
    details = {
        "messages": messages,
        "columns_rate": rounded(rate_of(columns)),
        "spread_rate": rounded(rate_of(spread)),
        "call_p50_ms": rounded(float(np.median([sent.call_p50_ms for sent in receipts]))),
        "call_p99_ms": rounded(max(sent.call_p99_ms for sent in receipts)),
    }
    return Run(rate_of(receipts), details)


def _cancel_all(server: ServerProcess, share: int, manner: Manner) -> list[Sent]:
    targets = [(cancel, server.address, share, manner)] * CONNECTIONS
    with children(targets) as started:
        # The clients have sent their messages before the gate. Waiting here keeps the replay out of the measurement.
        server.wait_replayed()
        for child in started:
            child.tell()
        results: list[Sent] = [child.result() for child in started]
    _wait_cancelled(server)
    return results


def _wait_cancelled(server: ServerProcess) -> None:
    server.wait_replayed()
    # Outcomes are written after the answer, so the counts are complete when none waits.
    while server.status()["storage"]["outcomes_waiting"]:
        time.sleep(0.01)


def cancel(gate: Gate, address: str, messages: int, manner: Manner) -> Sent:
    """Sends messages due in half an hour, then cancels all of them in the order of sending."""
    calls: list[float] = []
    with open_client(address) as client:
        batches = [_send(client, min(BATCH, messages - first), manner) for first in range(0, messages, BATCH)]
        receipts = [sent.receipts() for sent in batches]
        gate.wait()
        begin = now = time.perf_counter()
        for sent, names in zip(batches, receipts, strict=True):
            if manner.as_columns:
                cancelled = client.cancel_columns(sent.due_ms, sent.sequence) == int(Outcome.CANCELLED)
            else:
                results = client.cancel_many(names)
                cancelled = np.array([isinstance(r, CancelResult) and r.outcome is Outcome.CANCELLED for r in results])
            _expect_cancelled(cancelled)
            before, now = now, time.perf_counter()
            calls.append(now - before)
    p50_ms, p99_ms = (np.percentile(calls, [50, 99]) * 1000).tolist()
    return Sent(messages, begin, now, p50_ms, p99_ms)


def _send(client: Client, count: int, manner: Manner) -> ColumnsSent:
    due_ms: NDArray[np.int64] | int = time.time_ns() // 1_000_000 + DELAY_MS
    if manner.spread_ms:
        due_ms = due_ms + np.random.default_rng().integers(0, manner.spread_ms, count)
    sent = client.send_columns(SUBJECT, due_ms, make_bodies(count).tobytes(), body_length=BODY_BYTES, count=count)
    expect(sent.accepted == count, f"{sent.accepted} of {count} accepted; first refusal: {sent.rejected[:1]}")
    return sent


def _expect_cancelled(cancelled: NDArray[np.bool_]) -> None:
    expect(bool(cancelled.all()), f"{int((~cancelled).sum())} of {len(cancelled)} pending messages were not cancelled")
