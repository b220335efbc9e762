"""The key index of a data directory: rows in memory, runs on disk, and the manifest that names the runs.

`add`, `capture` and `find_young` are steps of the event loop. The others may run in threads, beside each other. A row that
moves from memory to a run meanwhile may be found twice, and never not at all, if memory is searched first.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock

from store.disk.filesystem import FileSystem
from store.errors import StoreError
from store.keys.key_manifest import FILE_NAME, KeyManifest, read_manifest, write_manifest
from store.keys.key_merge import KeepRows, KeyMerge, runs_to_merge
from store.keys.key_rows import KeyRows, joined
from store.keys.key_run import KeyRun, RunWriter, open_run
from store.keys.young_keys import YoungKeys
from store.records.batches import I64, U64

FOLDER = "keys"
"""Its folder in a data directory."""


@dataclass(frozen=True, slots=True)
class CapturedKeys:
    """Rows that go to disk together, and the sequence up to which nothing is missing then."""

    rows: YoungKeys
    covered: int


class KeyTable:
    """Keys → messages that may bear them."""

    def __init__(
        self, fs: FileSystem, directory: str, server_id: int, manifest: KeyManifest, runs: list[KeyRun]
    ) -> None:
        """As `open_table` or `new_table` make it. `directory`: that of the index."""
        self._fs = fs
        self._directory = directory
        self._server_id = server_id
        self._young = YoungKeys()
        # What a thread writes to a run.
        self._captured: CapturedKeys | None = None
        self._lock = Lock()
        self._runs = runs
        self._next = manifest.next_number
        self._covered = manifest.covered
        self._complete = manifest.complete
        self._gaps = manifest.gaps
        # Runs that were merged into others, until no search reads them.
        self._merged: list[KeyRun] = []
        self._searches = 0

    @property
    def covered(self) -> int:
        """The sequence up to which the files have all rows, but for those that `complete` misses."""
        return self._covered

    @property
    def complete(self) -> bool:
        """Whether the index has all messages, and not only those that came since it was begun."""
        return self._complete

    @property
    def gaps(self) -> bool:
        """Whether damage was passed over when it was made."""
        return self._gaps

    @property
    def young_rows(self) -> int:
        """Rows in memory."""
        return self._young.rows + (0 if self._captured is None else self._captured.rows.rows)

    @property
    def run_count(self) -> int:
        """Runs on disk."""
        return len(self._runs)

    @property
    def rows(self) -> int:
        """All rows."""
        return self.young_rows + sum([run.name.rows for run in self._runs])

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return 2 * 24 * self.young_rows + sum([run.nbytes for run in self._runs])

    # -- rows in memory

    def add(self, rows: KeyRows) -> None:
        """Add rows, which must not change any more."""
        self._young.add(rows)

    def find_young(self, keys: U64, newest: int) -> list[tuple[I64, KeyRows]]:
        """The last rows of each of n keys in memory: positions in `keys` and the rows, in some parts."""
        found = [] if self._captured is None else self._captured.rows.find(keys, newest)
        return found + self._young.find(keys, newest)

    def capture(self, covered: int) -> CapturedKeys:
        """Take the rows of memory for `write`; one capture at a time. `covered`: the sequence up to which all are added."""
        assert self._captured is None, "one at a time"
        self._captured = CapturedKeys(self._young, covered)
        self._young = YoungKeys()
        return self._captured

    def settle_capture(self, captured: CapturedKeys, *, written: bool) -> None:
        """`write` has returned, or raised: then the rows stay in memory."""
        assert captured is self._captured
        self._captured = None
        if not written:
            self._young = captured.rows.taken_by(self._young)

    # -- files

    def write(self, captured: CapturedKeys) -> None:
        """Make captured rows durable. Raises DiskFullError, DiskError, SyncFailedError."""
        run = self._written(captured.rows.parts) if captured.rows.rows else None
        with self._lock:
            self._covered = max(self._covered, captured.covered)
            if run is not None:
                self._runs = [*self._runs, run]
            self._save()

    def write_older(self, parts: Sequence[KeyRows]) -> None:
        """Add rows that lie before those that are covered: for an index that is being made. Raises as `write`."""
        run = self._written(parts)
        with self._lock:
            self._runs = [run, *self._runs]
            self._save()

    def end_making(self, *, gaps: bool) -> None:
        """All messages are in the index now. Raises as `write`."""
        with self._lock:
            self._complete, self._gaps = True, gaps
            self._save()

    def _written(self, parts: Sequence[KeyRows]) -> KeyRun:
        rows = joined(parts)
        writer = self._writer(len(rows))
        try:
            writer.add(rows)
            return writer.finish()
        except StoreError:
            writer.abandon()
            raise

    def _writer(self, rows_max: int) -> RunWriter:
        with self._lock:
            number, self._next = self._next, self._next + 1
        return RunWriter(self._fs, self._directory, self._server_id, number, rows_max)

    def _save(self) -> None:
        # The names of new runs are durable before a manifest names them.
        self._fs.sync_directory(self._directory)
        runs = [(run.name.number, run.name.rows, run.name.size_bytes) for run in self._runs]
        manifest = KeyManifest(runs, self._next, self._covered, self._complete, self._gaps)
        write_manifest(self._fs, self._directory, self._server_id, manifest)

    # -- merges, one at a time

    def begin_merge(self, keep: KeepRows) -> KeyMerge | None:
        """A merge of runs, if there are too many; the caller takes its steps, then calls `end_merge`. Raises
        DiskFullError, DiskError."""
        runs = runs_to_merge(self._runs)
        return KeyMerge(runs, self._writer(sum([run.name.rows for run in runs])), keep) if runs else None

    def end_merge(self, merge: KeyMerge, run: KeyRun) -> None:
        """Put a new run in the place of those that were merged into it. Raises DiskFullError, DiskError, SyncFailedError."""
        with self._lock:
            before = self._runs
            place = before.index(merge.runs[0])
            kept = [each for each in before if each not in merge.runs]
            self._runs = [*kept[:place], run, *kept[place:]]
            try:
                self._save()
            except StoreError:
                self._runs = before
                raise
            self._merged += merge.runs
            self._close_merged()
        for each in merge.runs:
            self._fs.remove(each.path)

    # -- searches

    def find_in_runs(self, keys: U64, newest: int) -> list[tuple[I64, KeyRows]]:
        """The last rows of each of n keys on disk, as `find_young` has them. Raises CorruptionError, DiskError."""
        with self._lock:
            runs = self._runs
            self._searches += 1
        try:
            return [run.find(keys, newest) for run in runs]
        finally:
            with self._lock:
                self._searches -= 1
                self._close_merged()

    def _close_merged(self) -> None:
        if not self._searches:
            for run in self._merged:
                run.close()
            self._merged = []

    def close(self) -> None:
        """Closes all files, without a sync, when the last search has ended. Nothing is found any more."""
        with self._lock:
            self._merged += self._runs
            self._runs = []
            self._close_merged()


def open_table(fs: FileSystem, directory: str, server_id: int) -> KeyTable:
    """Opens an index. Removes what no manifest names. Raises FileNotFoundError (there is none), CorruptionError, FormatError
    (of another server, or newer), DiskError."""
    manifest = read_manifest(fs, directory, server_id)
    runs: list[KeyRun] = []
    try:
        for name in manifest.names():
            runs.append(open_run(fs, directory, server_id, name))  # noqa: PERF401 - those that are open are closed
    except BaseException:
        for run in runs:
            run.close()
        raise
    named = {run.path for run in runs} | {f"{directory}/{FILE_NAME}"}
    for file in fs.listdir(directory):
        if (path := f"{directory}/{file}") not in named:
            fs.remove(path)
    return KeyTable(fs, directory, server_id, manifest, runs)


def new_table(fs: FileSystem, directory: str, server_id: int, *, complete: bool) -> KeyTable:
    """Begins an index anew; nothing of an earlier one stays. `complete`: there are no messages before those that will be
    added. Raises DiskFullError, DiskError, SyncFailedError."""
    fs.make_directory(directory)
    # The manifest goes first and durably: without it, its runs are nothing.
    fs.remove(f"{directory}/{FILE_NAME}")
    fs.sync_directory(directory)
    for file in fs.listdir(directory):
        with suppress(FileNotFoundError):
            fs.remove(f"{directory}/{file}")
    manifest = KeyManifest([], complete=complete)
    write_manifest(fs, directory, server_id, manifest)
    return KeyTable(fs, directory, server_id, manifest, [])
