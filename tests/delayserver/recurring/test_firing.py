"""Which moments fire, which are left out, and that each is decided once, whatever the clock and the calls do."""

from __future__ import annotations

from itertools import takewhile

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from delayserver.recurring.clock_changes import Moment
from delayserver.recurring.cron_expression import Cron
from delayserver.recurring.firing import JITTER_MS_MAX, LATE_MS, FiringRules, Misfire, coming, decide
from delayserver.recurring.recurrence import Recurrence, Span, default_choices
from delayserver.recurring.recurrence_errors import RecurrenceInvalid
from delayserver.recurring.simple_rules import Every
from delayserver.recurring.zones import Zone

START_MS = 1_800_000_000_000
HOUR_MS = 3_600_000


def every(every_ms: int, end_ms: int | None = None) -> Recurrence:
    rule = Every(every_ms, START_MS)
    return Recurrence(rule, Zone.named("UTC"), default_choices(rule), Span(START_MS, end_ms))


def fired(recurrence: Recurrence, rules: FiringRules, after_ms: int, now_ms: int, most: int = 1_000) -> list[int]:
    return [each.ms - START_MS for each in decide(recurrence, rules, after_ms, now_ms, most).firings]


def plainly(recurrence: Recurrence, rules: FiringRules, after_ms: int, now_ms: int) -> list[Moment]:
    """What fires, by looking at each moment."""
    due = [*takewhile(lambda each: rules.due_ms(each) <= now_ms, recurrence.moments(after_ms))]
    on_time = [each for each in due if rules.due_ms(each) >= now_ms - LATE_MS]
    missed = [each for each in due if each not in on_time and each.ms >= now_ms - rules.catch_up_ms]
    if rules.misfire is Misfire.ALL:
        # In their order: a late one between others on time fires with them.
        return [each for each in due if each in on_time or each in missed]
    return (missed[-1:] if rules.misfire is Misfire.LATEST else []) + on_time


@given(
    st.sampled_from([1_000, 7_000, 60_000, HOUR_MS]),
    st.integers(-10_000, 3 * HOUR_MS),
    st.integers(0, 4 * HOUR_MS),
    st.sampled_from([0, 1, 30_000, 90_000]),
    st.sampled_from(list(Misfire)),
    st.sampled_from([0, 30_000, HOUR_MS, 10 * HOUR_MS]),
)
@example(1_000, -1, 4 * HOUR_MS, 0, Misfire.LATEST, 10 * HOUR_MS)
@example(HOUR_MS, -1, HOUR_MS + LATE_MS, 0, Misfire.NONE, 0)
@example(HOUR_MS, -1, HOUR_MS + LATE_MS + 1, 0, Misfire.NONE, 0)
def test_what_fires_is_what_a_look_at_each_moment_finds(
    every_ms: int, after: int, now: int, jitter_ms: int, misfire: Misfire, catch_up_ms: int
) -> None:
    recurrence, rules = every(every_ms), FiringRules("k", jitter_ms, misfire, catch_up_ms)
    after_ms, now_ms = START_MS + after, START_MS + now
    decided = decide(recurrence, rules, after_ms, now_ms, 1 << 20)
    assert [*decided.firings] == plainly(recurrence, rules, after_ms, now_ms)
    assert decided.after_ms >= after_ms
    following = next(recurrence.moments(decided.after_ms))
    assert decided.following == following and rules.due_ms(following) > now_ms


@given(st.lists(st.integers(-HOUR_MS, HOUR_MS), max_size=20), st.sampled_from(list(Misfire)), st.integers(1, 5))
def test_no_step_of_the_clock_decides_a_moment_twice_or_early(
    steps: list[int], misfire: Misfire, firings_max: int
) -> None:
    recurrence, rules = every(60_000), FiringRules("k", 5_000, misfire)
    after_ms, now_ms, seen = START_MS - 1, START_MS, list[int]()
    for step in steps:
        now_ms += step
        decided = decide(recurrence, rules, after_ms, now_ms, firings_max)
        assert all(rules.due_ms(each) <= now_ms for each in decided.firings)
        assert decided.after_ms >= after_ms
        after_ms = decided.after_ms
        seen += [each.ms for each in decided.firings]
    assert seen == sorted(set(seen))
    if misfire is Misfire.ALL and seen:
        assert seen == [*range(seen[0], seen[-1] + 1, 60_000)]


def test_many_due_moments_are_decided_in_parts_and_none_is_left_out() -> None:
    recurrence, rules = every(1_000, START_MS + 250_000), FiringRules(misfire=Misfire.ALL)
    after_ms, parts = START_MS - 1, list[int]()
    while True:
        decided = decide(recurrence, rules, after_ms, START_MS + HOUR_MS, 100)
        parts.append(len(decided.firings))
        after_ms = decided.after_ms
        if decided.following is None:
            break
    assert parts == [100, 100, 50]


def test_the_last_missed_moment_is_found_years_back() -> None:
    rule = Cron.parse("0 0 29 2 *")
    recurrence = Recurrence(rule, Zone.named("UTC"), default_choices(rule))
    rules = FiringRules(misfire=Misfire.LATEST, catch_up_ms=366 * 86_400_000)
    leap_day_ms = 1_835_395_200_000  # 2028-02-29
    assert [each.ms for each in decide(recurrence, rules, 0, leap_day_ms + 300 * 86_400_000, 9).firings] == [
        leap_day_ms
    ]
    assert decide(recurrence, rules, leap_day_ms, leap_day_ms + 300 * 86_400_000, 9).firings == ()


def test_jitter_follows_from_key_and_moment_and_stays_within_its_bound() -> None:
    recurrence = every(60_000)
    a, again, b = (FiringRules(key, 30_000) for key in ("a", "a", "b"))
    of_a, of_again, of_b = (
        [
            due_ms - moment.ms
            for (moment, due_ms), _ in zip(coming(recurrence, each, START_MS), range(200), strict=False)
        ]
        for each in (a, again, b)
    )
    assert of_a == of_again != of_b
    assert 0 <= min(of_a) < 3_000 and 27_000 < max(of_a) <= 30_000


@pytest.mark.parametrize(
    ("field", "wrong"),
    [("jitter", {"jitter_ms": JITTER_MS_MAX + 1}), ("jitter", {"jitter_ms": -1}), ("catch_up", {"catch_up_ms": -1})],
)
def test_bounds_are_named(field: str, wrong: dict[str, int]) -> None:
    with pytest.raises(RecurrenceInvalid) as caught:
        FiringRules(**wrong)  # type: ignore[arg-type]
    assert caught.value.field == field
