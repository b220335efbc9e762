"""Row `push-R`: from the publish of a message to the handler of a listener, at a steady rate."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.client import AsyncClient, Delivery, Listener
from ops.bench.children import CONTEXT, Gate, children
from ops.bench.consuming import wait_for_counts
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, Sent, open_client, sent_of
from ops.bench.server_process import ServerProcess, fresh_directory

GROUP: Final = "bench"
SECONDS: Final = 10.0
TICK_S: Final = 0.002
BODY: Final = np.dtype([("sent_us", "<i8"), ("number", "<i8"), ("filler", "V84")])
"""Bodies of 100 bytes that hold the time of their send."""


@dataclass(frozen=True, slots=True)
class Handled:
    """Columns i64[n] of messages in the order of their handlers: number, begin of the publish, begin of the handler, arrival
    in the store. ``cpu_s``: what the process of the listener used."""

    number: NDArray[np.int64]
    sent_us: NDArray[np.int64]
    handled_us: NDArray[np.int64]
    dispatched_us: NDArray[np.int64]
    cpu_s: float


def push(gate: Gate, address: str, subject: str, rate: int, seconds: float) -> Sent:
    """Publishes messages at a rate, in ticks."""
    total = int(rate * seconds)
    calls = []
    done = 0
    with open_client(address) as client:
        gate.wait()
        begin = now = time.perf_counter()
        while done < total:
            count = min(int(rate * (now - begin)) + 1 - done, 1000, total - done)
            if count > 0:
                bodies = np.zeros(count, BODY)
                bodies["number"] = np.arange(done, done + count)
                bodies["sent_us"] = time.time_ns() // 1000
                sent = client.publish_columns(subject, bodies.tobytes(), body_length=BODY.itemsize, count=count)
                expect(sent.accepted == count, f"{sent.accepted} of {count} accepted: {sent.rejected[:1]}")
                done += count
                calls.append(time.perf_counter() - now)
            time.sleep(TICK_S)
            now = time.perf_counter()
    return sent_of(done, begin, now, calls)


def handle(gate: Gate, address: str, subject: str, counts: Any) -> Handled:
    """Handles messages by a listener until the call to stop. ``counts[0]`` counts them."""
    return asyncio.run(_handle(gate, address, subject, counts))


async def _handle(gate: Gate, address: str, subject: str, counts: Any) -> Handled:
    bodies: list[bytes] = []
    handled_us: list[int] = []
    dispatched_us: list[int] = []
    listener = Listener(GROUP)

    @listener(subject)
    async def handler(message: Delivery) -> None:
        handled_us.append(time.time_ns() // 1000)
        bodies.append(message.body)
        dispatched_us.append(message.dispatched_us)
        counts[0] += 1

    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()

    def wait_for_the_call() -> None:
        gate.take()
        loop.call_soon_threadsafe(stopped.set)

    async with AsyncClient(address) as client, listener.running(client):
        await asyncio.to_thread(gate.wait)
        before_s = time.process_time()
        threading.Thread(target=wait_for_the_call, daemon=True).start()
        await stopped.wait()
        cpu_s = time.process_time() - before_s
    rows = np.frombuffer(b"".join(bodies), BODY)
    handled, dispatched = np.array(handled_us, np.int64), np.array(dispatched_us, np.int64)
    return Handled(rows["number"].copy(), rows["sent_us"].copy(), handled, dispatched, cpu_s)


def measure_push(rate: int) -> Callable[[Options], Run]:
    """A row: ``rate`` messages a second. The value is the p99 from the publish of a message until its handler begins."""

    def measure(options: Options) -> Run:
        seconds = options.seconds or SECONDS
        counts = CONTEXT.RawArray("q", 1)
        with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
            before_s = server.cpu_s()
            targets: list[tuple[Any, ...]] = [
                (handle, server.address, SUBJECT, counts),
                (push, server.address, SUBJECT, rate, seconds),
            ]
            with children(targets) as (consumer, producer):
                consumer.tell()
                producer.tell()
                sent: Sent = producer.result()
                wait_for_counts(counts, sent.messages, time.time_ns() // 1_000_000)
                consumer.tell()
                handled: Handled = consumer.result()
            details: dict[str, Any] = {"server_cpu_s": rounded(server.cpu_s() - before_s)}
        details |= latencies(handled, sent.messages)
        details["sent_rate"] = rounded(sent.messages / (sent.end_s - sent.begin_s))
        return Run(details["p99_ms"], details)

    return measure


def latencies(handled: Handled, messages: int) -> dict[str, Any]:
    """Percentiles from publish to handler. Raises `WrongResult` unless each of the messages was handled exactly once."""
    counts = np.bincount(handled.number, minlength=messages)
    expect(len(counts) == messages and bool((counts == 1).all()), "a message was not handled, or twice")
    late_ms = (handled.handled_us - handled.sent_us) / 1000
    p50, p99, p999 = (rounded(float(value)) for value in np.percentile(late_ms, [50, 99, 99.9]))
    return {
        "handled": messages,
        "p50_ms": p50,
        "p99_ms": p99,
        "p999_ms": p999,
        "max_ms": rounded(float(late_ms.max())),
        "dispatched_p99_ms": rounded(float(np.percentile(handled.dispatched_us - handled.sent_us, 99)) / 1000),
        "listener_cpu_s": rounded(handled.cpu_s),
    }
