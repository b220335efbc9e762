"""Client processes that send. Batches are columns with prepared bodies, so that the client does not limit the rate."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.client import Client
from ops.bench.bodies import BODY_BYTES, make_bodies, write_bodies
from ops.bench.children import Gate
from ops.bench.figures import expect

DAY_MS: Final = 86_400_000
HOUR_MS: Final = 3_600_000
SUBJECT: Final = "bench"
TICK_S: Final = 0.01
TIMEOUT_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Sent:
    """The result of one producer: acknowledged messages, begin and end (monotonic), and the duration of calls."""

    messages: int
    begin_s: float
    end_s: float
    call_p50_ms: float
    call_p99_ms: float


def open_client(address: str) -> Client:
    """A client without retries. It makes no ids, and any failure fails the run. A token may follow the address, behind a
    `#`."""
    place, _, token = address.partition("#")
    client = Client(place, timeout_s=TIMEOUT_S, retries=0, token=token or None)
    client.connect()
    return client


def ingest(gate: Gate, address: str, batch: int, seconds: float, spread_ms: int) -> Sent:
    """Sends batches one after the other for some time, due one day ahead. With ``spread_ms`` the due times are spread
    uniformly over that time, from an hour ahead on."""
    chance = np.random.default_rng()
    blob = make_bodies(batch).tobytes()
    calls = []
    with open_client(address) as client:
        gate.wait()
        begin = now = time.perf_counter()
        while now - begin < seconds:
            ahead_ms = time.time_ns() // 1_000_000 + (HOUR_MS if spread_ms else DAY_MS)
            if batch == 1 and not spread_ms:
                client.send(SUBJECT, blob, due_ms=ahead_ms)
            else:
                due_ms = ahead_ms + chance.integers(0, spread_ms, batch) if spread_ms else ahead_ms
                send_batch(client, SUBJECT, due_ms, blob, batch)
            before, now = now, time.perf_counter()
            calls.append(now - before)
    return sent_of(len(calls) * batch, begin, now, calls)


def send_batch(client: Client, subject: str, due_ms: NDArray[np.int64] | int, blob: bytes, count: int) -> int:
    """Sends ``count`` bodies and returns the first sequence. Raises `WrongResult` unless all are accepted."""
    sent = client.send_columns(subject, due_ms, blob, body_length=BODY_BYTES, count=count)
    expect(sent.accepted == count, f"{sent.accepted} of {count} accepted; first refusal: {sent.rejected[:1]}")
    return sent.first_sequence


def load(gate: Gate, address: str, subject: str, first_number: int, messages: int, due_ms: int, batch: int) -> Sent:
    """Sends messages with numbers from ``first_number`` on, all due at ``due_ms`` (0: one day after each send)."""
    bodies = make_bodies(batch)
    calls = []
    done = 0
    with open_client(address) as client:
        gate.wait()
        begin = now = time.perf_counter()
        while done < messages:
            count = min(batch, messages - done)
            due = due_ms or time.time_ns() // 1_000_000 + DAY_MS
            send_batch(client, subject, due, write_bodies(bodies[:count], due, first_number + done), count)
            done += count
            before, now = now, time.perf_counter()
            calls.append(now - before)
    return sent_of(done, begin, now, calls)


def steady(gate: Gate, address: str, subject: str, rate: int, seconds: float, delay_ms: int) -> Sent:
    """Sends at a rate, in ticks of 10 ms, each message due ``delay_ms`` after its send. Falls behind without bursts."""
    total = int(rate * seconds)
    bodies = make_bodies(1000)
    calls = []
    done = 0
    with open_client(address) as client:
        gate.wait()
        begin = now = time.perf_counter()
        while done < total:
            count = min(int(rate * (now - begin)) + 1 - done, len(bodies), total - done)
            if count > 0:
                due_ms = (time.time_ns() + 999_999) // 1_000_000 + delay_ms
                send_batch(client, subject, due_ms, write_bodies(bodies[:count], due_ms, done), count)
                done += count
                calls.append(time.perf_counter() - now)
            time.sleep(TICK_S)
            now = time.perf_counter()
    return sent_of(done, begin, now, calls)


def sent_of(messages: int, begin_s: float, end_s: float, calls: list[float]) -> Sent:
    """The result of a producer whose calls took so long."""
    p50_ms, p99_ms = (np.percentile(calls, [50, 99]) * 1000).tolist()
    return Sent(messages, begin_s, end_s, p50_ms, p99_ms)


def rate_of(results: list[Sent]) -> float:
    """Messages per second of producers that ran in parallel."""
    elapsed = max(sent.end_s for sent in results) - min(sent.begin_s for sent in results)
    return sum(sent.messages for sent in results) / elapsed
