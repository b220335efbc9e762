"""Files named by a window of due time, in folders per day: what schedule_log and dispatch_log have in common.

The state of each file, the bounded table of open ones, append and sync. The two logs know what the records mean and how
a file is named. The start after a crash is in `window_recovery.py`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Generic

from store.disk.filesystem import FileSystem, read_twice
from store.errors import CorruptionError, FormatError, StoreError
from store.logs.open_files import OPEN_FILES_MAX, OpenFiles, Pinned
from store.logs.window_state import FileMark, FileState, Key, Layout, Loss
from store.records.column_batch import ColumnBatch
from store.records.file_header import header_verifies
from store.records.segment import FILE_HEADER_BYTES, Appended, FileHeader, Segment

# A file with the records of another window gets this suffix when its place is needed.
MISPLACED_SUFFIX = ".misplaced"
# So many are open at once beside the table's own.
CREATED_AT_ONCE = 32
# Above every sequence that can be given.
SEQUENCE_MAX = 1 << 62
SYNCED_AT_ONCE = 32


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


@dataclass(frozen=True, slots=True)
class FileUse:
    """How a log uses its files. `on_damage` hears of damage that was met and gone around, in any thread. Without `write`
    nothing is opened for writing or repaired: for tools beside a running server."""

    open_files_max: int = OPEN_FILES_MAX
    write: bool = True
    on_damage: Callable[[CorruptionError], None] | None = None


DEFAULT_USE = FileUse()


class WindowFiles(Generic[Key]):
    """All files of one log. One thread appends; `sync` and reads may run in other threads beside it."""

    def __init__(self, fs: FileSystem, directory: str, server_id: int, layout: Layout[Key], use: FileUse) -> None:
        self.fs = fs
        self.directory = directory
        self.states: dict[Key, FileState] = {}
        self.table: OpenFiles[Key] = OpenFiles(use.open_files_max, self._open)
        fs.relieve_with(self.table.relieve)
        self._server_id = server_id
        self.layout = layout
        self.write = use.write
        # Errors by key, for windows whose name a file of another window bears (or bore, before it was set aside).
        self.misplaced: dict[Key, CorruptionError] = {}
        # Files that lost rows which were durable. Checkpoints carry them on until `recover rebuild` ends them.
        self.lost: dict[Key, Loss] = {}
        self._on_damage = use.on_damage
        self._dirty: dict[Key, None] = {}
        self._files_of_day: Counter[str] = Counter()
        # Folders of files that were removed, and not durably yet.
        self._removed_from: set[str] = set()
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
        except MisplacedError as error:  # it has the length in the checkpoint, so the start did not open it
            self.misplaced[key] = error
            self._met(error)
            self.forget(key, state)
            (state,) = self._create([key])
            pinned = self.table.pin(key)
        try:
            appended = pinned.segment.append(batch)
            with self.table.lock:
                self.count(state, batch)
                state.move_end(appended.end)
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
        added = self.layout.count(batch) if self.layout.counters else ()
        state.count(len(batch), int(getattr(batch, batch.schema.fields[0][0])[-1]), added)

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
            states.append(self.adopt(key, FileMark(FILE_HEADER_BYTES), settled=True, listed=False))
        return states

    def adopt(self, key: Key, mark: FileMark, *, settled: bool = False, listed: bool = True) -> FileState:
        """Know a file as a mark says; it takes no records before it is `settled`."""
        path = f"{self.directory}/{self.layout.name(key)}"
        # The durable mark has its counters too: a checkpoint may come before the first sync of a new file.
        counts = mark.counts or (0,) * self.layout.counters
        assert len(counts) == self.layout.counters
        state = FileState(path, mark._replace(counts=counts), settled=settled, listed=listed)
        if key not in self.states:
            self._files_of_day[path.rpartition("/")[0]] += 1
        with self.table.lock:  # `marks` walks over them in another thread
            self.states[key] = state
        return state

    # Open files

    def _met(self, damage: CorruptionError) -> None:
        if self._on_damage is not None:
            self._on_damage(damage)

    def _open(self, key: Key) -> Segment:
        state = self.states[key]
        try:
            segment = self.open_segment(key, state, self._met)
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
        segment.trust(state.end, state.durable.end)
        return segment

    def open_segment(
        self, key: Key, state: FileState, told: Callable[[CorruptionError], None] | None = None
    ) -> Segment:
        """The file, with its size as the end. `told` gets the damage of a header. The records are served all the same: the
        name says what they are, and each has a checksum.

        Raises FormatError (whole, but of another server or a newer version), MisplacedError (a file of another window).
        """
        if not state.header_damage:
            try:
                segment = Segment.open(self.fs, state.path, self.layout.kind, self._server_id, write=self.write)
            except (CorruptionError, FormatError) as error:
                if isinstance(error, FormatError) and self._header_verifies(state.path):
                    raise
                damage = error if isinstance(error, CorruptionError) else CorruptionError(state.path, 0, error.detail)
                state.damage_header(error.detail, damage.errno)
                if told is not None:
                    told(damage)
            else:
                if segment.header.base != self.layout.header_base(key)[0]:
                    segment.close()
                    raise MisplacedError(state.path, segment.header.base)
                return segment
        header = FileHeader(self.layout.kind, self._server_id, 0)
        return Segment.open_by_name(self.fs, state.path, header, write=self.write)

    def _header_verifies(self, path: str) -> bool:
        file = self.fs.open(path, write=False)
        try:
            return header_verifies(read_twice(file, 0, FILE_HEADER_BYTES))
        finally:
            file.close()

    def check_place(self, key: Key) -> None:
        """Raises CorruptionError if another window's file bears the name of this one: its own may be anywhere."""
        if key in self.misplaced:
            raise self.misplaced[key]

    def check_whole(self, key: Key) -> None:
        """As `check_place`; raises CorruptionError also where rows of the file are lost."""
        error = self.hiding(key)
        if error is not None:
            raise error

    def hiding(self, key: Key) -> CorruptionError | None:
        """The reason why rows of this file may be missing although its records verify; None where none can be missing."""
        loss = self.lost.get(key)
        if loss is None or key in self.misplaced:
            return self.misplaced.get(key)
        return CorruptionError(f"{self.directory}/{self.layout.name(key)}", loss.end, loss.detail())

    def hidden_up_to(self, key: Key) -> int:
        """The highest sequence that `hiding` may hide; 0 where there is nothing to hide."""
        if key in self.misplaced:
            return SEQUENCE_MAX
        loss = self.lost.get(key)
        return loss.last_sequence if loss is not None else 0

    @contextmanager
    def reading(self, key: Key) -> Iterator[Segment]:
        """The segment, kept open for the block. Raises KeyError for a key without a file."""
        with self.reading_if_there(key) as segment:
            if segment is None:
                raise KeyError(key)
            yield segment

    @contextmanager
    def reading_if_there(self, key: Key) -> Iterator[Segment | None]:
        """As `reading`; None for a key without a file, which another thread may have removed just now."""
        try:
            pinned = self.table.pin(key)
        except KeyError:
            yield None
            return
        try:
            yield pinned.segment
        finally:
            self.table.unpin(pinned)

    # Syncing

    def _datasync(self, state: FileState, segment: Segment) -> None:
        try:
            segment.sync()
        except StoreError:
            state.fail()
            raise

    def _made_durable(self, key: Key, state: FileState, mark: FileMark) -> None:
        with self.table.lock:
            if mark.end >= state.durable.end:
                state.note_durable(mark)
            if state.end == state.durable.end:
                self._dirty.pop(key, None)

    def folders(self) -> list[str]:
        """Paths of the folders with files, one for each day."""
        return [folder for folder, files in list(self._files_of_day.items()) if files]

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
            synced: list[tuple[Key, FileState, FileMark]] = []
            at_once = min(SYNCED_AT_ONCE, self.table.open_files_max)
            for start in range(0, len(wanted), at_once):
                synced += self._sync_some(wanted[start : start + at_once])
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
            state.name_is_durable()

    def _sync_some(self, keys: Sequence[Key]) -> list[tuple[Key, FileState, FileMark]]:
        """Sync those of these files that need it, side by side: a journal writes down in one go what waits together."""
        pinned: list[tuple[Key, FileState, FileMark, Pinned]] = []
        try:
            with self.table.lock:
                for key in keys:
                    if key in self._dirty:
                        state = self.states[key]
                        pinned.append((key, state, state.mark(), self.table.pin(key)))
            if len(pinned) > 1:
                self._sync_together(pinned)
            elif pinned:
                self._datasync(pinned[0][1], pinned[0][3].segment)
        finally:
            for *_, entry in pinned:
                self.table.unpin(entry)
        return [(key, state, mark) for key, state, mark, _ in pinned]

    def _sync_together(self, pinned: Sequence[tuple[Key, FileState, FileMark, Pinned]]) -> None:
        try:
            Segment.sync_all(self.fs, [entry.segment for *_, entry in pinned])
        except StoreError:
            for _, state, _, entry in pinned:
                if entry.segment.refuses:
                    state.fail()
            raise

    def mark(self, key: Key) -> FileMark:
        """The mark for a checkpoint: the file as of its last sync."""
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

    def remove(self, key: Key, last_sequence: int | None = None, *, durable: bool = True) -> bool:
        """Remove a file, durably: one that came back after a crash could be taken for one with pending messages.

        With `last_sequence` only if nothing later stands in it; whether it was removed. Nothing can come in between.
        Without `durable` the caller removes many and calls `sync_removed` at the end; until then it must be able to
        remove again what comes back.
        """
        with self._writing:
            if last_sequence is not None and self.states[key].last_sequence > last_sequence:
                return False
            self._remove(key)
        if durable:
            self.sync_removed()
        return True

    def _remove(self, key: Key) -> None:
        state = self.states[key]
        folder = state.path.rpartition("/")[0]
        self.forget(key, state)
        self.fs.remove(state.path)
        with self.table.lock:
            self._removed_from.add(folder)

    def sync_removed(self) -> None:
        """Make removals durable: one sync for each folder, and folders that are empty go."""
        with self.table.lock:
            folders, self._removed_from = sorted(self._removed_from), set()
        emptied = False
        for folder in folders:
            with suppress(FileNotFoundError):  # it went with all that was in it
                self.fs.sync_directory(folder)
            with self._writing:
                if not self._files_of_day[folder]:
                    del self._files_of_day[folder]
                    self.fs.remove_directory(folder)
                    emptied = True
        if emptied:
            self.fs.sync_directory(self.directory)

    def close(self) -> None:
        """Close all files; what was not synced may be lost."""
        self.table.close()

    def check_invariants(self) -> None:
        """Clean files are durable to their end; the open table holds only files we know; lost files lack rows."""
        self.table.check_invariants()
        for loss in self.lost.values():
            assert 0 <= loss.left_rows < loss.rows
        for key, state in self.states.items():
            assert state.durable.end <= state.end
            assert not state.settled or (state.end > state.durable.end) == (key in self._dirty)
