"""From moments to firings: which moments fire now, which are left out because they were missed, and which one comes next.

A moment is due at its own time plus its jitter, which follows from the key and the moment alone. Moments are decided in
their order, each once: `DecidedMoments.after_ms` is the last one, and no later call looks at it or before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from hashlib import blake2b
from typing import Final

from delayserver.recurring.clock_changes import Moment
from delayserver.recurring.recurrence import Recurrence
from delayserver.recurring.recurrence_errors import RecurrenceInvalid

LATE_MS: Final = 60_000
"""A moment that is decided later than this was missed. A restart or a takeover takes less, so it misses none."""
EVERY_MS_MIN: Final = 1_000
"""The least interval: a cron expression names no shorter one either."""
JITTER_MS_MAX: Final = 3_600_000
CATCH_UP_MS_DEFAULT: Final = 86_400_000
CATCH_UP_MS_MAX: Final = 366 * 86_400_000


class Misfire(StrEnum):
    """What becomes of moments that were missed, because no server ran or its clock stepped forward."""

    ALL = "all"
    LATEST = "latest"
    """Of the missed ones the last fires."""
    NONE = "none"


@dataclass(frozen=True, slots=True)
class FiringRules:
    """How moments become firings. `key` is what the jitter follows from; missed moments older than `catch_up_ms` never
    fire."""

    key: str = ""
    jitter_ms: int = 0
    misfire: Misfire = Misfire.LATEST
    catch_up_ms: int = CATCH_UP_MS_DEFAULT

    def __post_init__(self) -> None:
        if not 0 <= self.jitter_ms <= JITTER_MS_MAX:
            raise RecurrenceInvalid("jitter", f"a jitter has 0 to {JITTER_MS_MAX:,} ms, which is an hour")
        if not 0 <= self.catch_up_ms <= CATCH_UP_MS_MAX:
            raise RecurrenceInvalid("catch_up", f"missed moments are caught up for 0 to {CATCH_UP_MS_MAX:,} ms")

    def due_ms(self, moment: Moment) -> int:
        """When a moment is due."""
        if not self.jitter_ms:
            return moment.ms
        digest = blake2b(f"{self.key}\0{moment.ms}".encode(), digest_size=8).digest()
        return moment.ms + int.from_bytes(digest, "little") % (self.jitter_ms + 1)


@dataclass(frozen=True, slots=True)
class DecidedMoments:
    """The moments that fire now, in their order. `after_ms`: the last moment that is decided. `following`: the next one,
    None if there is none. It may be due already, where more moments are due than were to be decided at once."""

    firings: tuple[Moment, ...]
    after_ms: int
    following: Moment | None


def decide(recurrence: Recurrence, rules: FiringRules, after_ms: int, now_ms: int, firings_max: int) -> DecidedMoments:
    """Decides the moments behind `after_ms` that are due at `now_ms`; at most `firings_max` fire."""
    begin_ms = max(after_ms, _forgotten_until(rules, now_ms))
    firings: list[Moment] = []
    missed: Moment | None = None
    if rules.misfire is Misfire.LATEST and begin_ms > after_ms:
        missed = _last_until(recurrence, max(after_ms, now_ms - rules.catch_up_ms - 1), begin_ms)
    following: Moment | None = None
    for moment in recurrence.moments(begin_ms):
        due_ms = rules.due_ms(moment)
        following = moment
        if due_ms > now_ms or len(firings) == firings_max:
            break
        following, begin_ms = None, moment.ms
        if due_ms >= now_ms - LATE_MS:
            firings.append(moment)
        elif moment.ms >= now_ms - rules.catch_up_ms:
            if rules.misfire is Misfire.ALL:
                firings.append(moment)
            missed = moment
    if missed is not None and rules.misfire is Misfire.LATEST:
        firings.insert(0, missed)
    return DecidedMoments(tuple(firings), begin_ms, following)


def coming(recurrence: Recurrence, rules: FiringRules, after_ms: int) -> Iterator[tuple[Moment, int]]:
    """The moments behind `after_ms`, and when each is due."""
    for moment in recurrence.moments(after_ms):
        yield moment, rules.due_ms(moment)


def _forgotten_until(rules: FiringRules, now_ms: int) -> int:
    """Up to here no moment fires, but for the last one with `latest`: all were missed, or are older than the bound."""
    if rules.misfire is Misfire.ALL:
        return now_ms - max(rules.catch_up_ms, LATE_MS + rules.jitter_ms) - 1
    return now_ms - LATE_MS - rules.jitter_ms - 1


def _last_until(recurrence: Recurrence, after_ms: int, until_ms: int) -> Moment | None:
    """The last moment behind `after_ms` and up to `until_ms`. It looks into longer and longer spans before the end, so it
    passes over few moments, also where a rule fires each second."""
    span_ms = LATE_MS
    while after_ms < until_ms:
        begin_ms = max(after_ms, until_ms - span_ms)
        last: Moment | None = None
        for moment in recurrence.moments(begin_ms):
            if moment.ms > until_ms:
                break
            last = moment
        if last is not None or begin_ms == after_ms:
            return last
        span_ms *= 2
    return None
