"""The dispatch_log: what became of messages, one outcome row each, by the window (or the coarse day) they were due in.

<day>/<time>.log   outcomes of messages of a window
<day>/day.log      outcomes given while the message lay in a coarse day
reserve            space kept back, so that a full disk can still record what was delivered (rule 1)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np

from store.batches import I64, OutcomeBatch
from store.columns import ColumnBatch
from store.errors import CorruptionError, DiskFullError
from store.filesystem import FileSystem
from store.open_files import OPEN_FILES_MAX
from store.record import BadRecordError, RecordHeader
from store.record_reader import RecordReader
from store.record_rows import collect_rows
from store.segment import FILE_DISPATCH, Appended, Damage, ScanReport
from store.space_reserve import RESERVE_BYTES, SpaceReserve
from store.window_files import WindowFiles
from store.window_recovery import WindowRecovery
from store.window_state import FileMark, WindowDamage
from store.windows import DAY_MS, check_window_ms, day_name, day_of, parse_day_name, parse_time_name, time_name

# Codes of outcomes fit below this; counts are arrays of this length, indexed by the code.
OUTCOMES = 16
OUTCOME_DEDUPLICATED = 7
# Columns of a file that `rows_of` holds at a time.
PART_BYTES = 4 << 20
_DAY_FILE = "day.log"
_SUFFIX = ".log"
RESERVE_FILE = "reserve"


@dataclass(frozen=True, slots=True, order=True)
class DispatchKey:
    """A dispatch file: the start of its window, or of its day if it is coarse."""

    start_ms: int
    coarse: bool


class DispatchMark(NamedTuple):
    """What a checkpoint keeps of a dispatch file: counts (16 each) of the rows below `end`, which are durable."""

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
    internal = ((batch.redelivery > 0) | (batch.origin_sequence != 0)) & (batch.outcome != OUTCOME_DEDUPLICATED)
    codes = batch.outcome + internal.astype(np.int64) * OUTCOMES
    return np.bincount(codes, minlength=2 * OUTCOMES).astype(np.int64, copy=False).reshape(2, OUTCOMES)


class DispatchLog:
    """One thread appends; `sync` and reads may run in other threads beside it, below an `end` they were given."""

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        server_id: int,
        window_ms: int,
        open_files_max: int = OPEN_FILES_MAX,
        *,
        reserve_bytes: int = RESERVE_BYTES,
        write: bool = True,
    ) -> None:
        """`write=False` opens nothing for writing and repairs nothing: for tools beside a running server.

        The reserve is taken by `restore_reserve`, which a server calls at its start.
        """
        self._files: WindowFiles[DispatchKey] = WindowFiles(
            fs, directory, server_id, DispatchLayout(window_ms), open_files_max, write=write
        )
        self._recovery = WindowRecovery(self._files)
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

    def sync(self, keys: Iterable[DispatchKey] | None = None) -> None:
        """Make everything appended before the call durable. Raises SyncFailedError: final for that file."""
        self._files.sync(keys)

    def dirty_keys(self) -> list[DispatchKey]:
        """Files with bytes that are not known to be durable."""
        return self._files.dirty_keys()

    # State

    def end(self, key: DispatchKey) -> int:
        """Offset behind the last record; 0 if there is no file."""
        state = self._files.states.get(key)
        return state.end if state is not None else 0

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

    def rows(self, key: DispatchKey) -> int:
        """Outcome rows in the file, internal ones included."""
        state = self._files.states.get(key)
        return state.rows if state is not None else 0

    def durable_rows(self, key: DispatchKey) -> int:
        """Of `rows`, those as of the last sync."""
        state = self._files.states.get(key)
        return state.durable.rows if state is not None else 0

    def path(self, key: DispatchKey) -> str:
        """Where the file is. Raises KeyError."""
        return self._files.states[key].path

    def __contains__(self, key: object) -> bool:
        return key in self._files.states

    def __iter__(self) -> Iterator[DispatchKey]:
        return iter(self.keys())

    def keys(self) -> list[DispatchKey]:
        """All files, in order of their windows."""
        return sorted(self._files.states)

    def keys_between(self, start_ms: int, stop_ms: int) -> list[DispatchKey]:
        """Files whose window starts in [start_ms, stop_ms)."""
        return sorted([key for key in list(self._files.states) if start_ms <= key.start_ms < stop_ms])

    def open_file_count(self) -> int:
        """Files held open now."""
        return len(self._files.table)

    def mark(self, key: DispatchKey) -> DispatchMark:
        """What may stand in a checkpoint: end and counts as of the last sync. Raises KeyError."""
        return _dispatch_mark(self._files.mark(key))

    def marks(self) -> dict[DispatchKey, DispatchMark]:
        """`mark` of every file."""
        return {key: _dispatch_mark(mark) for key, mark in self._files.marks().items()}

    @property
    def damages(self) -> list[WindowDamage[DispatchKey]]:
        """Corruption found by `recover` and `recover_all`."""
        return self._recovery.damages

    @property
    def strangers(self) -> list[str]:
        """Paths in the folders that are no files of this log."""
        return self._recovery.strangers

    def tell_damage(self, told: Callable[[CorruptionError], None]) -> None:
        """Whom to tell of damage that an append met and went around; may be called in any thread."""
        self._files.on_damage = told

    # After a start

    def restore(self, key: DispatchKey, end: int, counts: Sequence[int], internal_counts: Sequence[int]) -> None:
        """Take over a file as the checkpoint knew it: durable and counted up to `end`."""
        self._files.adopt(key, _mark_of_file((end, counts, internal_counts)))

    def recover(self, key: DispatchKey) -> ScanReport:
        """Scan behind the restored end, cut a torn tail, count on, remember damages."""
        return self._recovery.recover(key)

    def recover_all(self, known: Mapping[DispatchKey, DispatchMark | tuple[int, Sequence[int], Sequence[int]]]) -> None:
        """Take over all files there are; only those longer than known (end, counts, internal_counts) are read."""
        self._recovery.recover_all({key: _mark_of_file(mark) for key, mark in known.items()})

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
        window's file bears the name: what became of these messages is not known.
        """
        self._files.check_place(key)
        if key not in self._files.states:
            return OutcomeBatch.filled(0)
        stop = self.end(key) if stop is None else stop
        with self._files.reading(key) as segment:
            records = list(RecordReader(segment.file, start or 0, stop, blobs=False, damages=damages))
            return _verified(records, segment.path, damages)

    def rows_of(self, key: DispatchKey, sequences: I64, damages: list[Damage]) -> OutcomeBatch:
        """The outcomes of these messages i64[n], as far as the file has them and can be read: in memory that the number of
        messages bounds, not the file. Raises CorruptionError as `outcomes`, KeyError where the file goes meanwhile.
        """
        self._files.check_place(key)
        parts = [OutcomeBatch.filled(0)]
        if key in self._files.states:
            with self._files.reading(key) as segment:
                reader = RecordReader(segment.file, 0, self.end(key), blobs=False, damages=damages)
                for records in _in_parts(reader):
                    batch = _verified(records, segment.path, damages)
                    parts.append(batch.take(np.flatnonzero(np.isin(batch.sequence, sequences))))
        return OutcomeBatch.concatenate(parts)

    # The end

    def remove(self, key: DispatchKey) -> None:
        """Remove a file, durably. Raises KeyError."""
        self._files.remove(key)

    def close(self) -> None:
        """Close all files; what was not synced may be lost. The reserve stays on the disk."""
        self._files.close()

    def check_invariants(self) -> None:
        """For tests."""
        self._files.check_invariants()


_Record = tuple[RecordHeader, bytes, bytes]


def _in_parts(records: Iterable[_Record]) -> Iterator[list[_Record]]:
    part: list[_Record] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record[1])
        if size >= PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def _verified(records: Sequence[_Record], path: str, damages: list[Damage] | None) -> OutcomeBatch:
    batch = _collect(records, path)
    if len(batch) and int(batch.outcome.max()) >= OUTCOMES:
        batch = _collect(_of_known_codes(records, path, damages), path)
    return batch


def _collect(records: Sequence[_Record], path: str) -> OutcomeBatch:
    return OutcomeBatch(**collect_rows(records, path, OutcomeBatch, OutcomeBatch.schema.names).columns)


def _of_known_codes(records: Sequence[_Record], path: str, damages: list[Damage] | None) -> list[_Record]:
    """The records without those that hold an outcome code beyond the table: damage, behind a right checksum."""
    kept = []
    for record in records:
        header = record[0]
        highest = int(_collect([record], path).outcome.max())
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
