"""What the definition of a schedule says: when it fires, and what each message is. No disk, no clock."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from typing import Any, Final

import msgpack
from msgspec import convert

from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.schedules import Definition
from delayserver.recurring.clock_changes import ClockChoices, GapChoice, Moment, OverlapChoice
from delayserver.recurring.cron_expression import Cron
from delayserver.recurring.days_out import DaysOut
from delayserver.recurring.firing import DecidedMoments, FiringRules, Misfire, coming, decide
from delayserver.recurring.recurrence import Recurrence, Rule, Span, default_choices
from delayserver.recurring.recurrence_errors import RecurrenceInvalid
from delayserver.recurring.simple_rules import Every, Once
from delayserver.recurring.zones import Zone
from store.records.message_rows import Row
from store.records.schedule_timer import ScheduleTimer

SCHEDULE, SCHEDULE_MOMENT = "schedule", "schedule_moment_ms"
"""The properties of each message of a schedule: its name, and the moment. A message of `run` has the time of the request."""

_RULES_KEPT: Final = 4_096
_PLACE: Final = re.compile(rb"\$\{([^}]*)\}|\$\$")
_PLACES: Final = frozenset({b"due_ms", b"due", b"name", b"run"})


@dataclass(frozen=True)
class ScheduleRules:
    """The rules of a schedule. It ends after `times` firings; None: it has no such bound."""

    recurrence: Recurrence
    firing: FiringRules
    times: int | None
    template: bool

    def decide(self, after_ms: int, now_ms: int, fired: int, firings_max: int) -> DecidedMoments:
        """The moments that fire now, where so many have `fired` before."""
        left = firings_max if self.times is None else max(self.times - fired, 0)
        if not left:
            return DecidedMoments((), after_ms, None)
        decided = decide(self.recurrence, self.firing, after_ms, now_ms, min(left, firings_max))
        if self.times is None or len(decided.firings) < left:
            return decided
        return DecidedMoments(decided.firings[:left], decided.after_ms, None)

    def coming(self, timer: ScheduleTimer) -> Iterator[tuple[Moment, int]]:
        """The moments that come, and when each is due."""
        moments = coming(self.recurrence, self.firing, timer.after_ms)
        if self.times is None:
            return moments
        return (each for each, _ in zip(moments, range(self.times - timer.fired), strict=False))

    def row(self, timer: ScheduleTimer, generation: int, moment: Moment, due_ms: int, run: int | None = None) -> Row:
        """The message of a moment, with the id that follows from name, generation and moment. `run`: it is none of the rule,
        and the so many-th message of the schedule."""
        subject, body, properties, tag, order_key = timer.row
        if self.template:
            body = _filled(body, self._values(timer, moment, timer.fired + 1 if run is None else run))
        which = f"{moment.ms}" if run is None else f"run-{run}"
        own: dict[str, str] = msgpack.unpackb(properties) if properties else {}
        own |= {SCHEDULE: timer.name, SCHEDULE_MOMENT: str(moment.ms)}
        message_id = f"{timer.name}:{generation}:{which}".encode()
        return due_ms, subject, 0, message_id, msgpack.packb(own), body, tag, order_key

    def _values(self, timer: ScheduleTimer, moment: Moment, run: int) -> dict[bytes, str]:
        offset = timedelta(seconds=self.recurrence.zone.offset_at(moment.ms // 1000))
        local = datetime.fromtimestamp(moment.ms // 1000, timezone(offset)) + timedelta(milliseconds=moment.ms % 1000)
        return {
            b"due_ms": str(moment.ms),
            b"due": local.isoformat(timespec="milliseconds" if moment.ms % 1000 else "seconds"),
            b"name": timer.name,
            b"run": str(run),
        }


def rules_of(timer: ScheduleTimer) -> ScheduleRules:
    """The rules of a timer's schedule. They were checked when it was made."""
    return _rules(timer.definition, timer.name, timer.changed_ms)


@lru_cache(_RULES_KEPT)
def _rules(definition: bytes, name: str, changed_ms: int) -> ScheduleRules:
    return read_rules(convert(msgpack.unpackb(definition), Definition), name, changed_ms)


def read_rules(asked: Definition, name: str, now_ms: int) -> ScheduleRules:
    """The rules of a definition that is given now. Raises InvalidArgument, which names the field."""
    try:
        rule = _rule(asked, now_ms if asked.start_ms is None else asked.start_ms)
        default = default_choices(rule)
        choices = ClockChoices(
            _choice(GapChoice, "gap", asked.gap or default.gap),
            _choice(OverlapChoice, "overlap", asked.overlap or default.overlap),
        )
        start_ms = now_ms if asked.start_ms is None else asked.start_ms
        span, days_out = Span(start_ms, asked.end_ms), DaysOut.parse(asked.days_out)
        recurrence = Recurrence(rule, Zone.named(asked.zone), choices, span, days_out)
        misfire = _choice(Misfire, "misfire", asked.misfire)
        firing = FiringRules(name, asked.jitter_ms, misfire, asked.catch_up_ms)
        recurrence.check()
    except RecurrenceInvalid as error:
        field = _given(asked)[0] if error.field == "rule" else error.field
        raise InvalidArgument(f"{field}: {error}") from None
    return ScheduleRules(recurrence, firing, asked.times, asked.template)


def check_template(body: bytes) -> None:
    """Raises InvalidArgument where a body names a value that there is not."""
    for match in _PLACE.finditer(body):
        if match[1] is not None and match[1] not in _PLACES:
            known = ", ".join(sorted(f"${{{place.decode()}}}" for place in _PLACES))
            raise InvalidArgument(f"the template names {match[0][:40]!r}; it may name {known}, and $$ stands for $")


def _filled(body: bytes, values: dict[bytes, str]) -> bytes:
    return _PLACE.sub(lambda match: b"$" if match[1] is None else values[match[1]].encode(), body)


def _given(asked: Definition) -> list[str]:
    values = {"cron": asked.cron, "every_ms": asked.every_ms, "at": asked.at}
    return [name for name, value in values.items() if value is not None]


def _rule(asked: Definition, from_ms: int) -> Rule:
    given = _given(asked)
    if len(given) != 1:
        raise InvalidArgument(f"give exactly one of cron, every_ms and at, not {' and '.join(given) or 'none'}")
    if asked.cron is not None:
        return Cron.parse(asked.cron)
    return Every(asked.every_ms, from_ms) if asked.every_ms is not None else Once.parse(asked.at or "")


def _choice(kind: Any, name: str, value: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        words = ", ".join(each.value for each in kind)
        raise InvalidArgument(f"{name} is one of {words}, not {value[:40]!r}") from None
