"""Files named by a window of due time, in folders per day: what schedule_log and dispatch_log have in common.

State per file (end, rows, what is durable), the bounded table of open ones, append, sync, and the start after a crash.
What the records mean, and how a file is called, is said by the two logs.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, NamedTuple, Protocol, TypeVar

from store.columns import ColumnBatch
from store.errors import CorruptionError, StoreError
from store.filesystem import FileSystem
from store.open_files import OpenFiles, Pinned
from store.segment import FILE_HEADER_BYTES, Appended, Damage, FileHeader, ScanReport, Segment

Key = TypeVar("Key", bound=Hashable)


class FileMark(NamedTuple):
    """What a checkpoint keeps of a file: everything below `end` is durable and counted. `counts` is the log's own."""

    end: int
    last_sequence: int = 0
    rows: int = 0
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class WindowDamage(Generic[Key]):
    """Corruption found in a file of a window: what is affected (the key), where, and the range of bytes."""

    key: Key
    path: str
    damage: Damage


@dataclass(slots=True)
class FileState:
    """One file. `durable` is the mark of the last sync: counts and offset belong together (rule 6)."""

    path: str
    end: int
    last_sequence: int
    rows: int
    counts: list[int]
    durable: FileMark
    settled: bool  # recovered or created here: bytes behind `end` are leftovers and may be cut
    failed: bool = False

    def mark(self) -> FileMark:
        return FileMark(self.end, self.last_sequence, self.rows, tuple(self.counts))


class Layout(Protocol[Key]):
    """Names and counts of one log."""

    kind: int
    counters: int

    def name(self, key: Key) -> str:
        """`day/file` of a key, relative to the log's directory."""

    def parse(self, day: str, name: str) -> Key | None:
        """The inverse; None for a name that is not of this log."""

    def header_base(self, key: Key) -> tuple[int, int]:
        """Start and span of the window in milliseconds, for the file header."""

    def count(self, batch: ColumnBatch) -> Sequence[int]:
        """What a batch adds to the `counters` counters."""


class WindowFiles(Generic[Key]):
    """All files of one log. One thread appends; `sync` and reads may run in other threads beside it."""

    def __init__(
        self, fs: FileSystem, directory: str, server_id: int, layout: Layout[Key], open_files_max: int, *, write: bool
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.damages: list[WindowDamage[Key]] = []
        self.strangers: list[str] = []
        self.states: dict[Key, FileState] = {}
        self.table: OpenFiles[Key] = OpenFiles(open_files_max, self._open, self._is_clean, self._sync_open)
        self._server_id = server_id
        self._layout = layout
        self._write = write
        self._dirty: dict[Key, None] = {}
        self._files_of_day: Counter[str] = Counter()
        self._sync_lock = threading.Lock()

    # Appending

    def append(self, key: Key, batch: ColumnBatch) -> Appended:
        """Write one record without syncing; the file (and its folder) is made durable on first use.

        Raises DiskFullError (nothing was appended), StoreError, SyncFailedError (of a file closed to make room).
        """
        state = self.states.get(key)
        if state is None:
            state = self._create(key)
        if state.failed or not state.settled:
            raise StoreError(
                f"{state.path}: not writable (a sync failed, or it is not recovered yet): restart to recover"
            )
        pinned = self.table.pin(key)
        try:
            appended = pinned.segment.append(batch)
            with self.table.lock:  # while it is pinned: a reader may not take it for clean and close it
                self._count(state, batch)
                state.end = appended.end
                self._dirty[key] = None
        finally:
            self.table.unpin(pinned)
        return appended

    def _count(self, state: FileState, batch: ColumnBatch) -> None:
        state.rows += len(batch)
        state.last_sequence = int(getattr(batch, batch.schema.fields[0][0])[-1])
        if self._layout.counters:
            added = self._layout.count(batch)
            state.counts = [count + more for count, more in zip(state.counts, added, strict=True)]

    def _create(self, key: Key) -> FileState:
        path = f"{self.directory}/{self._layout.name(key)}"
        folder, _, _ = path.rpartition("/")
        if not self._files_of_day[folder]:
            self.fs.make_directory(folder)
        base, span_ms = self._layout.header_base(key)
        header = FileHeader(self._layout.kind, self._server_id, base, span_ms)
        segment = Segment.create(self.fs, path, header)
        self.table.insert(key, segment)
        state = self._restored(key, FileMark(FILE_HEADER_BYTES))
        state.settled = True
        return state

    def _restored(self, key: Key, mark: FileMark) -> FileState:
        path = f"{self.directory}/{self._layout.name(key)}"
        counts = list(mark.counts) or [0] * self._layout.counters
        assert len(counts) == self._layout.counters
        state = FileState(path, mark.end, mark.last_sequence, mark.rows, counts, mark, settled=False)
        if key not in self.states:
            self._files_of_day[path.rpartition("/")[0]] += 1
        self.states[key] = state
        return state

    # Open files

    def _open(self, key: Key) -> Segment:
        state = self.states[key]
        segment = Segment.open(self.fs, state.path, self._layout.kind, self._server_id, write=self._write)
        if segment.end < state.end:
            segment.close()
            raise CorruptionError(state.path, segment.end, f"the file ends here, but {state.end} bytes were durable")
        if segment.end > state.end and state.settled and self._write:
            segment.file.truncate(state.end)  # what a failed write left and could not undo
            segment.file.datasync()
        segment.end = segment.synced = state.end
        return segment

    @contextmanager
    def reading(self, key: Key) -> Iterator[Segment]:
        """The segment, kept open for the block. Raises KeyError for a key without a file."""
        pinned = self.table.pin(key)
        try:
            yield pinned.segment
        finally:
            self.table.unpin(pinned)

    # Syncing

    def _is_clean(self, key: Key) -> bool:
        return key not in self._dirty

    def _sync_open(self, key: Key, segment: Segment) -> None:
        state = self.states[key]
        mark = state.mark()
        self._datasync(state, segment)
        self._made_durable(key, state, mark)

    def _datasync(self, state: FileState, segment: Segment) -> None:
        try:
            segment.sync()
        except StoreError:
            state.failed = True
            raise

    def _made_durable(self, key: Key, state: FileState, mark: FileMark) -> None:
        with self.table.lock:
            if mark.end >= state.durable.end:
                state.durable = mark
            if state.end == state.durable.end:
                self._dirty.pop(key, None)

    def dirty_keys(self) -> list[Key]:
        """Files with bytes that are not known to be durable."""
        with self.table.lock:
            return list(self._dirty)

    def sync(self, keys: Iterable[Key] | None = None) -> None:
        """Make everything appended to these files (all by default) before this call durable.

        Appends may go on beside it; what they write meanwhile stays dirty. Raises SyncFailedError: final for the file.
        """
        with self._sync_lock:
            for key in self.dirty_keys() if keys is None else list(keys):
                self._sync_one(key)

    def _sync_one(self, key: Key) -> None:
        with self.table.lock:
            if key not in self._dirty:
                return
            state = self.states[key]
            mark: FileMark = state.mark()
            pinned: Pinned = self.table.pin(key)
        try:
            self._datasync(state, pinned.segment)
        finally:
            self.table.unpin(pinned)
        self._made_durable(key, state, mark)

    def mark(self, key: Key) -> FileMark:
        """What may stand in a checkpoint: the file as of its last sync."""
        return self.states[key].durable

    def marks(self) -> dict[Key, FileMark]:
        """`mark` of every file."""
        with self.table.lock:
            return {key: state.durable for key, state in self.states.items()}

    # After a start

    def restore(self, key: Key, mark: FileMark) -> None:
        """Take over a file as the checkpoint knew it; `recover` counts on from there."""
        self._restored(key, mark)

    def recover(self, key: Key) -> ScanReport:
        """Scan behind the restored end, count on, cut a torn tail, remember damages. A file may be gone afterwards
        (only a cut file header was there). Raises FormatError for a file of another server or program."""
        state = self.states.get(key) or self._restored(key, FileMark(FILE_HEADER_BYTES))
        try:
            return self._recover(key, state, self.fs.size(state.path))
        except FileNotFoundError:
            self._lost(key, state, "the file is missing, the checkpoint knows it")
            return ScanReport(0)

    def _recover(self, key: Key, state: FileState, size: int) -> ScanReport:
        if size < state.durable.end:
            if size <= FILE_HEADER_BYTES and state.durable.rows == 0 and self._remove_stub(key, state, size):
                return ScanReport(0)
            known = Damage(size, state.durable.end, "the file is shorter than the checkpoint says")
            self.damages.append(WindowDamage(key, state.path, known))
            state = self._restored(key, FileMark(FILE_HEADER_BYTES))
        elif size == FILE_HEADER_BYTES and self._remove_stub(key, state, size):
            return ScanReport(0)
        try:
            segment = Segment.open(self.fs, state.path, self._layout.kind, self._server_id, write=self._write)
        except CorruptionError as error:
            self._lost(key, state, error.detail)
            return ScanReport(0)
        try:
            return self._scan(key, state, segment)
        finally:
            segment.close()

    def _scan(self, key: Key, state: FileState, segment: Segment) -> ScanReport:
        size = segment.file.size()
        report = ScanReport(state.end)
        for _, batch in segment.records(state.end, size, report):
            self._count(state, batch)
        self.damages += [WindowDamage(key, state.path, damage) for damage in report.damages]
        state.end = (report.end + 7) // 8 * 8  # records are aligned; damage at the end of a file may not be
        if size != state.end and self._write:
            segment.file.truncate(state.end)
            segment.file.datasync()
        elif self._write and state.end > state.durable.end:
            segment.file.datasync()  # read back from the page cache after a mere restart: not durable yet
        state.settled = True
        state.durable = state.mark()
        return report

    def _remove_stub(self, key: Key, state: FileState, size: int) -> bool:
        """A crash came between making the file and its header: nothing was in it. False if the header is whole."""
        if size == FILE_HEADER_BYTES:
            file = self.fs.open(state.path, write=False)
            try:
                if any(file.pread(0, FILE_HEADER_BYTES)[:8]):
                    return False
            finally:
                file.close()
        if self._write:
            self.fs.remove(state.path)
        self._forget(key, state)
        return True

    def _lost(self, key: Key, state: FileState, detail: str) -> None:
        self.damages.append(WindowDamage(key, state.path, Damage(0, state.durable.end, detail)))
        self._forget(key, state)

    def recover_all(self, known: Mapping[Key, FileMark]) -> None:
        """Take over every file there is: one listing a folder, one stat a file, a scan only where something is behind
        the checkpoint. Missing and shortened files go to `damages`, names that are not ours to `strangers`."""
        present: set[Key] = set()
        for day in self.fs.listdir(self.directory):
            for name in self.fs.listdir(f"{self.directory}/{day}"):
                key = self._layout.parse(day, name)
                if key is None:
                    self.strangers.append(f"{self.directory}/{day}/{name}")
                    continue
                present.add(key)
                self._take_over(key, known.get(key))
        for key, mark in known.items():
            if key not in present:
                self._lost(key, self._restored(key, mark), "the file is missing, the checkpoint knows it")

    def _take_over(self, key: Key, mark: FileMark | None) -> None:
        state = self._restored(key, mark or FileMark(FILE_HEADER_BYTES))
        size = self.fs.size(state.path)
        if size == state.end and mark is not None:
            state.settled = True
        else:
            self._recover(key, state, size)

    # Removing

    def _forget(self, key: Key, state: FileState) -> None:
        with self.table.lock:
            self.table.drop(key)
            self.states.pop(key, None)
            self._dirty.pop(key, None)
            self._files_of_day[state.path.rpartition("/")[0]] -= 1

    def remove(self, key: Key) -> None:
        """Remove a file, durably: one that came back after a crash could be taken for one with pending messages."""
        state = self.states[key]
        folder = state.path.rpartition("/")[0]
        self._forget(key, state)
        self.fs.remove(state.path)
        self.fs.sync_directory(folder)
        if not self._files_of_day[folder]:
            del self._files_of_day[folder]
            self.fs.remove_directory(folder)
            self.fs.sync_directory(self.directory)

    def close(self) -> None:
        """Close all files; what was not synced may be lost."""
        self.table.close()

    def check_invariants(self) -> None:
        """Clean files are durable to their end; the open table holds only files we know."""
        self.table.check_invariants()
        for key, state in self.states.items():
            assert state.durable.end <= state.end
            assert not state.settled or (state.end > state.durable.end) == (key in self._dirty)
