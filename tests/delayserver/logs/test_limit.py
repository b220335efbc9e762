"""The bound of lines of one event: the log counts the lines that it leaves out, and says how many."""

from __future__ import annotations

import io
import json
import logging
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.logs.events import ADMINISTRATIVE_ACT, EventLogger
from delayserver.logs.limit import LINES_MAX, PERIOD_S, LineLimit
from delayserver.logs.log_lines import JsonLines
from delayserver.logs.setup import BoundedLines


class Lines:
    """A handler on a stream in memory, with a clock that the test sets."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.stream = io.StringIO()
        written = logging.StreamHandler(self.stream)
        written.setFormatter(JsonLines())
        self.handler = BoundedLines(written, lambda: self.now_s)

    def read(self) -> list[dict[str, Any]]:
        """All lines."""
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


@pytest.fixture
def lines() -> Any:
    made = Lines()
    base = logging.getLogger("delayserver.bounded")
    base.propagate = False
    base.setLevel(logging.INFO)
    base.addHandler(made.handler)
    yield made
    base.removeHandler(made.handler)


events = EventLogger("delayserver.bounded")


def test_repeats_are_left_out_and_counted_while_other_events_pass(lines: Lines) -> None:
    for number in range(LINES_MAX + 30):
        events.warning("accept_failed", "number {number}", number=number)
    events.warning("disk_low", "another event")
    assert [line["event"] for line in lines.read()] == ["accept_failed"] * LINES_MAX + ["disk_low"]
    lines.now_s = PERIOD_S
    events.warning("disk_low", "again")
    *_, told, last = lines.read()
    assert (told["event"], told["of"], told["count"]) == ("lines_left_out", "accept_failed", 30)
    assert last["event"] == "disk_low"


def test_the_end_of_the_process_logs_the_count_of_lines_left_out(lines: Lines) -> None:
    for _ in range(LINES_MAX + 1):
        events.warning("accept_failed", "again")
    lines.handler.close()
    assert lines.read()[-1]["count"] == 1


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 10)), max_size=200))
def test_each_line_is_written_or_counted_as_left_out(steps: list[tuple[str, float]]) -> None:
    limit, now_s = LineLimit(), 0.0
    written, told = dict.fromkeys("abc", 0), dict.fromkeys("abc", 0)
    for event, pause_s in steps:
        now_s += pause_s
        for ended, count in limit.take_ended(now_s).items():
            told[ended] += count
        written[event] += limit.admits(event, now_s)
        limit.check_invariants()
    for ended, count in limit.take_ended(float("inf")).items():
        told[ended] += count
    for event in "abc":
        assert written[event] + told[event] == [each for each, _ in steps].count(event)


def test_administrative_acts_have_no_bound(lines: Lines) -> None:
    for _ in range(LINES_MAX + 1):
        events.info(ADMINISTRATIVE_ACT, "an act")
    assert len(lines.read()) == LINES_MAX + 1
