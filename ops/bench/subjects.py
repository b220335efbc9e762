"""The row `subjects-100k`: a server whose broker holds messages of 100,000 subjects.

Measures the longest time that a request waits while the broker writes a checkpoint, the start after a clean stop, and the
files that it has open then."""

from __future__ import annotations

import threading
import time
from typing import Final

from delayserver.client import Client
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import TIMEOUT_S, open_client
from ops.bench.server_process import ServerProcess, fresh_directory

SUBJECTS: Final = 100_000
BATCH: Final = 10_000
BODY_BYTES: Final = 50
# The broker writes a checkpoint when its store has grown by 64 MiB. It looks every five seconds.
LARGE_BYTES: Final = 1_000_000
LARGE_MESSAGES: Final = 80
WATCH_S: Final = 8.0
PING_S: Final = 0.002


def measure_subjects(options: Options) -> Run:
    """The value is the time from exec until the server is ready, with the queues in a checkpoint."""
    subjects = options.messages or SUBJECTS
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        idle_bytes = server.memory_bytes()["rss"]
        with open_client(server.address) as client:
            _fill(client, subjects)
            held_bytes = server.memory_bytes()["rss"]
            _grow(client)
            longest_ms, usual_ms = _longest_wait(server.address)
        start_s = _restarted(server)
        restarted_bytes, open_files = server.memory_bytes()["rss"], server.open_files()
        with open_client(server.address) as client:
            last = client.read(f"s{subjects - 1}", 0)
        expect(last.end > 0, "the last subject lost its message")
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        empty_start_s = _restarted(server)
    details = {
        "subjects": subjects,
        "empty_start_s": rounded(empty_start_s),
        "open_files": open_files,
        "longest_wait_ms": rounded(longest_ms),
        "usual_wait_ms": rounded(usual_ms),
        "bytes_per_subject": rounded((held_bytes - idle_bytes) / subjects),
        "bytes_per_subject_after_start": rounded((restarted_bytes - idle_bytes) / subjects),
    }
    return Run(start_s, details)


def _restarted(server: ServerProcess) -> float:
    """The seconds of a start after a clean stop."""
    server.stop()
    begin = time.perf_counter()
    server.launch()
    server.wait_ready()
    return time.perf_counter() - begin


def _fill(client: Client, subjects: int) -> None:
    """One message, due now, for each subject; returns when the broker has all."""
    body = bytes(BODY_BYTES)
    for first in range(0, subjects, BATCH):
        names = [f"s{number}" for number in range(first, min(first + BATCH, subjects))]
        now_ms = time.time_ns() // 1_000_000
        client.send_columns(names, now_ms, [body] * len(names), subject_index=list(range(len(names))))
    _wait_delivered(client)


def _grow(client: Client) -> None:
    """Let the store grow so far that a checkpoint is due. All queues are in use at that moment."""
    body = bytes(LARGE_BYTES)
    for _ in range(LARGE_MESSAGES // 8):
        client.send_columns("large", time.time_ns() // 1_000_000, [body] * 8)
    _wait_delivered(client)


def _wait_delivered(client: Client) -> None:
    give_up_s = time.monotonic() + TIMEOUT_S
    while client.status()["pending"]:
        expect(time.monotonic() < give_up_s, "not all messages were delivered")
        time.sleep(0.05)


def _longest_wait(address: str) -> tuple[float, float]:
    """The longest and the median round trip of pings, in ms, over a time in which a checkpoint is written."""
    waits: list[float] = []
    done = threading.Event()

    def ping() -> None:
        with open_client(address) as client:
            while not done.is_set():
                begin = time.perf_counter()
                client.ping()
                waits.append((time.perf_counter() - begin) * 1000)
                time.sleep(PING_S)

    pinging = threading.Thread(target=ping)
    pinging.start()
    time.sleep(WATCH_S)
    done.set()
    pinging.join()
    return max(waits), sorted(waits)[len(waits) // 2]
