"""Files named by a window of due time, in folders per day: what schedule_log and dispatch_log have in common.

The state of each file, the bounded table of open ones, append and sync. What the records mean, and how a file is
called, is said by the two logs; the start after a crash is in `window_recovery.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Generic

import google_crc32c

from store.columns import ColumnBatch
from store.errors import CorruptionError, FormatError, StoreError
from store.filesystem import FileSystem
from store.open_files import OpenFiles
from store.segment import FILE_HEADER_BYTES, Appended, FileHeader, Segment
from store.window_state import FileMark, FileState, Key, Layout

# What a file is renamed to when its place is needed: its records are of another window.
MISPLACED_SUFFIX = ".misplaced"
# So many are open at once beside the table's own.
CREATED_AT_ONCE = 32
_HEADER_SUMMED = 40  # the bytes of a file header that its checksum covers


class MisplacedError(CorruptionError):
    """A file bears the name of another window than its header says: renamed or swapped, and never served as what it is
    called."""

    def __init__(self, path: str, base: int) -> None:
        super().__init__(
            path,
            0,
            f"its header says that its window starts at {base}, its name says another one: nothing of it is served; stop "
            "the server and give it its name back (`delayserver recover repair` does)",
        )


class WindowFiles(Generic[Key]):
    """All files of one log. One thread appends; `sync` and reads may run in other threads beside it."""

    def __init__(
        self, fs: FileSystem, directory: str, server_id: int, layout: Layout[Key], open_files_max: int, *, write: bool
    ) -> None:
        self.fs = fs
        self.directory = directory
        self.states: dict[Key, FileState] = {}
        self.table: OpenFiles[Key] = OpenFiles(open_files_max, self._open)
        self._server_id = server_id
        self.layout = layout
        self.write = write
        # Windows whose name a file of another window bears (or bore, before it was set aside): what is wrong, by key.
        self.misplaced: dict[Key, CorruptionError] = {}
        self.on_damage: Callable[[CorruptionError], None] = lambda _error: None
        self._dirty: dict[Key, None] = {}
        self._files_of_day: Counter[str] = Counter()
        self._sync_lock = threading.Lock()
        # An append and the removal of a file exclude each other: a record must not go into a file that is gone.
        self._writing = threading.Lock()

    # Appending

    def append(self, key: Key, batch: ColumnBatch) -> Appended:
        """Write one record without syncing; the file is made on first use.

        Raises DiskFullError (nothing was appended), StoreError.
        """
        with self._writing:
            return self._append(key, batch)

    def _append(self, key: Key, batch: ColumnBatch) -> Appended:
        state = self.states.get(key)
        if state is None:
            (state,) = self._create([key])
        if state.failed or not state.settled:
            raise StoreError(
                f"{state.path}: not writable (a sync failed, or it is not recovered yet): restart to recover"
            )
        try:
            pinned = self.table.pin(key)
        except MisplacedError as error:  # as long as the checkpoint says, so nobody has looked at it yet
            self.misplaced[key] = error
            self.on_damage(error)
            self.forget(key, state)
            (state,) = self._create([key])
            pinned = self.table.pin(key)
        try:
            appended = pinned.segment.append(batch)
            with self.table.lock:
                self.count(state, batch)
                state.end = appended.end
                self._dirty[key] = None
        finally:
            self.table.unpin(pinned)
        return appended

    def _set_aside(self, path: str) -> None:
        """Make room for the window's own records. Raises StoreError if that was done once before."""
        aside = path + MISPLACED_SUFFIX
        if self.fs.exists(aside):
            raise StoreError(f"{path}: the file of another window, and {aside} is there already: move one of them away")
        self.fs.replace(path, aside)
        self.fs.sync_directory(path.rpartition("/")[0])

    def count(self, state: FileState, batch: ColumnBatch) -> None:
        """Add a record to the counts of its file. Raises BadRecordError (nothing was counted)."""
        if self.layout.counters:
            added = self.layout.count(batch)
            state.counts = [count + more for count, more in zip(state.counts, added, strict=True)]
        state.rows += len(batch)
        state.last_sequence = int(getattr(batch, batch.schema.fields[0][0])[-1])

    def prepare(self, keys: Iterable[Key]) -> None:
        """Make those of these files that are not there yet, many at a time: one by one each waits for the disk.

        Raises DiskFullError, StoreError (files of this call may have been made, and stand empty).
        """
        with self._writing:
            missing = [key for key in keys if key not in self.states]
            at_once = min(CREATED_AT_ONCE, self.table.open_files_max)
            for start in range(0, len(missing), at_once):
                self._create(missing[start : start + at_once])

    def _create(self, keys: Sequence[Key]) -> list[FileState]:
        wanted = []
        for key in keys:
            path = f"{self.directory}/{self.layout.name(key)}"
            folder, _, _ = path.rpartition("/")
            if not self._files_of_day[folder]:
                self.fs.make_directory(folder, durable=False)
            if key in self.misplaced and self.fs.exists(path):
                self._set_aside(path)
            base, span_ms = self.layout.header_base(key)
            wanted.append((path, FileHeader(self.layout.kind, self._server_id, base, span_ms)))
        states = []
        for key, segment in zip(keys, Segment.create_all(self.fs, wanted, listed=False), strict=True):
            self.table.insert(key, segment)
            state = self.adopt(key, FileMark(FILE_HEADER_BYTES))
            state.settled = True
            state.listed = False
            states.append(state)
        return states

    def adopt(self, key: Key, mark: FileMark) -> FileState:
        """Know a file as a mark says; not writable before `settled`."""
        path = f"{self.directory}/{self.layout.name(key)}"
        counts = list(mark.counts) or [0] * self.layout.counters
        assert len(counts) == self.layout.counters
        # The durable mark has its counters too: a checkpoint may come before the first sync of a new file.
        durable = mark._replace(counts=tuple(counts))
        state = FileState(path, mark.end, mark.last_sequence, mark.rows, counts, durable, settled=False)
        if key not in self.states:
            self._files_of_day[path.rpartition("/")[0]] += 1
        with self.table.lock:  # `marks` walks over them in another thread
            self.states[key] = state
        return state

    # Open files

    def _open(self, key: Key) -> Segment:
        state = self.states[key]
        try:
            segment = self.open_segment(key, state)
        except FileNotFoundError:
            if not self.write:
                raise  # a tool: the server beside it may have removed it
            raise CorruptionError(
                state.path, 0, f"the file is missing, but {state.end} bytes of it are known"
            ) from None
        if segment.end < state.end:
            segment.close()
            raise CorruptionError(state.path, segment.end, f"the file ends here, but {state.end} bytes were durable")
        if segment.end > state.end and state.settled and self.write:
            segment.file.truncate(state.end)  # what a failed write left and could not undo
            segment.file.datasync()
        segment.end, segment.synced = state.end, state.durable.end
        return segment

    def open_segment(self, key: Key, state: FileState) -> Segment:
        """The file, with its size as the end. Where its header is damaged, that is told and the records are served all the
        same: the name says what they are, and each has a checksum.

        Raises FormatError (whole, but of another server or a newer version), MisplacedError (a file of another window).
        """
        if not state.header_damage:
            try:
                segment = Segment.open(self.fs, state.path, self.layout.kind, self._server_id, write=self.write)
            except (CorruptionError, FormatError) as error:
                if isinstance(error, FormatError) and self._header_verifies(state.path):
                    raise
                state.header_damage = error.detail
                self.on_damage(CorruptionError(state.path, 0, error.detail))
            else:
                if segment.header.base != self.layout.header_base(key)[0]:
                    segment.close()
                    raise MisplacedError(state.path, segment.header.base)
                return segment
        file = self.fs.open(state.path, write=self.write)
        return Segment(file, FileHeader(self.layout.kind, self._server_id, 0), max(FILE_HEADER_BYTES, file.size()))

    def _header_verifies(self, path: str) -> bool:
        file = self.fs.open(path, write=False)
        try:
            head = file.pread(0, FILE_HEADER_BYTES)
        finally:
            file.close()
        checksum = head[_HEADER_SUMMED : _HEADER_SUMMED + 4]
        return bool(google_crc32c.value(head[:_HEADER_SUMMED]) == int.from_bytes(checksum, "little"))

    def check_place(self, key: Key) -> None:
        """Raises CorruptionError if another window's file bears the name of this one: its own may be anywhere."""
        if key in self.misplaced:
            raise self.misplaced[key]

    @contextmanager
    def reading(self, key: Key) -> Iterator[Segment]:
        """The segment, kept open for the block. Raises KeyError for a key without a file."""
        pinned = self.table.pin(key)
        try:
            yield pinned.segment
        finally:
            self.table.unpin(pinned)

    # Syncing

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
            wanted = self.dirty_keys() if keys is None else list(keys)
            synced = [done for key in wanted if (done := self._sync_one(key)) is not None]
            self.list_names([state for _, state, _ in synced if not state.listed])
            with self._writing:  # not beside a removal
                for key, state, mark in synced:
                    if self.states.get(key) is state:  # else it is gone, and another file may have its name
                        self._made_durable(key, state, mark)

    def list_names(self, states: list[FileState]) -> None:
        """Make the names of new files durable, once a folder: a file that a crash forgets must not be pointed to."""
        if not states:
            return
        for folder in dict.fromkeys([state.path.rpartition("/")[0] for state in states]):  # once each, in an order
            with suppress(FileNotFoundError):  # removed meanwhile, with all that was in it
                self.fs.sync_directory(folder)
        self.fs.sync_directory(self.directory)
        for state in states:
            state.listed = True

    def _sync_one(self, key: Key) -> tuple[Key, FileState, FileMark] | None:
        with self.table.lock:
            if key not in self._dirty:
                return None
            state = self.states[key]
            mark = state.mark()
            pinned = self.table.pin(key)
        try:
            self._datasync(state, pinned.segment)
        finally:
            self.table.unpin(pinned)
        return key, state, mark

    def mark(self, key: Key) -> FileMark:
        """What may stand in a checkpoint: the file as of its last sync."""
        return self.states[key].durable

    def marks(self) -> dict[Key, FileMark]:
        """`mark` of every file whose name is durable: a crash may forget the others, and nothing in them is synced."""
        with self.table.lock:
            return {key: state.durable for key, state in self.states.items() if state.listed}

    # Removing

    def forget(self, key: Key, state: FileState) -> None:
        """Know a file no more; what is on the disk stays."""
        with self.table.lock:
            self.table.drop(key)
            self.states.pop(key, None)
            self._dirty.pop(key, None)
            self._files_of_day[state.path.rpartition("/")[0]] -= 1

    def remove(self, key: Key, last_sequence: int | None = None) -> bool:
        """Remove a file, durably: one that came back after a crash could be taken for one with pending messages.

        With `last_sequence` only if nothing later stands in it; whether it was removed. Nothing can come in between.
        """
        with self._writing:
            if last_sequence is not None and self.states[key].last_sequence > last_sequence:
                return False
            self._remove(key)
        return True

    def _remove(self, key: Key) -> None:
        state = self.states[key]
        folder = state.path.rpartition("/")[0]
        self.forget(key, state)
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
