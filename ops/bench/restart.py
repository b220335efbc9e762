"""The row `restart-10m`: kill -9 with pending messages, and a restart.

Measures the time from exec to the first acknowledged send, and to the first delivery of an overdue message."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from delayserver.client import Client, PulledColumns
from delayserver.protocol.errors import ConnectionLost, NotReady
from ops.bench.bodies import make_bodies, read_numbers, write_bodies
from ops.bench.children import Gate, children
from ops.bench.consuming import GROUP, PULL_MESSAGES_MAX
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.holding import MESSAGES, hold
from ops.bench.producing import DAY_MS, TIMEOUT_S, open_client, send_batch
from ops.bench.server_process import ServerProcess, fresh_directory

OVERDUE: Final = 1000
OVERDUE_SUBJECT: Final = "overdue"
OVERDUE_DELAY_MS: Final = 1500
KILL_AFTER_S: Final = 0.5
POLL_S: Final = 0.002
GIVE_UP_S: Final = 120.0
LINGER_S: Final = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Delivered:
    """The time of the first overdue message (monotonic), and the numbers of all received messages."""

    first_s: float
    numbers: NDArray[np.int64]


def measure_restart(options: Options) -> Run:
    """The value is the longer of the two times."""
    messages = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        hold(server, messages)
        overdue_ms = _send_overdue(server)
        time.sleep(KILL_AFTER_S)
        lag_bytes = server.status()["storage"]["replay_lag_bytes"]
        with children([(first_send, server.address), (first_delivery, server.address)]) as (sender, consumer):
            server.kill()
            expect(time.time_ns() // 1_000_000 < overdue_ms, "the overdue messages were due before the kill")
            time.sleep(max(overdue_ms / 1000 - time.time(), 0) + 0.2)
            begin = time.perf_counter()
            server.launch()
            for child in (sender, consumer):
                child.tell()
            sent_s: float = sender.result() - begin
            server.wait_ready()
            delivered: Delivered = consumer.result()
        status = server.status()
    expect(sorted(delivered.numbers.tolist()) == list(range(OVERDUE)), "the overdue messages did not come once each")
    total = messages + OVERDUE + 1
    expect(status["accepted"] == total, f"{total} were acknowledged, the restarted server has {status['accepted']}")
    delivered_s = delivered.first_s - begin
    details = {
        "messages": messages,
        "first_send_s": rounded(sent_s),
        "first_delivery_s": rounded(delivered_s),
        "lag_bytes_at_kill": lag_bytes,
    }
    return Run(max(sent_s, delivered_s), details)


def _send_overdue(server: ServerProcess) -> int:
    due_ms = time.time_ns() // 1_000_000 + OVERDUE_DELAY_MS
    with open_client(server.address) as client:
        send_batch(client, OVERDUE_SUBJECT, due_ms, write_bodies(make_bodies(OVERDUE), due_ms, 0), OVERDUE)
    return due_ms


def first_send(gate: Gate, address: str) -> float:
    """Tries until one send is acknowledged. Returns the time."""
    blob = make_bodies(1).tobytes()

    def attempt(client: Client) -> float:
        client.send("first", blob, due_ms=time.time_ns() // 1_000_000 + DAY_MS)
        return time.perf_counter()

    gate.wait()
    return _until_served(address, attempt)


def first_delivery(gate: Gate, address: str) -> Delivered:
    """Tries until an overdue message comes, then pulls all of them, and possible duplicates."""

    def attempt(client: Client) -> Delivered:
        pulled = client.pull_columns(OVERDUE_SUBJECT, GROUP, PULL_MESSAGES_MAX, TIMEOUT_S / 2)
        first_s = time.perf_counter()
        numbers = [read_numbers(pulled)]
        while pulled.count:
            pulled = _next(client, pulled, TIMEOUT_S / 2 if sum(map(len, numbers)) < OVERDUE else LINGER_S)
            numbers.append(read_numbers(pulled))
        return Delivered(first_s, np.concatenate(numbers))

    gate.wait()
    return _until_served(address, attempt)


def _next(client: Client, previous: PulledColumns, wait_s: float) -> PulledColumns:
    return client.pull_columns(OVERDUE_SUBJECT, GROUP, PULL_MESSAGES_MAX, wait_s, ack=previous)


def _until_served(address: str, attempt: Callable[[Client], T]) -> T:
    give_up_s = time.monotonic() + GIVE_UP_S
    while True:
        try:
            with Client(address, timeout_s=TIMEOUT_S, retries=0) as client:
                return attempt(client)
        except (ConnectionLost, NotReady):
            if time.monotonic() > give_up_s:
                raise
            time.sleep(POLL_S)
