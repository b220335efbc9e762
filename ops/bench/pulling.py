"""Rows `consume-1m`, `idle-pulls` and `backlog-fairness`: a warm backlog, pulls that wait, and a backlog on a slow disk."""

from __future__ import annotations

import os
import selectors
import socket
import time
from typing import Any, Final

import numpy as np

from delayserver.protocol.frames import encode_request
from ops.bench.bodies import BODY_BYTES, make_bodies, read_numbers, write_bodies
from ops.bench.children import Gate, children, run_together
from ops.bench.fairness import round_trips
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import SUBJECT, open_client
from ops.bench.server_process import ServerProcess, fresh_directory

BATCH: Final = 1000
MESSAGES: Final = 1_000_000
PULLS: Final = 1_000
IDLE_GROUPS: Final = 100
IDLE_S: Final = 10.0
SETTLE_S: Final = 3.0
BACKLOG_MESSAGES: Final = 400_000
BACKLOG_CONSUMERS: Final = 200
BACKLOG_PULL: Final = 100
FRESH_S: Final = 4.0
DELIVERED_S_MAX: Final = 120.0


def measure_consume(options: Options) -> Run:
    """One consumer reads a backlog in batches of 1,000. Each pull acks the batch before."""
    count = options.messages or MESSAGES
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        _load(server, count)
        [seconds] = run_together([(consume_all, server.address, count)])
    return Run(count / seconds, {"messages": count, "seconds": rounded(seconds)})


def consume_all(gate: Gate, address: str, count: int) -> float:
    """Pulls and acks all messages; returns the seconds that it took. Raises `WrongResult`."""
    numbers: list[Any] = []
    left, previous = count, None
    with open_client(address) as client:
        gate.wait()
        begin_s = time.perf_counter()
        while left > 0:
            pulled = client.pull_columns(SUBJECT, "bench", BATCH, 5.0, ack=previous)
            expect(pulled.count > 0, f"{left} messages never came")
            numbers.append(read_numbers(pulled).copy())
            left -= pulled.count
            previous = pulled
        if previous is not None:
            expect(client.ack(SUBJECT, "bench", previous).unknown == 0, "the last ack was not taken")
        seconds = time.perf_counter() - begin_s
    found = np.sort(np.concatenate(numbers))
    expect(bool(np.array_equal(found, np.arange(count))), "the messages did not come once each")
    return seconds


def measure_idle_pulls(options: Options) -> Run:
    """The processor time and the memory of pulls that wait for messages, against the same server without them."""
    seconds = options.seconds or IDLE_S
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        with open_client(server.address) as client:
            client.send(SUBJECT, b"x", delay_ms=0)
            while not client.pull(SUBJECT, "bench", 1, 5.0):
                pass
        without_s, before = _idle(server, seconds)
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))) as held:
            pull = {"subject": SUBJECT, "max_messages": 1, "wait_ms": 60_000}
            held.sendall(
                b"".join(
                    encode_request(n + 1, "pull", pull | {"group": f"idle-{n % IDLE_GROUPS}"}) for n in range(PULLS)
                )
            )
            _take(held, PULLS)  # each group gets the message that is there once, the others wait
            with_s, after = _idle(server, seconds)
            waiting = server.status()["broker"]["waiting_pulls"]
        expect(waiting >= PULLS - IDLE_GROUPS, f"only {waiting} of {PULLS} pulls wait")
    grown_mb = max(after - before, 0) / 1e6
    cpu_ms_a_s = max(with_s - without_s, 0.0) * 1000 / seconds
    details = {"pulls": waiting, "grown_mb": rounded(grown_mb), "without_ms_a_s": rounded(without_s * 1000 / seconds)}
    return Run(cpu_ms_a_s, details)


def _take(held: socket.socket, pulls: int) -> None:
    """Reads the replies of the groups that had a message, until none has come for a while."""
    held.settimeout(SETTLE_S)
    try:
        while held.recv(1 << 16):
            pass
    except TimeoutError:
        pass


def _idle(server: ServerProcess, seconds: float) -> tuple[float, int]:
    """The server's processor time in a while, and its memory in bytes at the end."""
    time.sleep(SETTLE_S)
    began_s = server.cpu_s()
    time.sleep(seconds)
    return server.cpu_s() - began_s, server.memory_bytes()["rss"]


def measure_backlog_fairness(options: Options) -> Run:
    """The p99 of a client's round trips beside 200 consumers of a backlog that is not in memory, on a disk with reads of
    100 ms, against alone on the same disk."""
    seconds = options.seconds or FRESH_S
    with fresh_directory(options.data_dir) as directory:
        with ServerProcess(directory) as server:
            _load(server, options.messages or BACKLOG_MESSAGES)
        with ServerProcess(directory, module="ops.bench.slow_disk") as server:
            [alone] = run_together([(round_trips, server.address, seconds)])
            with children([(lag, server.address), (round_trips, server.address, seconds)]) as (lagging, normal):
                lagging.tell()
                time.sleep(0.5)
                normal.tell()
                beside = normal.result()
                lagging.tell()
                pulled = lagging.result()
            stall_ms = server.status()["event_loop"]["longest_stall_ms"]
    expect(pulled > 0, "the backlog's consumers got nothing")
    alone_ms, beside_ms = (float(np.percentile(trips, 99)) * 1000 for trips in (alone, beside))
    details = {"alone_p99_ms": alone_ms, "beside_p99_ms": beside_ms, "backlog_pulls": pulled, "stall_ms": stall_ms}
    return Run(beside_ms / alone_ms, {name: rounded(value) for name, value in details.items()})


def lag(gate: Gate, address: str) -> int:
    """Pulls a backlog over many connections, in one group, until the call to stop; returns how many replies came."""
    # As the abusers of `fairness`, the consumers stand for other machines: they take no processor from the normal client.
    os.nice(19)
    request = encode_request(
        1, "pull", {"subject": SUBJECT, "group": "cold", "max_messages": BACKLOG_PULL, "columns": True, "wait_ms": 1000}
    )
    host, port = address.split(":")
    replies = 0
    with selectors.DefaultSelector() as selector:
        for _ in range(BACKLOG_CONSUMERS):
            selector.register(socket.create_connection((host, int(port))), selectors.EVENT_READ, bytearray())
        gate.wait()
        for key in list(selector.get_map().values()):
            key.fileobj.sendall(request)  # type: ignore[union-attr]
        while not gate.stopped():
            for key, _events in selector.select(0.1):
                data = key.fileobj.recv(1 << 20)  # type: ignore[union-attr]
                expect(len(data) > 0, "the server closed a connection of the backlog")
                key.data.extend(data)
                while len(key.data) >= 4 and len(key.data) >= 4 + int.from_bytes(key.data[:4], "little"):
                    del key.data[: 4 + int.from_bytes(key.data[:4], "little")]
                    replies += 1
                    key.fileobj.sendall(request)  # type: ignore[union-attr]
        for key in list(selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
    return replies


def _load(server: ServerProcess, count: int) -> None:
    """Sends messages that are due now, and waits until the broker has them."""
    run_together([(send_all, server.address, count)])
    until_s = time.monotonic() + DELIVERED_S_MAX
    while (delivered := server.status()["broker"]["delivered"]) < count:
        expect(time.monotonic() < until_s, f"{delivered} of {count} messages were delivered")
        time.sleep(0.1)


def send_all(gate: Gate, address: str, count: int) -> None:
    """Sends the numbers below ``count``, in batches."""
    bodies = make_bodies(BATCH)
    with open_client(address) as client:
        gate.wait()
        for number in range(0, count, BATCH):
            rows = min(BATCH, count - number)
            due_ms = time.time_ns() // 1_000_000
            blob = write_bodies(bodies[:rows], due_ms, number)
            sent = client.send_columns(SUBJECT, due_ms, blob, body_length=BODY_BYTES, count=rows)
            expect(sent.accepted == rows, f"{sent.accepted} of {rows} accepted")
