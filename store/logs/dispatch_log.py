"""The dispatch_log: one outcome row for each message, by the window (or the coarse day) in which it was due.

<day>/<time>.log   outcomes of messages of a window
<day>/day.log      outcomes given while the message lay in a coarse day
reserve            space kept back, so that a full disk can still record what was delivered (rule 1)

Outcomes are columns, not fixed-width rows: they take less than half the room, and the same codec reads them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from store.disk.filesystem import FileSystem
from store.disk.space_reserve import RESERVE_BYTES, SpaceReserve
from store.errors import CorruptionError, DiskFullError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.due_windows import DAY_MS, check_window_ms, day_name, day_of, parse_day_name, parse_time_name, time_name
from store.logs.window_files import DEFAULT_USE, FileUse, WindowFiles
from store.logs.window_log import WindowLog
from store.logs.window_state import FileMark, Loss
from store.records.batches import I64, OutcomeBatch
from store.records.column_batch import ColumnBatch
from store.records.column_blocks import Columns
from store.records.membership import is_member
from store.records.outcome_balance import is_internal
from store.records.record import BadRecordError, RecordHeader
from store.records.record_reader import RecordReader
from store.records.record_rows import collect_rows, in_parts
from store.records.segment import FILE_DISPATCH, Appended, Damage

# Codes of outcomes fit below this; counts are arrays of this length, indexed by the code.
OUTCOMES = 16
# Columns of a file that `rows_of` holds at a time.
PART_BYTES = 4 << 20
_CODES = ("sequence", "outcome")
_DAY_FILE = "day.log"
_SUFFIX = ".log"
RESERVE_FILE = "reserve"


@dataclass(frozen=True, slots=True, order=True)
class DispatchKey:
    """A dispatch file: the start of its window, or of its day if it is coarse."""

    start_ms: int
    coarse: bool


class DispatchMark(NamedTuple):
    """The mark of a dispatch file in a checkpoint: counts (16 each) of the rows below `end`, which are durable."""

    end: int
    counts: tuple[int, ...]
    internal_counts: tuple[int, ...]


def _mark_of_file(mark: DispatchMark | tuple[int, Sequence[int], Sequence[int]]) -> FileMark:
    end, counts, internal = mark
    both = tuple(int(count) for count in (*counts, *internal))
    return FileMark(end, 0, sum(both), both)


class DispatchLayout:
    """Names of the files, and how their rows are counted."""

    kind = FILE_DISPATCH
    counters = 2 * OUTCOMES

    def __init__(self, window_ms: int) -> None:
        check_window_ms(window_ms)
        self._window_ms = window_ms

    def name(self, key: DispatchKey) -> str:
        day = day_name(day_of(key.start_ms))
        if key.coarse:
            assert key.start_ms % DAY_MS == 0, "a day starts at midnight"
            return f"{day}/{_DAY_FILE}"
        return f"{day}/{time_name(key.start_ms, self._window_ms)}{_SUFFIX}"

    def parse(self, day: str, name: str) -> DispatchKey | None:
        try:
            start_ms = parse_day_name(day)
            if name == _DAY_FILE:
                return DispatchKey(start_ms, True)
            if name.endswith(_SUFFIX):
                return DispatchKey(start_ms + parse_time_name(name[: -len(_SUFFIX)], self._window_ms), False)
        except ValueError:
            pass
        return None

    def header_base(self, key: DispatchKey) -> tuple[int, int]:
        return key.start_ms, DAY_MS if key.coarse else self._window_ms

    def count(self, batch: ColumnBatch) -> Sequence[int]:
        counts: list[int] = count_outcomes(cast("OutcomeBatch", batch)).ravel().tolist()
        return counts


def count_outcomes(batch: OutcomeBatch) -> I64:
    """Rows by outcome code, i64[2, 16]: of messages of the balance, and of internal records (retries, redispatches).

    Raises BadRecordError for a code beyond the table.
    """
    if len(batch) and int(batch.outcome.max()) >= OUTCOMES:
        raise BadRecordError(f"outcome code {int(batch.outcome.max())} is beyond the table")
    internal = is_internal(batch.redelivery, batch.origin_sequence, batch.outcome)
    codes = batch.outcome + internal.astype(np.int64) * OUTCOMES
    return np.bincount(codes, minlength=2 * OUTCOMES).astype(np.int64, copy=False).reshape(2, OUTCOMES)


class DispatchLog(WindowLog[DispatchKey]):
    """The files of outcomes. `WindowLog` says what each thread may do."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        server_id: int,
        window_ms: int,
        use: FileUse = DEFAULT_USE,
        *,
        reserve_bytes: int = RESERVE_BYTES,
    ) -> None:
        """The reserve is taken by `restore_reserve`, which a server calls at its start."""
        super().__init__(WindowFiles(fs, directory, server_id, DispatchLayout(window_ms), use))
        self.reserve = SpaceReserve(fs, f"{directory}/{RESERVE_FILE}", reserve_bytes)

    # Writing

    def append(self, key: DispatchKey, batch: OutcomeBatch) -> Appended:
        """Write outcomes without syncing. On a full disk the reserve is given up and the append tried once more.

        Raises DiskFullError (no reserve left; nothing was appended), StoreError, SyncFailedError.
        """
        try:
            return self._files.append(key, batch)
        except DiskFullError:
            if not self.reserve.release():
                raise
            return self._files.append(key, batch)

    def restore_reserve(self) -> bool:
        """Take the reserve (again); False while the disk has no room for it."""
        return self.reserve.restore()

    def is_lost(self, key: DispatchKey) -> bool:
        """Whether outcomes of this file are known to be lost, or another file bears its name."""
        return key in self._files.misplaced or key in self._files.lost

    def prepare(self, keys: Iterable[DispatchKey]) -> None:
        """As `WindowLog.prepare`. On a full disk the reserve is given up and the files are tried once more."""
        wanted = list(keys)
        try:
            super().prepare(wanted)
        except DiskFullError:
            if not self.reserve.release():
                raise
            super().prepare(wanted)

    # State

    def counts(self, key: DispatchKey) -> I64:
        """Rows of messages of the balance by outcome code, i64[16]; zeros if there is no file."""
        balance, _ = self._counts(key)
        return balance

    def internal_counts(self, key: DispatchKey) -> I64:
        """Rows of internal records (nack retries, redispatches) by outcome code, i64[16]."""
        _, internal = self._counts(key)
        return internal

    def _counts(self, key: DispatchKey) -> tuple[I64, I64]:
        state = self._files.states.get(key)
        if state is None:
            return np.zeros(OUTCOMES, np.int64), np.zeros(OUTCOMES, np.int64)
        counts = state.counts
        return np.array(counts[:OUTCOMES], np.int64), np.array(counts[OUTCOMES:], np.int64)

    def durable_rows(self, key: DispatchKey) -> int:
        """The number of outcome rows as of the last sync."""
        state = self._files.states.get(key)
        return state.durable.rows if state is not None else 0

    def mark(self, key: DispatchKey) -> DispatchMark:
        """The mark for a checkpoint: end and counts as of the last sync. Raises KeyError."""
        return _dispatch_mark(self._files.mark(key))

    def marks(self) -> dict[DispatchKey, DispatchMark]:
        """`mark` of every file."""
        return {key: _dispatch_mark(mark) for key, mark in self._files.marks().items()}

    # After a start

    def recover_all(
        self,
        known: Mapping[DispatchKey, DispatchMark | tuple[int, Sequence[int], Sequence[int]]],
        lost: Mapping[DispatchKey, Loss] | None = None,
    ) -> None:
        """Take over all files there are; only those longer than known (end, counts, internal_counts) are read, and those
        that had lost rows before."""
        self._recovery.recover_all({key: _mark_of_file(mark) for key, mark in known.items()}, lost)

    # Files that lost rows

    def note_loss(self, key: DispatchKey, loss: Loss) -> None:
        """Replace what is known of a loss."""
        self._files.lost[key] = loss

    def forget_loss(self, key: DispatchKey) -> None:
        """Forgets the loss of a file, because all that it lost is in the logs again."""
        self._files.lost.pop(key, None)

    # Reading

    def outcomes(
        self,
        key: DispatchKey,
        start: int | None = None,
        stop: int | None = None,
        *,
        damages: list[Damage] | None = None,
    ) -> OutcomeBatch:
        """All outcomes between two record boundaries, in the order they were written; no rows if there is no file.

        Raises CorruptionError, or puts damage into the list and goes on behind it. Raises it in any case where another
        window's file bears the name or the file lost outcomes: what became of these messages is not known.
        """
        self._files.check_whole(key)
        return self._outcomes(key, start, stop, damages)

    def outcomes_left(
        self, key: DispatchKey, stop: int | None = None, *, damages: list[Damage] | None = None
    ) -> OutcomeBatch:
        """The readable outcomes below `stop`. Damage goes to the list; rows that the file lost are missing.

        Raises CorruptionError where nothing of the file can be read, or another window's file bears the name.
        """
        self._files.check_place(key)
        return self._outcomes(key, None, stop, [] if damages is None else damages)

    def _outcomes(
        self, key: DispatchKey, start: int | None, stop: int | None, damages: list[Damage] | None
    ) -> OutcomeBatch:
        if key not in self._files.states:
            return OutcomeBatch.filled(0)
        stop = self.end(key) if stop is None else stop
        with self._files.reading_if_there(key) as segment:
            if segment is None:
                return OutcomeBatch.filled(0)
            records = list(RecordReader(segment.file, start or 0, stop, blobs=False, damages=damages))
            return OutcomeBatch(**_verified(records, segment.path, OutcomeBatch.schema.names, damages))

    def index(self, key: DispatchKey, stop: int | None = None) -> OutcomeIndex:
        """Sequences and codes of all outcomes below `stop`, read in parts: 9 bytes a row, and not a whole row. Raises
        CorruptionError as `outcomes`."""
        self._files.check_whole(key)
        return self._index(key, stop, None)

    def index_left(self, key: DispatchKey, stop: int | None = None, *, damages: list[Damage]) -> OutcomeIndex:
        """As `index`, of the readable outcomes. Raises CorruptionError as `outcomes_left`."""
        self._files.check_place(key)
        return self._index(key, stop, damages)

    def _index(self, key: DispatchKey, stop: int | None, damages: list[Damage] | None) -> OutcomeIndex:
        index = OutcomeIndex()
        for columns in self._in_parts(key, stop, _CODES, damages):
            index.add(columns["sequence"], columns["outcome"])
        return index

    def rows_of(self, key: DispatchKey, sequences: I64, damages: list[Damage]) -> OutcomeBatch:
        """The outcomes of these messages i64[n], as far as the file has them and can be read. The number of messages bounds
        the memory, and not the size of the file.

        Raises CorruptionError as `outcomes_left`.
        """
        self._files.check_place(key)
        parts = [OutcomeBatch.filled(0)]
        for columns in self._in_parts(key, None, OutcomeBatch.schema.names, damages):
            batch = OutcomeBatch(**columns)
            parts.append(batch.take(np.flatnonzero(is_member(batch.sequence, sequences))))
        return OutcomeBatch.concatenate(parts)

    def _in_parts(
        self, key: DispatchKey, stop: int | None, names: Sequence[str], damages: list[Damage] | None
    ) -> Iterator[Columns]:
        with self._files.reading_if_there(key) as segment:
            if segment is not None:
                reader = RecordReader(
                    segment.file, 0, self.end(key) if stop is None else stop, blobs=False, damages=damages
                )
                for records in in_parts(reader, PART_BYTES):
                    yield _verified(records, segment.path, names, damages)

    # The end

    def remove(self, key: DispatchKey, *, durable: bool = True) -> None:
        """Remove a file, durably; without `durable` the caller calls `sync_removed` behind the last of many. Raises
        KeyError."""
        self._files.remove(key, durable=durable)


_Record = tuple[RecordHeader, bytes, bytes]


def _verified(records: Sequence[_Record], path: str, names: Sequence[str], damages: list[Damage] | None) -> Columns:
    columns = _collect(records, path, names)
    if len(columns["outcome"]) and int(columns["outcome"].max()) >= OUTCOMES:
        columns = _collect(_of_known_codes(records, path, damages), path, names)
    return columns


def _collect(records: Sequence[_Record], path: str, names: Sequence[str]) -> Columns:
    return collect_rows(records, path, OutcomeBatch, names).columns


def _of_known_codes(records: Sequence[_Record], path: str, damages: list[Damage] | None) -> list[_Record]:
    """The records without those that hold an outcome code beyond the table: damage, behind a right checksum."""
    kept = []
    for record in records:
        header = record[0]
        highest = int(_collect([record], path, _CODES)["outcome"].max())
        if highest < OUTCOMES:
            kept.append(record)
            continue
        detail = f"outcome code {highest} is beyond the table"
        if damages is None:
            raise CorruptionError(path, header.offset, detail)
        damages.append(Damage(header.offset, header.end, detail))
    return kept


def _dispatch_mark(mark: FileMark) -> DispatchMark:
    return DispatchMark(mark.end, mark.counts[:OUTCOMES], mark.counts[OUTCOMES:])
