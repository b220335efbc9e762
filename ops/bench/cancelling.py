"""The row `cancel`: how many messages a second are cancelled, durably, in batches of 1,000 receipts; and as columns."""

from __future__ import annotations

import time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.client import Client, ColumnsSent, DelayServerError, Outcome
from ops.bench.bodies import BODY_BYTES, make_bodies
from ops.bench.children import Gate, children
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import HOUR_MS, SUBJECT, Sent, open_client, rate_of
from ops.bench.server_process import ServerProcess, fresh_directory

MESSAGES: Final = 800_000  # half of them by receipts, half as columns
BATCH: Final = 1000
CONNECTIONS: Final = 4


def measure_cancel(options: Options) -> Run:
    """Both forms after each other on one server; the value is that of the receipts."""
    share = max((options.messages or MESSAGES) // (2 * CONNECTIONS), 1)
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        receipts = _cancel_all(server, share, as_columns=False)
        columns = _cancel_all(server, share, as_columns=True)
        status = server.status()
    messages = 2 * CONNECTIONS * share
    for name, value in (("accepted", messages), ("cancelled", messages), ("pending", 0), ("delivered", 0)):
        expect(status[name] == value, f"all {messages} were cancelled, but the server says {name} = {status[name]}")
    details = {
        "messages": messages,
        "columns_rate": rounded(rate_of(columns)),
        "call_p50_ms": rounded(float(np.median([sent.call_p50_ms for sent in receipts]))),
        "call_p99_ms": rounded(max(sent.call_p99_ms for sent in receipts)),
        "columns_call_p50_ms": rounded(float(np.median([sent.call_p50_ms for sent in columns]))),
    }
    return Run(rate_of(receipts), details)


def _cancel_all(server: ServerProcess, share: int, *, as_columns: bool) -> list[Sent]:
    targets = [(cancel, server.address, share, as_columns)] * CONNECTIONS
    with children(targets) as started:
        # They have sent their messages before the gate. Waiting in cancels for the replayer is not what is measured.
        server.wait_replayed()
        for child in started:
            child.tell()
        results: list[Sent] = [child.result() for child in started]
    _wait_cancelled(server)
    return results


def _wait_cancelled(server: ServerProcess) -> None:
    server.wait_replayed()
    # Outcomes are written behind the answer; the counts are complete when none waits.
    while server.status()["storage"]["outcomes_waiting"]:
        time.sleep(0.01)


def cancel(gate: Gate, address: str, messages: int, as_columns: bool) -> Sent:
    """Send messages that are due uniformly over an hour, an hour ahead; then cancel all of them."""
    calls: list[float] = []
    with open_client(address) as client:
        batches = [_send(client, min(BATCH, messages - first)) for first in range(0, messages, BATCH)]
        receipts = [sent.receipts() for sent in batches]
        gate.wait()
        begin = now = time.perf_counter()
        for sent, names in zip(batches, receipts, strict=True):
            if as_columns:
                outcomes = client.cancel_columns(sent.due_ms, sent.sequence)
                _expect_cancelled(outcomes == int(Outcome.CANCELLED))
            else:
                results = client.cancel_many(names)
                _expect_cancelled(
                    np.array([not isinstance(r, DelayServerError) and r.outcome is Outcome.CANCELLED for r in results])
                )
            before, now = now, time.perf_counter()
            calls.append(now - before)
    p50_ms, p99_ms = (np.percentile(calls, [50, 99]) * 1000).tolist()
    return Sent(messages, begin, now, p50_ms, p99_ms)


def _send(client: Client, count: int) -> ColumnsSent:
    due_ms = time.time_ns() // 1_000_000 + HOUR_MS + np.random.default_rng().integers(0, HOUR_MS, count)
    sent = client.send_columns(SUBJECT, due_ms, make_bodies(count).tobytes(), body_length=BODY_BYTES, count=count)
    expect(sent.accepted == count, f"{sent.accepted} of {count} accepted; first refusal: {sent.rejected[:1]}")
    return sent


def _expect_cancelled(cancelled: NDArray[np.bool_]) -> None:
    expect(bool(cancelled.all()), f"{int((~cancelled).sum())} of {len(cancelled)} pending messages were not cancelled")
