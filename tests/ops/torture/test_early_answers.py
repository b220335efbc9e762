"""Answers that come before what they speak of can have happened."""

from __future__ import annotations

import pytest

from delayserver.protocol.outcomes import Outcome
from ops.torture.record import Record

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("outcome", "due_ms", "expires_ms"),
    [
        (Outcome.DELIVERED, NOW_MS + 1, 0),
        (Outcome.EXPIRED, NOW_MS - 10, NOW_MS + 300),
    ],
)
def test_an_answer_before_its_time_is_a_violation(outcome: Outcome, due_ms: int, expires_ms: int) -> None:
    record = Record(lambda: NOW_MS * 1000)
    first, second = record.new("s", due_ms, expires_ms=expires_ms), record.new("s", due_ms, expires_ms=expires_ms)
    record.accepted([first, second], ["", ""])
    record.ended(first, outcome)
    record.looked_up(second, outcome)
    assert record.violations_total == 2


def test_an_expired_answer_for_a_message_without_expiry_is_a_violation() -> None:
    record = Record(lambda: NOW_MS * 1000)
    sent = record.new("s", NOW_MS - 10)
    record.looked_up(sent, Outcome.EXPIRED)
    assert record.violations_total == 1
