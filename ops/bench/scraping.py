"""Row `metrics-1000`: a scrape of Prometheus with a thousand subjects, and what it costs the server's event loop."""

from __future__ import annotations

import contextlib
import http.client
import statistics
import time
from typing import Final

from delayserver.client import Client, Message
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.gateway_process import Gateway
from ops.bench.server_process import ServerProcess, a_processor_of_its_own, fresh_directory

SUBJECTS: Final = 1_000
SCRAPES: Final = 30
PAUSE_S: Final = 0.3
"""Longer than the gateway keeps a scrape."""
FORGOTTEN_S: Final = 66.0
"""The server reports the longest stall of about the last minute. After so long, those of the preparation are forgotten."""


def measure_scrape(options: Options) -> Run:
    """Scrapes one after the other. The value is the median; `step_ms` the longest step on the server's event loop
    meanwhile, rounded down."""
    with fresh_directory(options.data_dir) as directory, ServerProcess(directory) as server:
        _prepare(server)
        time.sleep(FORGOTTEN_S)
        quiet_ms = int(server.status()["event_loop"]["longest_stall_minute_ms"])
        # Else a step would also hold what the gateway does, which the kernel runs as soon as the reply is written.
        with a_processor_of_its_own(server.pid), Gateway(server.address) as gateway:
            _scrape(gateway.port)  # opens the gateway's connections
            times_ms = []
            for _ in range(SCRAPES):
                time.sleep(PAUSE_S)
                times_ms.append(_scrape(gateway.port))
        step_ms = int(server.status()["event_loop"]["longest_stall_minute_ms"])
    return Run(
        statistics.median(times_ms),
        {"max_ms": rounded(max(times_ms)), "step_ms": step_ms, "quiet_step_ms": quiet_ms},
    )


def _prepare(server: ServerProcess) -> None:
    """A thousand subjects, each with a message that is pending, and one that a consumer group has not acked."""
    names = [f"subject-{number}" for number in range(SUBJECTS)]
    with Client(server.address, timeout_s=60.0) as client:
        for delay_ms in (0, 3_600_000):
            client.send_many([Message(name, b"x", delay_ms=delay_ms) for name in names])
        for name in names:
            expect(len(client.pull(name, "bench", wait_s=10.0, ack_timeout_s=600.0)) == 1, f"{name} got no message")
    server.wait_replayed()


def _scrape(port: int) -> float:
    """Milliseconds of one scrape, with a connection of its own. Raises `WrongResult` if a subject is missing."""
    begin_s = time.perf_counter()
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60.0)
    with contextlib.closing(connection):
        connection.request("GET", "/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
        answer = connection.getresponse()
        body = answer.read()
    took_ms = (time.perf_counter() - begin_s) * 1000
    expect(answer.status == 200, f"a scrape was answered with {answer.status}")
    for name in (b"delayserver_subject_pending{", b"delayserver_consumer_group_lag{"):
        expect(body.count(name) == SUBJECTS, f"a scrape has {body.count(name)} subjects, not {SUBJECTS}")
    return took_ms
