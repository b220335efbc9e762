"""The watchdog of the event loop: the longest stall since the start and of the last minute, and a line in the log."""

from __future__ import annotations

import logging
import time

import pytest
import trio

from delayserver.runtime.clock import SystemClock
from delayserver.runtime.watchdog import LOG_AGAIN_US, Watchdog


class HandClock(SystemClock):
    """A clock whose monotonic time is set by hand."""

    def __init__(self) -> None:
        self.us = 1_000_000_000

    def monotonic_us(self) -> int:
        return self.us


def stall(watchdog: Watchdog, clock: HandClock, stall_ms: float) -> None:
    watchdog.after_io_wait(0)
    clock.us += int(stall_ms * 1000)
    watchdog.before_io_wait(0)


async def test_a_step_that_stands_still_is_measured_and_logged_and_waiting_is_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for _ in range(10):  # a busy machine may stand still in one of the waits
        watchdog = Watchdog(SystemClock(), 50)
        with watchdog.watching():
            await trio.sleep(0.15)
        if not watchdog.long_stalls:
            break
    assert watchdog.long_stalls == 0
    caplog.clear()
    with watchdog.watching(), caplog.at_level(logging.WARNING):
        time.sleep(0.08)
        await trio.sleep(0)
        await trio.sleep(0)
    assert 75 <= watchdog.longest_ms < 5_000
    assert watchdog.longest_of_minute_ms == watchdog.longest_ms
    assert watchdog.long_stalls >= 1
    assert "stood still" in caplog.text
    time.sleep(0.08)
    await trio.sleep(0)


def test_the_last_minute_forgets_and_the_start_does_not() -> None:
    clock = HandClock()
    watchdog = Watchdog(clock, 0)
    stall(watchdog, clock, 400)
    clock.us += 30_000_000
    stall(watchdog, clock, 20)
    assert (watchdog.longest_ms, watchdog.longest_of_minute_ms) == (400, 400)
    clock.us += 40_000_000
    assert (watchdog.longest_ms, watchdog.longest_of_minute_ms) == (400, 20)
    clock.us += 40_000_000
    assert (watchdog.longest_ms, watchdog.longest_of_minute_ms) == (400, 0)
    for _ in range(10_000):
        clock.us += 1_000_000
        stall(watchdog, clock, 5)
    assert len(watchdog._parts) <= 14, "the parts of a minute, however long it runs"


def test_the_log_has_one_line_in_ten_seconds_which_counts_the_others(caplog: pytest.LogCaptureFixture) -> None:
    clock = HandClock()
    watchdog = Watchdog(clock, 100)
    with caplog.at_level(logging.WARNING):
        for stall_ms in (99, 100, 150, 300):
            stall(watchdog, clock, stall_ms)
        assert len(caplog.records) == 1
        clock.us += LOG_AGAIN_US
        stall(watchdog, clock, 100)
    assert [record.getMessage() for record in caplog.records] == [
        "the event loop stood still for 100 ms: all clients waited",
        "the event loop stood still for 100 ms: all clients waited (2 more since the last line)",
    ]
    assert watchdog.long_stalls == 4
