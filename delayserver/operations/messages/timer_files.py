"""The timers of transactions in schedule files, in the order of the files.

`Balance.timers_until_ms`, which the checkpoint keeps, says up to where timers may lie. It may be too late, never too
early.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.messages.message_states import MessageStates
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.damage import DamageReport
from delayserver.runtime.fair_turns import Work
from delayserver.state.counts.balance import Balance
from delayserver.state.files import Files
from delayserver.state.windows.window_book import WindowBook
from store.errors import CorruptionError, FormatError
from store.logs.due_windows import day_of, window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleSource, SubjectRows
from store.records.batches import I64, MessageBatch
from store.records.scan import Damage

WINDOW_ITEMS: Final = 16
"""What a look at a window costs, in items."""

_WINDOWS_AT_ONCE: Final = 4
_TOO_LATE: Final = int(Outcome.TOO_LATE)

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, order=True)
class TimerPlace:
    """A place between two pages: the file of a day before those of its minutes, and a sequence within the file."""

    start_ms: int
    rank: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> TimerPlace:
        """Reads what `str` wrote. Raises InvalidArgument."""
        match = re.fullmatch(r"(\d{1,16})\.([0-3])\.(\d{1,18})", text, re.ASCII)
        if match is None:
            raise InvalidArgument("after must be the `next` of a reply")
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.start_ms}.{self.rank}.{self.sequence}"


class TimerFiles:
    """Reads them, and which of them have no outcome."""

    def __init__(
        self, files: Files, book: WindowBook, balance: Balance, states: MessageStates, damage: DamageReport
    ) -> None:
        self._schedule = files.schedule
        self._days = files.days
        self._book = book
        self._balance = balance
        self._states = states
        self._damage = damage

    def file_from(self, place: TimerPlace) -> ScheduleKey | None:
        """The next file that may hold timers without an outcome, as the days stand now; None behind the last one.

        A day that moves to minutes has its rows in both. As long as its own file is there, that one counts."""
        until_ms = self._balance.timers_until_ms
        draining = {day.start_ms for day in self._days.draining()}
        coarse = {day for day in self._schedule.days() if day >= self._days.fine_until_ms}
        own = [ScheduleKey(day, ScheduleSource.DAY) for day in sorted(draining | coarse) if day >= place.start_ms]
        day = next((key for key in own if _is_at(key, place) and key in self._schedule), None)
        position = place.start_ms
        while starts := self._book.incomplete_between(position, until_ms + 1, _WINDOWS_AT_ONCE):
            for start in starts:
                if day is not None and day.start_ms <= start:
                    return day if day.start_ms <= until_ms else None
                for key in sorted(self._book.files(start), key=rank_of):
                    moves = key.source == ScheduleSource.FROM_DAY and day_of(start) in draining
                    if not moves and _is_at(key, place) and key in self._schedule:
                        return key
            position = starts[-1] + 1
        return day if day is not None and day.start_ms <= until_ms else None

    def rows(self, key: ScheduleKey, subject: int, behind: int, rows_max: int) -> SubjectRows:
        """The timers of a file behind a sequence, for any thread. A file that is gone was drained into minutes, which come
        later, or has no open message."""
        damages: list[Damage] = []
        try:
            rows = self._schedule.rows_of_subject(key, subject, behind, rows_max, damages)
        except KeyError:
            return SubjectRows.none()
        except (CorruptionError, FormatError) as error:
            self._damage.report(error.as_damage() if isinstance(error, FormatError) else error)
            return SubjectRows.none()
        for damage in damages:
            self._damage.report(damage.error(self._schedule.path(key)))
        return rows

    def read(self, key: ScheduleKey, sequence: I64) -> MessageBatch:
        """The rows of some messages of a file, for any thread. None where the file is gone or damaged."""
        try:
            return self._schedule.read_rows(key, sequence, damages=[])  # `rows` has reported it
        except (KeyError, CorruptionError, FormatError):
            return MessageBatch.filled(0)

    async def without_outcome(self, rows: SubjectRows, work: Work) -> Mask:
        """Timers that were not answered, bool[n]. Where damage hides an outcome, the transaction itself decides."""
        code = np.zeros(len(rows.sequence), np.uint8)
        starts = window_starts(rows.due_ms, self._book.window_ms)
        for start in np.unique(starts).tolist():
            await work.items(WINDOW_ITEMS)
            mine = np.flatnonzero(starts == start)
            code[mine] = await self._states.outcomes(start, rows.sequence[mine])
        unanswered: Mask = (code == 0) | (code == _TOO_LATE)
        return unanswered


def _is_at(key: ScheduleKey, place: TimerPlace) -> bool:
    """Whether a file is the one of a place, or comes behind it."""
    return (key.start_ms, rank_of(key)) >= (place.start_ms, place.rank)


def rank_of(key: ScheduleKey) -> int:
    """A day drains into its minutes, so its file comes first."""
    return int(ScheduleSource.DAY) - int(key.source)
