"""The machine's clock stepped by hours under a real server process, by libfaketime: the whole way through the C library."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Client, Delivery
from tests.crash.command_line import CommandLineServer, require

HOUR_US = 3_600_000_000
SECOND_US = 1_000_000
SUBJECT, GROUP = "clock", "g"
# Calls of a client that waits for what must come: of 0.2 s each, far more than any machine needs.
PULLS_MAX = 300


class Clock:
    """The file that libfaketime reads at each look at the time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ahead_us = 0
        self.set_ahead(0)

    def set_ahead(self, ahead_us: int) -> int:
        """Set the server's clock so far ahead of the machine's; returns its time then, in microseconds."""
        new = self.path.with_suffix(".new")
        new.write_text(f"{ahead_us // SECOND_US:+d}\n")
        self._ahead_us = ahead_us
        now_us = self.now_us()
        new.replace(self.path)
        return now_us

    def now_us(self) -> int:
        """The time of the server."""
        return time.time_ns() // 1000 + self._ahead_us


@pytest.fixture
def clock(tmp_path: Path) -> Clock:
    return Clock(tmp_path / "faketime")


@pytest.fixture
def server(tmp_path: Path, clock: Clock) -> Iterator[CommandLineServer]:
    libraries = sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))
    require(libraries, "libfaketime (Debian's package of that name)")
    env = {
        "LD_PRELOAD": str(libraries[0]),
        "FAKETIME_TIMESTAMP_FILE": str(clock.path),
        "FAKETIME_NO_CACHE": "1",
        # A step moves the wall clock only; what counts durations goes on, as in a real one.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
    }
    made = CommandLineServer(tmp_path, "[storage]\nwindow_ms = 1000\ncheckpoint_interval_ms = 200\n", env=env)
    yield made
    made.clean_up()


def receive(client: Client) -> Delivery:
    """The next delivery, acked."""
    for _ in range(PULLS_MAX):
        pulled = client.pull(SUBJECT, GROUP, 1, 0.2)
        if pulled:
            client.ack(SUBJECT, GROUP, pulled)
            return pulled[0]
    raise AssertionError("nothing came")


def wait_for_steps(client: Client, steps: int) -> int:
    """Wait until the server has counted so many steps; the last one in milliseconds."""
    for _ in range(PULLS_MAX):
        found = client.status()["clock"]
        if found["steps"] >= steps:
            return int(found["step_last_ms"])
        time.sleep(0.1)
    raise AssertionError(f"no step was noticed: {found}")


def wait_for_outcomes(client: Client, delivered: int) -> dict[str, Any]:
    """A consumer may see a message before its outcome is durable, and so counted; the status when it is."""
    for _ in range(PULLS_MAX):
        status = dict(client.status())
        if status["delivered"] >= delivered:
            return status
        time.sleep(0.1)
    raise AssertionError(f"delivered is {status['delivered']}")


def test_steps_by_hours_in_both_directions_hasten_nothing_hold_back_nothing_and_are_logged(
    server: CommandLineServer, clock: Clock
) -> None:
    assert server.start(), server.said()
    with Client(server.address) as client:
        start_ms = clock.now_us() // 1000
        assert abs(client.status()["clock"]["server_us"] - clock.now_us()) < HOUR_US // 60
        for hours in (1, 3, 5, 9):
            client.send(SUBJECT, f"{hours}", due_ms=start_ms + hours * 3_600_000)
        assert client.pull(SUBJECT, GROUP, 10, 1.0) == []
        behind_us = []
        for steps, (earlier, hours) in enumerate(pairwise((0, 2, 4, 6)), 1):
            stepped_us = clock.set_ahead(hours * HOUR_US)
            delivery = receive(client)
            assert delivery.body == b"%d" % (earlier + 1)
            assert delivery.dispatched_us >= delivery.due_ms * 1000
            behind_us.append(delivery.dispatched_us - stepped_us)
            assert abs(wait_for_steps(client, steps) - 2 * 3_600_000) < 60_000
        # Of three steps the best one: a machine that stands still may hold one up, a server that looks too seldom all. The
        # server looks twice a second; a machine with twenty tasks for each processor takes seconds for a look.
        assert 0 <= min(behind_us) < HOUR_US // 60, behind_us

        clock.set_ahead(0)  # six hours back: what is due in nine waits for its time, and so does what is sent now
        assert abs(wait_for_steps(client, 4) + 6 * 3_600_000) < 60_000
        client.send(SUBJECT, "again", due_ms=start_ms + 2 * 3_600_000)
        assert client.pull(SUBJECT, GROUP, 10, 1.5) == []
        assert client.status()["pending"] == 2

        stepped_us = clock.set_ahead(3 * HOUR_US)
        again = receive(client)
        wait_for_steps(client, 5)
        assert again.body == b"again" and again.dispatched_us >= max(again.due_ms * 1000, stepped_us)
        assert client.pull(SUBJECT, GROUP, 10, 0.5) == []
        clock.set_ahead(10 * HOUR_US)
        assert receive(client).body == b"9"
        status = wait_for_outcomes(client, 5)
        assert (status["early"], status["pending"]) == (0, 0)
    assert server.stop() == 0, server.said()
    assert server.said().count("the clock was stepped by") >= 5


def test_a_start_with_a_clock_that_is_hours_behind_delivers_nothing_before_its_time(
    server: CommandLineServer, clock: Clock
) -> None:
    clock.set_ahead(6 * HOUR_US)
    assert server.start(), server.said()
    with Client(server.address) as client:
        now_ms = clock.now_us() // 1000
        client.send(SUBJECT, "first", due_ms=now_ms)
        assert receive(client).body == b"first"
        client.send(SUBJECT, "second", due_ms=now_ms + 60_000)
    assert server.stop() == 0, server.said()
    clock.set_ahead(0)
    assert server.start(), server.said()
    with Client(server.address) as client:
        assert client.pull(SUBJECT, GROUP, 10, 1.5) == []
        assert client.status()["pending"] == 1
        stepped_us = clock.set_ahead(7 * HOUR_US)
        delivery = receive(client)
        assert delivery.body == b"second" and delivery.dispatched_us >= stepped_us
        assert client.status()["early"] == 0
    assert server.stop() == 0, server.said()


def test_the_clock_of_the_test_is_really_the_servers(server: CommandLineServer, clock: Clock) -> None:
    clock.set_ahead(100 * HOUR_US)
    assert server.start(), server.said()
    with Client(server.address) as client:
        ahead_us = client.status()["clock"]["server_us"] - time.time_ns() // 1000
    assert abs(ahead_us - 100 * HOUR_US) < HOUR_US // 60
    assert os.environ.get("LD_PRELOAD") is None, "only the server's process"
