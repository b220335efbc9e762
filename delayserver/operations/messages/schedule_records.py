"""The timers of schedules on the disk, and the records that answer them: messages, and each timer's successor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec
import numpy as np

from delayserver.operations.messages.locator import Locator
from delayserver.operations.messages.schedule_rules import ScheduleRules, rules_of
from delayserver.receive.intake import Intake
from delayserver.recurring.clock_changes import Moment
from delayserver.runtime.clock import Clock
from delayserver.state.memory.schedule_timers import ScheduleTimerPlace
from store.records.batches import I64, MessageBatch
from store.records.message_rows import MessageRows, Row, to_batch
from store.records.schedule_timer import SCHEDULES_SUBJECT, ScheduleTimer, read_schedules, schedule_timers
from store.tables.names import SCHEDULING, Names

FIRINGS_MAX: Final = 100
"""Firings of one schedule in a record. What is due beyond comes with its next timer, which is due at once."""
FIRINGS_BYTES_MAX: Final = 1 << 20


@dataclass(slots=True)
class NextTimer:
    """The timer that replaces another one, and the messages that come with it."""

    timer: ScheduleTimer
    due_ms: int
    rows: list[Row] = field(default_factory=list)

    @property
    def size_bytes(self) -> int:
        """The bytes of the record that it needs."""
        return len(self.timer.definition) + len(self.timer.row[1]) + sum(len(row[4]) + len(row[5]) for row in self.rows)


class Replaced(NamedTuple):
    """n timers that others replace: their sequences and due times, i64[n] each. `generation` i64[n] is that of the schedules
    from then on; None: their definitions are new."""

    sequence: I64
    due_ms: I64
    generation: I64 | None


class ScheduleRecords:
    """Reads timers, and makes what follows from them."""

    def __init__(self, names: Names, locator: Locator, intake: Intake, delay_ms_max: int, clock: Clock) -> None:
        """`delay_ms_max`: no timer is due later than so long from now."""
        self._names = names
        self._locator = locator
        self._intake = intake
        self._delay_ms_max = delay_ms_max
        self._clock = clock

    @property
    def subject(self) -> int:
        """The code of the subject of timers; 0: there was never a schedule."""
        return self._names.code(SCHEDULING, SCHEDULES_SUBJECT)

    def read(self, place: ScheduleTimerPlace) -> tuple[ScheduleTimer, int] | None:
        """A timer and the generation of its schedule; None where damage hides it. May run in any thread."""
        batch = self._locator.read_internal(place.sequence, place.due_ms)
        if not len(batch):
            return None
        (timer,) = read_schedules(batch, np.arange(1))
        return None if timer is None else (timer, int(batch.origin_sequence[0]))

    def fired(self, timer: ScheduleTimer, generation: int) -> NextTimer:
        """What follows from a timer that is due."""
        now_ms = self._clock.now_ms()
        if timer.paused:
            return NextTimer(timer, now_ms + self._delay_ms_max)
        rules = rules_of(timer)
        firings_max = max(1, min(FIRINGS_MAX, FIRINGS_BYTES_MAX // (len(timer.row[1]) + 1)))
        decided = rules.decide(timer.after_ms, now_ms, timer.fired, firings_max)
        rows: list[Row] = []
        for moment in decided.firings:
            due_ms = self._open_due_ms(rules.firing.due_ms(moment), now_ms)
            rows.append(rules.row(timer, generation, moment, due_ms))
            timer = msgspec.structs.replace(timer, fired=timer.fired + 1)
        timer = msgspec.structs.replace(timer, after_ms=decided.after_ms)
        return self.armed(timer, rules, decided.following, rows)

    def armed(
        self, timer: ScheduleTimer, rules: ScheduleRules, following: Moment | None, rows: list[Row] | None = None
    ) -> NextTimer:
        """A timer for the moment that follows. It is due earlier if that is too far away, and far away if there is none."""
        now_ms = self._clock.now_ms()
        latest_ms = now_ms + self._delay_ms_max
        due_ms = latest_ms if following is None else max(rules.firing.due_ms(following), now_ms)
        moment_ms = following.ms if following is not None and due_ms <= latest_ms else 0
        return NextTimer(msgspec.structs.replace(timer, moment_ms=moment_ms), min(due_ms, latest_ms), rows or [])

    def batch(self, following: Sequence[NextTimer], replaced: Replaced | None) -> MessageBatch:
        """The record of messages and timers. `replaced` are the timers in whose place they come; None: they make
        schedules."""
        rows = [row for each in following for row in each.rows]
        timers = schedule_timers(
            [each.timer for each in following],
            [each.due_ms for each in following],
            self.subject,
            None if replaced is None else replaced.generation,
            None if replaced is None else (replaced.sequence, replaced.due_ms),
        )
        return MessageBatch.concatenate([to_batch([MessageRows(rows, 1, 0)]), timers]) if rows else timers

    def _open_due_ms(self, due_ms: int, now_ms: int) -> int:
        """The due time of a firing. A window that is retired takes no more messages: then it is due now."""
        refused = self._intake.check_due_again(np.array([due_ms], np.int64))
        return now_ms if refused else due_ms
