"""The schedule_log: whole messages by the window they are due in. Each file has exactly one source (rule 5).

    <day>/<time>.direct.log   of one window, from the message_log
    <day>/<time>.day.log      of one window, from the drained day
    <day>/day.log             of a whole day beyond the fine horizon, from the message_log

Records of a file are in sequence order, so its last sequence is the high-water mark of its source.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import cast

import numpy as np

from store.batches import I64, U32, MessageBatch
from store.column_blocks import Columns
from store.errors import CorruptionError
from store.filesystem import FileSystem
from store.message_name import MessageName, NamesFound
from store.open_files import OPEN_FILES_MAX
from store.ragged_reads import read_ragged
from store.record import BadRecordError, RecordHeader, build_batch, verify_columns
from store.record_reader import RecordReader
from store.record_rows import collect_rows
from store.schedule_find import Found, ScheduleFinder
from store.schedule_index import ScheduleIndex, index_rows, part_of_index
from store.schedule_key import ScheduleKey, ScheduleLayout, Source
from store.segment import Appended, Damage, ScanReport
from store.window_files import WindowFiles
from store.window_recovery import WindowRecovery
from store.window_state import FileMark, WindowDamage

# Bytes of records whose sums are made together: the index of a window is read without its blobs being held at once.
INDEX_PART_BYTES = 4 << 20

__all__ = ["FileMark", "Found", "ScheduleIndex", "ScheduleKey", "ScheduleLog", "Source", "index_rows"]


class ScheduleLog:
    """One thread appends; `sync` and all reads may run in other threads beside it, below an `end` they were given.

    Every read that takes `damages` raises CorruptionError at what does not verify, or, given a list, puts the damage
    there and goes on behind it.
    """

    def __init__(
        self,
        fs: FileSystem,
        directory: str,
        server_id: int,
        window_ms: int,
        open_files_max: int = OPEN_FILES_MAX,
        *,
        write: bool = True,
    ) -> None:
        """`write=False` opens nothing for writing and repairs nothing: for tools beside a running server."""
        layout = ScheduleLayout(window_ms)
        self._files: WindowFiles[ScheduleKey] = WindowFiles(
            fs, directory, server_id, layout, open_files_max, write=write
        )
        self._recovery = WindowRecovery(self._files)
        self._finder = ScheduleFinder(self._files)

    # Writing

    def append(self, key: ScheduleKey, batch: MessageBatch) -> Appended:
        """Write messages (in sequence order, behind all of the file) without syncing.

        Raises DiskFullError (nothing was appended), StoreError, SyncFailedError (of a file closed to make room).
        """
        assert int(batch.sequence[0]) > self.last_sequence(key), "a schedule file is written in sequence order"
        appended = self._files.append(key, batch)
        self._finder.appended(key, int(batch.sequence[0]), int(batch.sequence[-1]), appended)
        return appended

    def prepare(self, keys: Iterable[ScheduleKey]) -> None:
        """Make those of these files that are not there yet, together: `append` makes them one by one.

        Raises DiskFullError, StoreError.
        """
        self._files.prepare(keys)

    def sync(self, keys: Iterable[ScheduleKey] | None = None) -> None:
        """Make everything appended before the call durable. Raises SyncFailedError: final for that file."""
        self._files.sync(keys)

    def dirty_keys(self) -> list[ScheduleKey]:
        """Files with bytes that are not known to be durable."""
        return self._files.dirty_keys()

    # State

    def last_sequence(self, key: ScheduleKey) -> int:
        """High-water mark of the file's source; 0 if there is no file."""
        state = self._files.states.get(key)
        return state.last_sequence if state is not None else 0

    def end(self, key: ScheduleKey) -> int:
        """Offset behind the last record; 0 if there is no file."""
        state = self._files.states.get(key)
        return state.end if state is not None else 0

    def rows(self, key: ScheduleKey) -> int:
        """Messages in the file."""
        state = self._files.states.get(key)
        return state.rows if state is not None else 0

    def path(self, key: ScheduleKey) -> str:
        """Where the file is. Raises KeyError."""
        return self._files.states[key].path

    def __contains__(self, key: object) -> bool:
        return key in self._files.states

    def __iter__(self) -> Iterator[ScheduleKey]:
        return iter(self.keys())

    def keys(self) -> list[ScheduleKey]:
        """All files, in order of their windows."""
        return sorted(self._files.states)

    def keys_between(self, start_ms: int, stop_ms: int) -> list[ScheduleKey]:
        """Files whose window starts in [start_ms, stop_ms)."""
        return sorted([key for key in list(self._files.states) if start_ms <= key.start_ms < stop_ms])

    def open_file_count(self) -> int:
        """Files held open now."""
        return len(self._files.table)

    def mark(self, key: ScheduleKey) -> FileMark:
        """What may stand in a checkpoint: end, last sequence and rows as of the last sync. Raises KeyError."""
        return self._files.mark(key)

    def marks(self) -> dict[ScheduleKey, FileMark]:
        """`mark` of every file."""
        return self._files.marks()

    @property
    def damages(self) -> list[WindowDamage[ScheduleKey]]:
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

    def restore(self, key: ScheduleKey, end: int, last_sequence: int, rows: int) -> None:
        """Take over a file as the checkpoint knew it (durable and whole up to `end`); `recover` goes on from there."""
        self._files.adopt(key, FileMark(end, last_sequence, rows))

    def recover(self, key: ScheduleKey) -> ScanReport:
        """Scan behind the restored end, cut a torn tail, count on, remember damages."""
        return self._recovery.recover(key)

    def recover_all(self, known: Mapping[ScheduleKey, tuple[int, int, int] | FileMark]) -> None:
        """Take over all files there are; only those longer than known (end, last_sequence, rows) are read."""
        self._recovery.recover_all({key: FileMark(*mark) for key, mark in known.items()})

    # Reading

    def batches(
        self,
        key: ScheduleKey,
        start: int | None = None,
        stop: int | None = None,
        *,
        damages: list[Damage] | None = None,
    ) -> Iterator[tuple[RecordHeader, MessageBatch]]:
        """Whole records between two record boundaries, checksums verified."""
        for header, block, blob in self._read(key, start, stop, True, damages):
            try:
                batch = build_batch(header, verify_columns(header, block), blob, verify=False)
            except BadRecordError as error:
                raise CorruptionError(self.path(key), header.offset, str(error)) from error
            yield header, cast("MessageBatch", batch)

    def columns(
        self,
        key: ScheduleKey,
        start: int | None = None,
        stop: int | None = None,
        *,
        damages: list[Damage] | None = None,
    ) -> Iterator[tuple[RecordHeader, Columns]]:
        """The column arrays of each record; blobs are not read. For many tiny records `read_columns` is cheaper."""
        for header, block, _ in self._read(key, start, stop, False, damages):
            try:
                yield header, verify_columns(header, block)
            except BadRecordError as error:
                raise CorruptionError(self.path(key), header.offset, str(error)) from error

    def _read(
        self, key: ScheduleKey, start: int | None, stop: int | None, blobs: bool, damages: list[Damage] | None
    ) -> Iterator[tuple[RecordHeader, bytes, bytes]]:
        if key not in self._files.states:
            return
        with self._files.reading(key) as segment:
            stop = self.end(key) if stop is None else stop
            yield from RecordReader(segment.file, start or 0, stop, blobs=blobs, damages=damages)

    def read_columns(
        self,
        key: ScheduleKey,
        names: Sequence[str],
        start: int | None = None,
        stop: int | None = None,
        *,
        damages: list[Damage] | None = None,
    ) -> Columns:
        """The named columns of all records, concatenated; blobs are not read."""
        return collect_rows(self._read(key, start, stop, False, damages), self._path(key), MessageBatch, names).columns

    def index(
        self,
        key: ScheduleKey,
        start: int | None = None,
        stop: int | None = None,
        *,
        from_key: tuple[int, int] | None = None,
        to_key: tuple[int, int] | None = None,
        rows_max: int | None = None,
        damages: list[Damage] | None = None,
    ) -> ScheduleIndex:
        """What the loader keeps of the records in [start, stop), in file order: columns, places and sums of the bytes.

        Only rows whose (due_ms, sequence) lies after `from_key` and not after `to_key`, with `rows_max` the earliest of
        them: at least so many, and at the most twice as many. The blobs are read and verified too, a bounded part at a
        time; what `gather` reads later is to be compared with the sums.
        """
        parts: list[ScheduleIndex] = []
        for records in _in_parts(self._read(key, start, stop, True, damages)):
            parts.append(part_of_index(records, self._path(key), from_key, to_key))
            if rows_max is not None and sum(map(len, parts)) > 2 * rows_max:
                whole = ScheduleIndex.concatenate(parts)
                earliest = np.lexsort((whole.sequence, whole.due_ms))[:rows_max]
                to_key = int(whole.due_ms[earliest[-1]]), int(whole.sequence[earliest[-1]])
                parts = [whole.take(np.sort(earliest))]
        return ScheduleIndex.concatenate(parts)

    def _path(self, key: ScheduleKey) -> str:
        state = self._files.states.get(key)
        return state.path if state is not None else ""

    def gather(self, key: ScheduleKey, offsets: I64, lengths: U32) -> memoryview:
        """The bytes at these places of the file (offset i64[n], length u32[n]), in the order given, as one blob, to be
        compared with the sums of their rows: there are zeros for what the disk cannot read.

        Raises KeyError if there is no such file, CorruptionError if it is shorter than it was.
        """
        with self._files.reading(key) as segment:
            return read_ragged(segment.file, offsets, lengths, around=True)

    # Looking up

    def find(self, key: ScheduleKey, sequences: I64) -> Found:
        """The rows with these sequences (i64[n], any order), without their blobs, around damage.

        Raises CorruptionError, FormatError where nothing of the file can be read.
        """
        return self._finder.find(key, np.asarray(sequences, np.int64))

    def find_ids(
        self, key: ScheduleKey, names: Collection[MessageName], damages: list[Damage] | None = None
    ) -> NamesFound:
        """The last message of each of these names, whose columns are read once; copies and internal records are left out.

        Damage of records goes to the list and is read around. Raises CorruptionError, FormatError as `find`.
        """
        return self._finder.find_ids(key, names, [] if damages is None else damages)

    def read_rows(self, key: ScheduleKey, sequences: I64, *, damages: list[Damage] | None = None) -> MessageBatch:
        """The whole messages with these sequences, ascending, verified; those that are not in the file are left out."""
        return self._finder.read_rows(key, np.asarray(sequences, np.int64), MessageBatch.schema.blobs, damages)

    def read_ids(self, key: ScheduleKey, sequences: I64, *, damages: list[Damage] | None = None) -> MessageBatch:
        """Like `read_rows`, but with the ids only: properties and bodies are empty."""
        return self._finder.read_rows(key, np.asarray(sequences, np.int64), ("ids",), damages)

    # The end

    def remove(self, key: ScheduleKey, last_sequence: int | None = None) -> bool:
        """Remove a file, durably; with `last_sequence` only if no later message came to it. Whether it was removed.

        May run beside an append in another thread. Raises KeyError.
        """
        if not self._files.remove(key, last_sequence):
            return False
        self._finder.forget(key)
        return True

    def close(self) -> None:
        """Close all files; what was not synced may be lost."""
        self._files.close()

    def check_invariants(self) -> None:
        """For tests."""
        self._files.check_invariants()


def _in_parts(
    records: Iterable[tuple[RecordHeader, bytes, bytes]],
) -> Iterator[list[tuple[RecordHeader, bytes, bytes]]]:
    """The records, as many at a time as have about a part's bytes."""
    part: list[tuple[RecordHeader, bytes, bytes]] = []
    size = 0
    for record in records:
        part.append(record)
        size += len(record[1]) + len(record[2])
        if size >= INDEX_PART_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part
