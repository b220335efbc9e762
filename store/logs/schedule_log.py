"""The schedule_log: whole messages by the window they are due in. Each file has exactly one source (rule 5).

    <day>/<time>.direct.log   of one window, from the message_log
    <day>/<time>.day.log      of one window, from the drained day
    <day>/day.log             of a whole day beyond the fine horizon, from the message_log

Records of a file are in sequence order, so its last sequence is the high-water mark of its source.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Self, cast

import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import FileSystem
from store.errors import CorruptionError
from store.indexes.schedule_index import ScheduleIndex, index_rows, part_of_index
from store.logs.schedule_find import FoundRows, ScheduleFinder
from store.logs.schedule_key import ScheduleKey, ScheduleLayout, ScheduleSource
from store.logs.schedule_part import SchedulePart, first_records
from store.logs.window_files import DEFAULT_USE, FileUse, WindowFiles
from store.logs.window_log import WindowLog
from store.logs.window_state import FileMark, Loss
from store.records.batches import I64, U32, MessageBatch
from store.records.column_blocks import Columns
from store.records.message_name import MessageName, NamesFound
from store.records.ragged_reads import read_ragged
from store.records.record import BadRecordError, RecordHeader, build_batch, verify_columns
from store.records.record_reader import RecordReader
from store.records.record_rows import collect_rows, in_parts
from store.records.segment import Appended, Damage

# Bytes of records whose sums are made together: the index of a window is read without its blobs being held at once.
INDEX_PART_BYTES = 4 << 20

__all__ = [
    "FileMark",
    "FoundRows",
    "ScheduleIndex",
    "ScheduleKey",
    "ScheduleLog",
    "SchedulePart",
    "ScheduleSource",
    "SubjectRows",
    "index_rows",
]


@dataclass(frozen=True, slots=True)
class SubjectRows:
    """Rows of one subject: `sequence` and `due_ms`, i64[n]. `scanned` rows of the file were looked at, up to the sequence
    `last`; None: up to the end of the file."""

    sequence: I64
    due_ms: I64
    scanned: int
    last: int | None

    @classmethod
    def none(cls) -> Self:
        """No rows of a file without rows."""
        return cls(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, None)

    def slice(self, start: int, stop: int) -> Self:
        """The rows `start` to `stop`."""
        return type(self)(self.sequence[start:stop], self.due_ms[start:stop], self.scanned, self.last)

    def take(self, mask: NDArray[np.bool_]) -> Self:
        """The rows where the mask, bool[n], is true."""
        return type(self)(self.sequence[mask], self.due_ms[mask], self.scanned, self.last)


class ScheduleLog(WindowLog[ScheduleKey]):
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
        use: FileUse = DEFAULT_USE,
    ) -> None:
        super().__init__(WindowFiles(fs, directory, server_id, ScheduleLayout(window_ms), use))
        self._finder = ScheduleFinder(self._files)

    # Writing

    def append(self, key: ScheduleKey, batch: MessageBatch) -> Appended:
        """Write messages (in sequence order, behind all of the file) without syncing.

        Raises DiskFullError (nothing was appended), StoreError, SyncFailedError (of a file closed to make room).
        """
        assert int(batch.sequence[0]) > self.last_sequence(key), "a schedule file is written in sequence order"
        appended = self._files.append(key, batch)
        self._finder.add_record(key, int(batch.sequence[0]), int(batch.sequence[-1]), appended)
        return appended

    # State

    def last_sequence(self, key: ScheduleKey) -> int:
        """High-water mark of the file's source; 0 if there is no file."""
        state = self._files.states.get(key)
        return state.last_sequence if state is not None else 0

    def mark(self, key: ScheduleKey) -> FileMark:
        """The mark for a checkpoint: end, last sequence and rows as of the last sync. Raises KeyError."""
        return self._files.mark(key)

    def marks(self) -> dict[ScheduleKey, FileMark]:
        """`mark` of every file."""
        return self._files.marks()

    # After a start

    def recover_all(
        self,
        known: Mapping[ScheduleKey, tuple[int, int, int] | FileMark],
        lost: Mapping[ScheduleKey, Loss] | None = None,
    ) -> None:
        """Take over all files there are; only those longer than known (end, last_sequence, rows) are read, and those that
        had lost rows before."""
        self._recovery.recover_all({key: FileMark(*mark) for key, mark in known.items()}, lost)

    def cut_unreadable_ends(self) -> None:
        """Cut off the records that the disk could not read at the ends of files, if they come from message_log. The replay
        places their messages once more: they would be there twice when the disk reads them again. Raises StoreError."""
        for key in {found.key for found in self.damages if found.damage.errno}:
            if key.source != ScheduleSource.FROM_DAY and key in self and key not in self.lost:
                self._recovery.cut_unreadable_end(key)

    # Files that lost rows

    def forget_loss(self, key: ScheduleKey) -> None:
        """Forgets the loss of a file, because all its messages are in it again, or in the file that they come from."""
        self._files.lost.pop(key, None)
        self._recovery.newly_lost.discard(key)

    def has_all_again(self, key: ScheduleKey) -> bool:
        """Whether a file that lost rows holds them: an operator put it back, or a day was drained into it once more."""
        loss = self._files.lost[key]
        sequence = self.read_columns(key, ("sequence",), damages=[])["sequence"]
        return bool(np.count_nonzero(sequence <= loss.last_sequence) >= loss.rows)

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

    def _read(
        self, key: ScheduleKey, start: int | None, stop: int | None, blobs: bool, damages: list[Damage] | None
    ) -> Generator[tuple[RecordHeader, bytes, bytes], None, None]:
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

    def column_parts(
        self, key: ScheduleKey, names: Sequence[str], stop: int, *, damages: list[Damage] | None = None
    ) -> Iterator[Columns]:
        """As `read_columns`, a bounded part of the records at a time."""
        with closing(self._read(key, None, stop, False, damages)) as records:
            for part in in_parts(records, INDEX_PART_BYTES):
                yield collect_rows(part, self._path(key), MessageBatch, names).columns

    def rows_of_subject(
        self, key: ScheduleKey, subject: int, behind: int, rows_max: int, damages: list[Damage]
    ) -> SubjectRows:
        """The rows with this subject code and a sequence above `behind`, in file order; blobs are not read.

        Ends behind the record with which about `rows_max` rows were looked at, 1 MiB of columns more at most.
        """
        sequences, due_ms = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        scanned, last = 0, None
        with closing(self._read(key, None, None, False, damages)) as records:
            later = (record for record in records if record[0].last_sequence > behind)
            for part in in_parts(later, INDEX_PART_BYTES // 4):
                columns = collect_rows(part, self._path(key), MessageBatch, ("sequence", "due_ms", "subject")).columns
                mine = (columns["subject"] == subject) & (columns["sequence"] > behind)
                sequences.append(columns["sequence"][mine])
                due_ms.append(columns["due_ms"][mine])
                scanned += len(mine)
                if scanned >= rows_max:
                    last = int(columns["sequence"][-1])
                    break
        return SubjectRows(np.concatenate(sequences), np.concatenate(due_ms), scanned, last)

    def part(
        self,
        key: ScheduleKey,
        behind: int,
        upto: int,
        rows_max: int,
        bytes_max: int,
        *,
        properties: bool,
        damages: list[Damage],
    ) -> SchedulePart:
        """The rows of the first records with sequences above `behind` and up to `upto`, about `rows_max` of them.
        `bytes_max` bounds what is read of them; with `properties` these are whole records, verified.

        The first and the last record may have rows outside. No row is there if the file is gone. Raises CorruptionError,
        FormatError where nothing of it can be read."""
        start = self._finder.start_behind(key, behind) if behind and key in self else None
        with closing(self._read(key, start, None, properties, damages)) as records:
            taken, last = first_records(records, behind, upto, rows_max, bytes_max)
        return SchedulePart.of(taken, self._path(key), last)

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
        """Index rows of the records in [start, stop), in file order, for the loader: columns, places and sums of the bytes.

        Only rows whose (due_ms, sequence) lies after `from_key` and not after `to_key`, with `rows_max` the earliest of
        them: at least so many, and at the most twice as many. The blobs are read and verified too, a bounded part at a
        time; what `gather` reads later is to be compared with the sums.
        """
        parts: list[ScheduleIndex] = []
        for records in in_parts(self._read(key, start, stop, True, damages), INDEX_PART_BYTES):
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
        """The bytes at these places of the file (offset i64[n], length u32[n]), in the order given, as one blob.

        Zeros stand for bytes that the disk cannot read. So the caller compares each row with its sum.

        Raises KeyError if there is no such file, CorruptionError if it is shorter than it was, DiskError where it cannot
        be opened.
        """
        with self._files.reading(key) as segment:
            return read_ragged(segment.file, offsets, lengths, around=True)

    def require_readable(self, key: ScheduleKey, offsets: I64, lengths: U32) -> None:
        """Raises UnreadableError where the disk cannot read these places, otherwise as `gather`."""
        with self._files.reading(key) as segment:
            read_ragged(segment.file, offsets, lengths)

    # Looking up

    def find(self, key: ScheduleKey, sequences: I64) -> FoundRows:
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

    def remove(self, key: ScheduleKey, last_sequence: int | None = None, *, durable: bool = True) -> bool:
        """Remove a file, durably; with `last_sequence` only if no later message came to it. Whether it was removed.
        Without `durable` the caller calls `sync_removed` behind the last of many.

        May run beside an append in another thread. Raises KeyError.
        """
        if not self._files.remove(key, last_sequence, durable=durable):
            return False
        self._finder.forget(key)
        return True
