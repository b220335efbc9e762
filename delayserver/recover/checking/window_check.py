"""Reconciles the windows of one day: the outcomes in dispatch_log against the messages in schedule_log.

Each message counts once, in whichever tier it lies. While a sealed day is drained its file and the minutes both hold a
message; the high-water mark of the minute says which of the day's messages are there already.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import FileRead, Reader
from delayserver.recover.reading.findings import CONTRADICTORY, MISPLACED
from delayserver.recover.reading.fingerprint import Fingerprints, row_hashes
from delayserver.recover.reading.outcomes_of_file import OutcomeRows, read_outcomes
from delayserver.recover.reading.subject_balances import ACCEPTED, INTERNAL, PENDING, SubjectBalances
from delayserver.recover.reading.window_units import ALL_OF_IT, Units, unit_code
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import DAY_MS, window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import FLAG_PREPARED, I64, U8, U32, U64, MessageBatch
from store.records.column_batch import has_any
from store.records.column_blocks import Columns
from store.records.records import Records

NAMES = ("sequence", "due_ms", "accepted_us", "origin_sequence", "duplicate_of", "subject", "flags")
_DEDUPLICATED, _CANCELLED, _ROLLED_BACK = (
    int(code) for code in (Outcome.DEDUPLICATED, Outcome.CANCELLED, Outcome.ROLLED_BACK)
)


@dataclass(frozen=True, slots=True)
class ScheduleRows:
    """Columns of schedule rows of one file, in sequence order, with the offset of each row's record."""

    sequence: I64
    due_ms: I64
    accepted_us: I64
    origin_sequence: I64
    duplicate_of: I64
    subject: U32
    flags: U32
    offset: I64

    @classmethod
    def of(cls, records: Records, columns: Columns) -> ScheduleRows:
        """The rows of these records, of which the columns NAMES were read."""
        return cls(**{name: columns[name] for name in NAMES}, offset=records.row_offsets())

    def take(self, mask: NDArray[np.bool_]) -> ScheduleRows:
        """The rows where the mask is True."""
        if bool(mask.all()):
            return self
        return ScheduleRows(*[getattr(self, name)[mask] for name in (*NAMES, "offset")])

    def hashes(self) -> U64:
        """A hash of each message without its bytes, u64[n]."""
        return row_hashes(self.sequence, self.due_ms, self.accepted_us, self.origin_sequence, self.subject)


def _against_transaction(outcome: U8, rows: ScheduleRows) -> NDArray[np.bool_]:
    """Outcomes that contradict the flag of a prepared transaction, bool[n]: a delivery of one, a rollback of another."""
    against: NDArray[np.bool_] = outcome == _ROLLED_BACK
    if not has_any(rows.flags):
        return against
    ended = (outcome == _CANCELLED) | (outcome == _ROLLED_BACK) | (outcome == _DEDUPLICATED)
    prepared = rows.flags & FLAG_PREPARED != 0
    against = np.where(prepared, ~ended, against)
    return against


@dataclass(frozen=True, slots=True)
class Visited:
    """Rows of one place with their outcome codes u8[n] (0: none yet). `key` is None for rows of the message_log."""

    path: str
    size: int
    key: ScheduleKey | None
    rows: ScheduleRows
    outcome: U8


Visit = Callable[[Visited], None]
Publish = Callable[[str, int, SubjectBalances], None]
"""Takes the balance of one place: tier (`minute`, `day`, `message_log`, `retired`), start_ms, counts."""


def _publish_nothing(_tier: str, _start_ms: int, _balance: SubjectBalances) -> None:
    pass


@dataclass(slots=True)
class _Day:
    """Results of the windows of a day, for the check of the day's own file."""

    start_ms: int
    coarse: OutcomeRows
    loose: list[OutcomeRows] = field(default_factory=list)
    window_starts: list[int] = field(default_factory=list)
    high_water: list[int] = field(default_factory=list)
    placed: list[tuple[int, int]] = field(default_factory=list)


class WindowCheck:
    """Goes through all days and windows once. `publish` is called with the balance of every window and day.

    Afterwards `loose` holds outcomes whose message is in no schedule file: those of messages that a crash took out of it
    and that replay will bring back, and orphans.
    """

    def __init__(
        self,
        reader: Reader,
        units: Units,
        first_kept: int,
        span: Range,
        publish: Publish = _publish_nothing,
        visit: Visit | None = None,
    ) -> None:
        """`visit` is called with all rows and their outcomes. With it the bytes of the messages are not verified."""
        self._reader = reader
        self._taken = reader.taken
        self._findings = reader.findings
        self._visit = visit
        self._units = units
        self._first_kept = first_kept
        self._span = span
        self._publish = publish
        self.loose: list[OutcomeRows] = []
        self.damaged: dict[int, list[tuple[int, int]]] = {}
        self.accepted_before = 0
        # Windows whose files went while they were read: a running server's retention takes them.
        self.gone: list[int] = []
        # Files of minutes that do not hold what the file of their day, still there, gave them.
        self.unlike_day: list[ScheduleKey] = []
        self._met_gone = False
        self.highest_sequence = 0
        self.subject_max = 0

    def run(self) -> None:
        """Day by day, in order."""
        days: dict[int, list[int]] = {}
        schedule, dispatch = self._taken.files.schedule, self._taken.files.dispatch
        for key in schedule:
            days.setdefault(key.start_ms - key.start_ms % DAY_MS, []).append(
                -1 if key.source == ScheduleSource.DAY else key.start_ms
            )
        for found in dispatch:
            days.setdefault(found.start_ms - found.start_ms % DAY_MS, []).append(-1 if found.coarse else found.start_ms)
        for start in sorted(days):
            if self._span.holds(start, DAY_MS):
                self._day(start, sorted({window for window in days[start] if window >= 0}))

    def _day(self, start_ms: int, windows: list[int]) -> None:
        coarse = self._outcomes(DispatchKey(start_ms, True))
        # Outcomes that a whole day has are in the ledger before its files go.
        mine = self._span.mask(coarse.due_ms) & ~self._units.is_retired(coarse.due_ms, coarse.sequence)
        day = _Day(start_ms, coarse.take(np.flatnonzero(mine)))
        for window in windows:
            if self._span.holds(window, self._taken.files.window_ms):
                self._window(window, day)
        self._day_file(day)
        unseen = np.flatnonzero(~day.coarse.seen)
        day.loose.append(day.coarse.take(unseen))
        self.loose += [rows.take(np.flatnonzero(~rows.seen)) for rows in day.loose if len(rows)]

    # -- reading

    def _outcomes(self, key: DispatchKey) -> OutcomeRows:
        if key not in self._taken.files.dispatch:
            return OutcomeRows.empty()
        read = self._reader.dispatch(key)
        span_ms = DAY_MS if key.coarse else self._taken.files.window_ms
        rows = read_outcomes(read, key.start_ms, key.start_ms + span_ms)
        self._met_gone |= read.gone
        known = self._taken.marks.dispatch_known.get(key)
        if known is not None:
            self._compare_mark(read, sum(known.counts) + sum(known.internal_counts))
        return rows

    def _compare_mark(self, read: FileRead, rows: int) -> None:
        if read.usable and not read.gaps and read.rows_at_mark >= 0 and read.rows_at_mark != rows:
            self._findings.add(
                CONTRADICTORY,
                read.path,
                0,
                f"the checkpoint counts {rows} rows up to its offset, the file has {read.rows_at_mark}",
            )

    def _rows(self, key: ScheduleKey, read: FileRead) -> Iterator[ScheduleRows]:
        """The rows of a schedule file, with its own order verified."""
        last = 0
        others = "records that are no messages in a schedule file"
        for records, columns in read.rows(MessageBatch, NAMES, blobs=self._visit is None, others=others):
            rows = ScheduleRows.of(records, columns)
            self._verify_order(read, rows, last)
            last = int(rows.sequence[-1])
            self.highest_sequence = max(self.highest_sequence, last)
            self.subject_max = max(self.subject_max, int(rows.subject.max()))
            yield rows
        known = self._taken.marks.schedule_known.get(key)
        if known is not None:
            self._compare_mark(read, known.rows)

    def _verify_order(self, read: FileRead, rows: ScheduleRows, last: int) -> None:
        ascending = bool((rows.sequence[1:] > rows.sequence[:-1]).all())
        if int(rows.sequence[0]) <= last or not ascending:
            place = 0 if ascending else int(np.flatnonzero(np.diff(rows.sequence) <= 0)[0]) + 1
            self._findings.add(
                CONTRADICTORY,
                read.path,
                int(rows.offset[place]),
                f"sequence {rows.sequence[place]} stands behind a higher one: a batch was written twice, or out of order",
            )

    # -- windows

    def _window(self, window: int, day: _Day) -> None:
        # Rows that the ledger counts are left out: a crash left their files, or a message that came meanwhile keeps them.
        retired_to = self._units.retired_to(window)
        self._met_gone, before = False, self.accepted_before
        outcomes = self._outcomes(DispatchKey(window, False))
        outcomes = outcomes.take(np.flatnonzero(outcomes.sequence > retired_to))
        balance = SubjectBalances()
        for source in (ScheduleSource.DIRECT, ScheduleSource.FROM_DAY):
            key = ScheduleKey(window, source)
            if key in self._taken.files.schedule:
                self._window_file(key, retired_to, outcomes, day, balance)
        if self._met_gone:
            self.gone.append(window)
            self.accepted_before = before
            return
        unseen = np.flatnonzero(~outcomes.seen)
        if len(unseen):
            day.loose.append(outcomes.take(unseen))
        if not retired_to or len(balance.rows()[0]):
            self._publish("minute", window, balance)

    def _window_file(
        self, key: ScheduleKey, retired_to: int, outcomes: OutcomeRows, day: _Day, balance: SubjectBalances
    ) -> None:
        stop = key.start_ms + self._taken.files.window_ms
        code = unit_code(key) if key.source == ScheduleSource.DIRECT else day.start_ms * 2 + 1
        place = self._units.place(code)
        all_of_it = Fingerprints(1)
        read = self._reader.schedule(key)
        for rows in self._rows(key, read):
            self._look_at_window(read, rows, key.start_ms, stop)
            rows = rows.take(rows.sequence > retired_to)  # noqa: PLW2901
            found = self._outcome_of(
                rows, [outcomes, day.coarse] if key.source == ScheduleSource.FROM_DAY else [outcomes], read
            )
            self._count(key, rows, found, balance)
            hashes = rows.hashes()
            kept = rows.sequence >= self._first_kept
            if (
                key.source == ScheduleSource.DIRECT
                or ScheduleKey(day.start_ms, ScheduleSource.DAY) not in self._taken.files.schedule
            ):
                self._units.placed.add_all(place, hashes[kept])
            if key.source == ScheduleSource.FROM_DAY:
                all_of_it.add_all(0, hashes)
        self._met_gone |= read.gone
        if read.gone or not read.usable:
            self._units.skipped[place] = True
        if read.gaps:
            self.damaged.setdefault(code, []).extend(read.gaps)
        if key.source == ScheduleSource.DIRECT:
            self._units.high_water[place] = read.last_sequence
        else:
            day.window_starts.append(key.start_ms)
            day.high_water.append(read.last_sequence)
            day.placed.append((int(all_of_it.counts[0]), int(all_of_it.sums[0])))

    def _look_at_window(self, read: FileRead, rows: ScheduleRows, start_ms: int, stop_ms: int) -> None:
        foreign = np.flatnonzero((rows.due_ms < start_ms) | (rows.due_ms >= stop_ms))

        def detail(row: int) -> str:
            return f"messages of another window, the first sequence {rows.sequence[row]} due at {rows.due_ms[row]}"

        self._findings.add_rows(MISPLACED, read.path, rows.offset, foreign, detail)

    def _outcome_of(self, rows: ScheduleRows, tables: list[OutcomeRows], read: FileRead) -> U8:
        """Outcome codes u8[n] of schedule rows, 0 where there is none. The first table that knows a row decides."""
        code = np.zeros(len(rows.sequence), np.uint8)
        for outcomes in tables:
            if not len(outcomes):
                continue
            place, there = outcomes.find(rows.sequence)
            outcomes.seen[place[there]] = True
            new = there & (code == 0)
            code[new] = outcomes.outcome[place[new]]
            self._compare(rows, outcomes, place, there, read)
        return code

    def _compare(
        self,
        rows: ScheduleRows,
        outcomes: OutcomeRows,
        place: NDArray[np.intp],
        there: NDArray[np.bool_],
        read: FileRead,
    ) -> None:
        """An outcome must speak of the message as it was accepted."""
        wrong = there & (
            (outcomes.due_ms[place] != rows.due_ms)
            | (outcomes.subject[place] != rows.subject)
            | ((outcomes.outcome[place] == _DEDUPLICATED) & (rows.duplicate_of == 0))
            | ((outcomes.outcome[place] != _DEDUPLICATED) & (rows.duplicate_of != 0))
            | _against_transaction(outcomes.outcome[place], rows)
        )

        def detail(row: int) -> str:
            return (
                f"outcomes that do not fit their message in {read.path}, the first of sequence {rows.sequence[row]} "
                "(due time, subject, copy of another message, or prepared transaction)"
            )

        if wrong.any():
            offset = outcomes.offset[place]
            self._findings.add_rows(CONTRADICTORY, outcomes.path, offset, np.flatnonzero(wrong), detail)

    def _count(self, key: ScheduleKey, rows: ScheduleRows, outcome: U8, balance: SubjectBalances) -> None:
        if self._visit is not None and len(rows.sequence):
            self._visit(Visited(self._taken.schedule_path(key), self._taken.files.schedule[key], key, rows, outcome))
        own = rows.origin_sequence == 0
        if not self._span.everything:
            inside = self._span.mask(rows.due_ms)
            own = own & inside
            balance.add(INTERNAL, rows.subject[~own & inside])
        elif not own.all():
            balance.add(INTERNAL, rows.subject[~own])
        subject, code = rows.subject[own], outcome[own]
        balance.add(ACCEPTED, subject)
        balance.add(PENDING, subject[code == 0])
        balance.add_outcomes(code[code != 0], subject[code != 0])
        limit = self._taken.marks.checkpoint.replayed_sequence
        self.accepted_before += int(np.count_nonzero(own & (rows.sequence <= limit)))

    # -- the day's own file

    def _day_file(self, day: _Day) -> None:
        key = ScheduleKey(day.start_ms, ScheduleSource.DAY)
        place = self._units.place(day.start_ms * 2 + 1)
        if key not in self._taken.files.schedule:
            if day.window_starts:
                # Drained: the messages of the day are in its minutes, and these are complete.
                self._units.high_water[place] = ALL_OF_IT
            return
        starts, marks = np.array(day.window_starts, np.int64), np.array(day.high_water, np.int64)
        expected = Fingerprints(len(starts))
        balance = SubjectBalances()
        read = self._reader.schedule(key)
        for rows in self._rows(key, read):
            self._look_at_window(read, rows, day.start_ms, day.start_ms + DAY_MS)
            # The rest was retired with its minutes.
            rows = rows.take(~self._units.is_retired(rows.due_ms, rows.sequence))  # noqa: PLW2901
            hashes = rows.hashes()
            self._units.placed.add_all(
                place, hashes[(rows.sequence >= self._first_kept) & self._span.mask(rows.due_ms)]
            )
            drained = self._drained(rows, hashes, starts, marks, expected)
            waiting = rows.take(~drained)
            self._count(key, waiting, self._outcome_of(waiting, [day.coarse, *day.loose], read), balance)
        if not read.usable:
            self._units.skipped[place] = True
        if read.gaps:
            self.damaged.setdefault(day.start_ms * 2 + 1, []).extend(read.gaps)
        is_drained = self._taken.tables.days is not None and self._taken.tables.days.is_drained(day.start_ms)
        self._units.high_water[place] = ALL_OF_IT if is_drained else read.last_sequence
        self._compare_minutes(read, day, starts, expected)
        self._publish("day", day.start_ms, balance)

    def _drained(
        self, rows: ScheduleRows, hashes: U64, starts: I64, marks: I64, expected: Fingerprints
    ) -> NDArray[np.bool_]:
        """Rows that are in their minute already, bool[n]; they are counted there."""
        if not len(starts):
            return np.zeros(len(rows.sequence), np.bool_)
        windows = window_starts(rows.due_ms, self._taken.files.window_ms)
        places = np.minimum(np.searchsorted(starts, windows), len(starts) - 1)
        drained: NDArray[np.bool_] = (starts[places] == windows) & (rows.sequence <= marks[places])
        expected.add(places[drained], hashes[drained])
        return drained

    def _compare_minutes(self, read: FileRead, day: _Day, starts: I64, expected: Fingerprints) -> None:
        if read.gaps:
            return
        for place, found in enumerate(day.placed):
            if found != (int(expected.counts[place]), int(expected.sums[place])):
                key = ScheduleKey(int(starts[place]), ScheduleSource.FROM_DAY)
                code = day.start_ms * 2 + 1
                self.unlike_day.append(key)
                if code not in self.damaged:
                    self._findings.add(
                        CONTRADICTORY,
                        self._taken.schedule_path(key),
                        0,
                        f"{found[0]} messages from the day's file, which has {expected.counts[place]} up to the same "
                        "sequence, or other ones",
                    )
