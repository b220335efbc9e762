"""The operation `transactions`: lists the transactions that are neither committed nor rolled back, by pages.

Each open transaction has one timer without an outcome. So a list of the timers is a list of the transactions, also after a
restart, and no table of them is kept. The columns of schedule files are read, up to the latest timer that there may be.

`Balance.timers_until_ms`, which the checkpoint keeps, says up to where timers may lie. It may be too late, never too
early.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.messages.cancellation import PREPARED, Cancellation, Ends
from delayserver.operations.messages.locator import Locator
from delayserver.operations.sending.prepare import CHECK_SUFFIX, POLICIES
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import format_receipt
from delayserver.protocol.schema.transactions import ListTransactions, OpenTransaction, OpenTransactionsPage
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.balance import Balance
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, FormatError
from store.logs.schedule_log import ScheduleKey, Source, SubjectRows
from store.logs.windows import day_of, window_starts
from store.records.batches import I64, U8, MessageBatch
from store.records.scan import Damage
from store.records.transaction_timer import TIMERS_SUBJECT, read_timers
from store.tables.names import OWN, Names

ROWS_SCANNED_MAX: Final = 262_144
"""Rows of schedule files that are read for a reply: some 50 ms of work in a thread. A page without a match ends here too."""

FILE_ROWS: Final = 256
"""What a file costs besides its rows, in rows."""

_TIMERS_AT_ONCE: Final = 256
_WINDOWS_AT_ONCE: Final = 4
_WINDOW_ITEMS: Final = 16
_TOO_LATE: Final = int(Outcome.TOO_LATE)
_POLICY_NAMES: Final = {code: name for name, code in POLICIES.items()}

Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place between two pages: the file of a day before those of its minutes, and a sequence within the file."""

    start_ms: int
    rank: int
    sequence: int

    @classmethod
    def parse(cls, text: str) -> Cursor:
        """Reads what `str` wrote. Raises InvalidArgument."""
        match = re.fullmatch(r"(\d{1,16})\.([0-3])\.(\d{1,18})", text, re.ASCII)
        if match is None:
            raise InvalidArgument("after must be the `next` of a reply")
        return cls(*map(int, match.groups()))

    def __str__(self) -> str:
        return f"{self.start_ms}.{self.rank}.{self.sequence}"


class OpenTransactions:
    """Lists open transactions by their timers, the next check first, as far as files are in that order."""

    def __init__(
        self,
        files: Files,
        windows: Windows,
        marks: tuple[Positions, Balance],
        decided: Decided,
        cancellation: tuple[Cancellation, Locator],
        runtime: Runtime,
    ) -> None:
        self._schedule = files.schedule
        self._days = files.days
        self._names = files.names
        self._server_id = f"{files.server_id:012x}"
        self._book = windows.book
        self._positions, self._balance = marks
        self._decided = decided
        self._cancellation, self._locator = cancellation
        self._workers = runtime.workers
        self._damage = runtime.damage

    async def page(self, asked: ListTransactions, work: Work, access: Access = EVERYTHING) -> OpenTransactionsPage:
        """The first open transactions behind a place whose subjects are open to the client. All that were prepared before
        the call are on some page. One whose check-back is made, or whose day moves to minutes, may be on two pages.
        Raises InvalidArgument."""
        place = Cursor(0, 0, 0) if asked.after is None else Cursor.parse(asked.after)
        await self._positions.replayed_sequence.reached(self._positions.accepted_sequence.value)
        timers = self._names.code(OWN, TIMERS_SUBJECT)
        found: dict[str, OpenTransaction] = {}
        scanned = 0
        while timers and (key := self._file_from(place)) is not None:
            rank = _rank(key)
            behind = place.sequence if (place.start_ms, place.rank) == (key.start_ms, rank) else 0
            rows = await self._workers.run(partial(self._timers, key, timers, behind, ROWS_SCANNED_MAX - scanned))
            scanned += rows.scanned + FILE_ROWS
            for start in range(0, len(rows.sequence), _TIMERS_AT_ONCE):
                for sequence, each in await self._open(key, rows.slice(start, start + _TIMERS_AT_ONCE), work):
                    if not access.may(each.subject):
                        continue
                    if len(found) == asked.max and each.receipt not in found:
                        return OpenTransactionsPage([*found.values()], str(place))
                    found[each.receipt] = each
                    place = Cursor(key.start_ms, rank, sequence)
            place = Cursor(key.start_ms, rank + 1, 0) if rows.last is None else Cursor(key.start_ms, rank, rows.last)
            if scanned >= ROWS_SCANNED_MAX:
                return OpenTransactionsPage([*found.values()], str(place))
            await work.items(_WINDOW_ITEMS)
        return OpenTransactionsPage([*found.values()], None)

    # -- the files, in the order of their due times

    def _file_from(self, place: Cursor) -> ScheduleKey | None:
        """The next file that may hold timers without an outcome, as the days stand now; None behind the last one.

        A day that moves to minutes has its rows in both. As long as its own file is there, that one counts."""
        until_ms = self._balance.timers_until_ms
        draining = {day.start_ms for day in self._days.draining()}
        coarse = {day for day in self._schedule.days() if day >= self._days.fine_until_ms}
        own = [ScheduleKey(day, Source.DAY) for day in sorted(draining | coarse) if day >= place.start_ms]
        day = next((key for key in own if _is_at(key, place) and key in self._schedule), None)
        position = place.start_ms
        while starts := self._book.incomplete_between(position, until_ms + 1, _WINDOWS_AT_ONCE):
            for start in starts:
                if day is not None and day.start_ms <= start:
                    return day if day.start_ms <= until_ms else None
                for key in sorted(self._book.files(start), key=_rank):
                    moves = key.source == Source.FROM_DAY and day_of(start) in draining
                    if not moves and _is_at(key, place) and key in self._schedule:
                        return key
            position = starts[-1] + 1
        return day if day is not None and day.start_ms <= until_ms else None

    def _timers(self, key: ScheduleKey, subject: int, behind: int, rows_max: int) -> SubjectRows:
        """For any thread. A file that is gone was drained into minutes, which come later, or has no open message."""
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

    # -- the transactions of timers

    async def _open(self, key: ScheduleKey, rows: SubjectRows, work: Work) -> list[tuple[int, OpenTransaction]]:
        """The open transactions of some timers of a file, each with the sequence of its timer."""
        rows = rows.take(await self._without_outcome(rows, work))
        if not len(rows.sequence):
            return []
        batch = await self._workers.run(partial(self._read, key, rows.sequence))
        timers, sound = read_timers(batch.bodies, batch.bodies_length)
        transaction, due_ms = batch.origin_sequence, np.ascontiguousarray(timers["due_ms"])
        located = await self._cancellation.locate(transaction, due_ms)
        state = await self._cancellation.decide(located, transaction, due_ms, Ends.NONE)
        # A copy that a retried `prepare` made has a timer as well.
        places = np.flatnonzero(sound & (state == PREPARED) & (located.message == transaction))
        accepted_us = await self._workers.run(partial(self._locator.accepted_us, transaction[places], due_ms[places]))
        result: list[tuple[int, OpenTransaction]] = []
        for place, accepted in zip(places.tolist(), accepted_us.tolist(), strict=True):
            await work.items()
            subject = self._names.name(int(located.subject[place]))
            result.append(
                (
                    int(batch.sequence[place]),
                    self._shown(int(transaction[place]), subject, accepted, int(batch.due_ms[place]), timers[place]),
                )
            )
        return result

    def _shown(self, sequence: int, subject: str, accepted_us: int, check_ms: int, timer: Any) -> OpenTransaction:
        due_ms = int(timer["due_ms"])
        return OpenTransaction(
            receipt=format_receipt(self._server_id, due_ms, sequence),
            subject=subject,
            due_ms=due_ms,
            group=_group(self._names, int(timer["check_subject"])),
            accepted_us=accepted_us,
            next_check_ms=check_ms,
            checks=int(timer["check"]) - 1,
            checks_max=int(timer["checks_max"]),
            policy=_POLICY_NAMES.get(int(timer["policy"]), ""),
        )

    def _read(self, key: ScheduleKey, sequence: I64) -> MessageBatch:
        try:
            return self._schedule.read_rows(key, sequence, damages=[])  # `_timers` has reported it
        except (KeyError, CorruptionError, FormatError):
            return MessageBatch.filled(0)

    async def _without_outcome(self, rows: SubjectRows, work: Work) -> Mask:
        """Timers that were not answered, bool[n]. Where damage hides an outcome, the transaction itself decides."""
        code = np.zeros(len(rows.sequence), np.uint8)
        starts = window_starts(rows.due_ms, self._book.window_ms)
        for start in np.unique(starts).tolist():
            await work.items(_WINDOW_ITEMS)
            mine = np.flatnonzero(starts == start)
            code[mine] = await self._outcomes(start, rows.sequence[mine])
        unanswered: Mask = (code == 0) | (code == _TOO_LATE)
        return unanswered

    async def _outcomes(self, start_ms: int, sequence: I64) -> U8:
        while True:
            key = self._decided.key_of(start_ms)
            try:
                async with self._decided.pinned(key) as index:
                    if self._decided.key_of(start_ms) == key:  # else its day was sealed meanwhile
                        return self._decided.outcome_of(key, index, sequence)
            except CorruptionError:  # reported
                return await self._decided.told(key, sequence)


def _is_at(key: ScheduleKey, place: Cursor) -> bool:
    """Whether a file is the one of a place, or comes behind it."""
    return (key.start_ms, _rank(key)) >= (place.start_ms, place.rank)


def _rank(key: ScheduleKey) -> int:
    """A day drains into its minutes, so its file comes first."""
    return int(Source.DAY) - int(key.source)


def _group(names: Names, check_subject: int) -> str:
    return names.name(check_subject).removesuffix(CHECK_SUFFIX) if check_subject else ""
