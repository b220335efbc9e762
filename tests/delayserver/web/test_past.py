"""What the gateway remembers of the last hour."""

from __future__ import annotations

from typing import Any

from delayserver.web.past import PAST_PERIOD_S, SAMPLES_MAX, WHOLE_MAX, Past

PERIOD_MS = PAST_PERIOD_S * 1000
DETAILS = {"groups", "stages", "by_group"}


def figures(at_ms: int, uptime_s: int = 0, **fields: Any) -> dict[str, Any]:
    """A reply to `metrics`."""
    lateness = {"a": {"counts": [1, 2]}, "b": {"counts": [10, 20]}}
    stages = {"sync": {"counts": [3, 4], "sum_us": 50}}
    return {
        "ready": True, "server_id": "s", "uptime_s": uptime_s or at_ms // 1000, "clock": {"server_us": at_ms * 1000},
        "accepted": 7, "delivered": 5, "pending": 2, "lateness": lateness, "stages": stages,
        "groups": {"a": {"delivered": 5}}, **fields,
    }  # fmt: skip


def test_a_sample_is_kept_each_period() -> None:
    past = Past()
    for at_ms in range(0, 3 * PERIOD_MS, 1000):
        past.add(figures(at_ms))
    assert [each["at_ms"] for each in past.samples()] == [0, PERIOD_MS, 2 * PERIOD_MS]
    newest = past.samples()[-1]
    assert newest["lateness"] == [11, 22]
    assert newest["stages"] == {"sync": {"count": 7, "sum": 50}}


def test_the_past_is_an_hour_and_only_the_newest_have_details() -> None:
    past = Past()
    for number in range(SAMPLES_MAX + 50):
        past.add(figures(number * PERIOD_MS))
    samples = past.samples()
    assert len(samples) == SAMPLES_MAX
    assert samples[-1]["at_ms"] - samples[0]["at_ms"] == (SAMPLES_MAX - 1) * PERIOD_MS
    assert [each for each in samples if each.keys() & DETAILS] == samples[-WHOLE_MAX:]


def test_another_server_or_an_earlier_clock_begins_a_new_past() -> None:
    for other in (figures(20_000, server_id="t"), figures(20_000, uptime_s=1), figures(5_000, uptime_s=99)):
        past = Past()
        past.add(figures(10_000))
        past.add(other)
        assert [each["at_ms"] for each in past.samples()] == [other["clock"]["server_us"] // 1000]


def test_a_server_that_is_not_ready_leaves_no_sample() -> None:
    past = Past()
    past.add({"ready": False})
    assert past.samples() == []
