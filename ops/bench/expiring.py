"""The row `cancel-beside-expiries`: the worst round trip of a client while others cancel, look up and reschedule messages
that expire by the hundred thousand.

An answer `expired` waits until the outcome is on the disk. The value is what such waits cost a client that asks for nothing
of them.
"""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from typing import Final

import numpy as np

from delayserver.client import Client
from ops.bench.bodies import BODY_BYTES, make_bodies
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, open_client
from ops.bench.server_process import ServerProcess, a_processor_of_its_own, fresh_directory

MESSAGES: Final = 400_000
AT_ONCE: Final = 10_000
ASKERS: Final = 16
ASKED: Final = 50
"""Messages in a request of an asker."""
LEAD_MS: Final = 6_000
"""From the first send until all messages expire."""


def measure_cancel_beside_expiries(options: Options) -> Run:
    """Sends messages that expire when they are due, and asks for them while they do. The value is the worst `ping` in
    milliseconds from half a second before until all have expired."""
    messages = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server, ExitStack() as opened:
        client = opened.enter_context(open_client(server.address))
        # The longest first part of a send is past; what is late is refused to nobody.
        due_ms = time.time_ns() // 1_000_000 + LEAD_MS
        receipts: list[str] = []
        for first in range(0, messages, AT_ONCE):
            count = min(AT_ONCE, messages - first)
            sent = client.send_columns(
                SUBJECT,
                due_ms,
                make_bodies(count).tobytes(),
                body_length=BODY_BYTES,
                expires_ms=due_ms - 1,
                count=count,
            )
            expect(sent.accepted == count, f"{sent.accepted} of {count} accepted; first refusal: {sent.rejected[:1]}")
            receipts += sent.receipts()[: AT_ONCE // 10]
        server.wait_replayed()
        expect(
            time.time_ns() // 1_000_000 < due_ms - 500, "the machine is too slow for this row: messages are due already"
        )
        done = threading.Event()
        asked = [0] * ASKERS
        askers = [
            threading.Thread(target=_ask, args=(server.address, receipts[number::ASKERS], done, asked, number))
            for number in range(ASKERS)
        ]
        with a_processor_of_its_own(server.pid):
            time.sleep(max(due_ms / 1000 - 0.5 - time.time(), 0))
            for asker in askers:
                asker.start()
            trips_ms = _pings(client, server, messages)
            done.set()
            for asker in askers:
                asker.join()
        ended = _ended(server)
    expect(ended == messages, f"{ended} of {messages} messages expired, or were cancelled just before")
    details = {"p99_ms": rounded(float(np.percentile(trips_ms, 99))), "pings": len(trips_ms), "requests": sum(asked)}
    return Run(max(trips_ms), details)


def _ended(server: ServerProcess) -> int:
    status = server.status()
    return int(status["expired"]) + int(status["cancelled"])


def _pings(client: Client, server: ServerProcess, messages: int) -> list[float]:
    """Milliseconds of pings one after the other until all messages have expired."""
    trips_ms: list[float] = []
    look = time.monotonic() + 1
    while True:
        begin = time.perf_counter()
        client.ping()
        trips_ms.append((time.perf_counter() - begin) * 1000)
        if time.monotonic() > look:
            if _ended(server) >= messages:
                return trips_ms
            look = time.monotonic() + 0.2
        time.sleep(0.001)


def _ask(address: str, receipts: list[str], done: threading.Event, asked: list[int], number: int) -> None:
    """Looks up and cancels some messages after the other until all have expired."""
    with open_client(address) as client:
        while not done.is_set():
            for first in range(0, len(receipts), ASKED):
                some = receipts[first : first + ASKED]
                _ = client.lookup_many(some) if asked[number] % 2 else client.cancel_many(some[:1])
                asked[number] += 1
                if done.is_set():
                    return
