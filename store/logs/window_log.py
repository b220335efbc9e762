"""The common part of schedule_log and dispatch_log: files by window, their state, and the start after a stop."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar

from store.errors import CorruptionError
from store.logs.due_windows import parse_day_name
from store.logs.window_files import WindowFiles
from store.logs.window_recovery import WindowRecovery
from store.logs.window_state import Loss, WindowDamage


class WindowKey(Hashable, Protocol):
    """A file: it has a window, and a place in the order of all files."""

    @property
    def start_ms(self) -> int:
        """Start of the window, milliseconds since 1970."""

    def __lt__(self, other: Any, /) -> bool: ...


Key = TypeVar("Key", bound=WindowKey)

# The names of two years with some room: to parse one takes some microseconds.
_start_of_day = lru_cache(1024)(parse_day_name)


class WindowLog(Generic[Key]):
    """One thread appends. `sync` and all reads may run in other threads beside it, below an `end` they were given."""

    def __init__(self, files: WindowFiles[Key]) -> None:
        self._files = files
        self._recovery = WindowRecovery(files)

    # Writing

    def prepare(self, keys: Iterable[Key]) -> None:
        """Make those of these files that are not there yet, together: `append` makes them one by one.

        Raises DiskFullError, StoreError.
        """
        self._files.prepare(keys)

    def sync(self, keys: Iterable[Key] | None = None) -> None:
        """Make everything appended before the call durable. Raises SyncFailedError: final for that file."""
        self._files.sync(keys)

    def dirty_keys(self) -> list[Key]:
        """Files with bytes that are not known to be durable."""
        return self._files.dirty_keys()

    # State

    def end(self, key: Key) -> int:
        """Offset behind the last record; 0 if there is no file."""
        state = self._files.states.get(key)
        return state.end if state is not None else 0

    def rows(self, key: Key) -> int:
        """Rows in the file, internal ones included; 0 if there is no file."""
        state = self._files.states.get(key)
        return state.rows if state is not None else 0

    def path(self, key: Key) -> str:
        """Where the file is. Raises KeyError."""
        return self._files.states[key].path

    def __contains__(self, key: object) -> bool:
        return key in self._files.states

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys())

    def keys(self) -> list[Key]:
        """All files, in order of their windows."""
        return sorted(self._files.states)

    def keys_between(self, start_ms: int, stop_ms: int) -> list[Key]:
        """Files whose window starts in [start_ms, stop_ms)."""
        return sorted([key for key in list(self._files.states) if start_ms <= key.start_ms < stop_ms])

    def days(self) -> list[int]:
        """Starts of the days with files, in order."""
        return sorted([_start_of_day(folder.rpartition("/")[2]) for folder in self._files.folders()])

    def open_file_count(self) -> int:
        """Files held open now."""
        return len(self._files.table)

    # After a start

    @property
    def damages(self) -> list[WindowDamage[Key]]:
        """Corruption that `recover_all` found."""
        return self._recovery.damages

    @property
    def strangers(self) -> list[str]:
        """Paths in the folders that are no files of this log."""
        return self._recovery.strangers

    # Files that lost rows

    @property
    def lost(self) -> Mapping[Key, Loss]:
        """Files that are missing or were cut, with what they lost."""
        return self._files.lost

    @property
    def newly_lost(self) -> set[Key]:
        """The files in `lost` that no checkpoint knows yet."""
        return self._recovery.newly_lost

    def hiding(self, key: Key) -> CorruptionError | None:
        """The reason why rows of this file may be missing although its records verify: a loss, or a wrong name."""
        return self._files.hiding(key)

    # The end

    def sync_removed(self) -> None:
        """Make removals durable. May run in another thread. Raises SyncFailedError."""
        self._files.sync_removed()

    def close(self) -> None:
        """Close all files; what was not synced may be lost."""
        self._files.close()

    def check_invariants(self) -> None:
        """Assert what must hold between calls."""
        self._files.check_invariants()
