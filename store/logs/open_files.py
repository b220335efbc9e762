"""A bounded table of open segments. It knows which are in use, and nothing about their records.

One thread writes, others may read. A reader or writer pins its segment, and a pinned segment is never closed. So the
table may exceed its bound while more segments are in use. The lock covers the table, not the segments.

Closing does not sync. A later sync through a new handle makes the same bytes durable, and reports a failure that was not
reported before (Linux 4.16 and later). A sync at every eviction would cost a sync for each append, where more files are
written in turn than may be open.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from store.records.segment import Segment

Key = TypeVar("Key", bound=Hashable)
# Far below the usual limit of 1024 descriptors a process, and enough for four hours of one-minute windows.
OPEN_FILES_MAX = 256


class Pinned:
    """A segment in use. `segment` stays open until the same object is given to `unpin`."""

    __slots__ = ("dropped", "pins", "segment")

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.pins = 0
        self.dropped = False

    def pin(self) -> None:
        """Counts one more reader or writer of the segment."""
        self.pins += 1

    def unpin(self) -> None:
        """Counts one less. The last one closes a segment that was dropped."""
        self.pins -= 1
        assert self.pins >= 0, "unpinned more often than pinned"
        if self.dropped and not self.pins:
            self.segment.close()

    def drop(self) -> None:
        """Close the segment, as soon as it is not in use."""
        self.dropped = True
        if not self.pins:
            self.segment.close()


class OpenFiles(Generic[Key]):
    """Closes the least recently used segment that is not in use first."""

    def __init__(self, open_files_max: int, open_segment: Callable[[Key], Segment]) -> None:
        """`open_segment` runs under `lock` (reentrant)."""
        assert open_files_max >= 1
        self.open_files_max = open_files_max
        self.lock = threading.RLock()
        self._open_segment = open_segment
        self._entries: OrderedDict[Key, Pinned] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def pin(self, key: Key) -> Pinned:
        """The open segment, opened if need be. Every `pin` needs its `unpin`. Raises what opening raises."""
        with self.lock:
            entry = self._entries.get(key)
            if entry is None:
                self._make_room()
                entry = self._entries[key] = Pinned(self._open_segment(key))
            else:
                self._entries.move_to_end(key)
            entry.pin()
            return entry

    def unpin(self, entry: Pinned) -> None:
        """Gives back what `pin` gave."""
        with self.lock:
            entry.unpin()

    def insert(self, key: Key, segment: Segment) -> None:
        """Take over a segment that was just created."""
        with self.lock:
            assert key not in self._entries
            self._make_room()
            self._entries[key] = Pinned(segment)

    def is_open(self, key: Key) -> bool:
        """Whether this segment is in the table."""
        return key in self._entries

    def drop(self, key: Key) -> None:
        """Forget a segment without syncing; it is closed when the last reader is done."""
        with self.lock:
            entry = self._entries.pop(key, None)
            if entry is not None:
                entry.drop()

    def _make_room(self) -> None:
        while len(self._entries) >= self.open_files_max:
            victim = next((key for key, entry in self._entries.items() if not entry.pins), None)
            if victim is None:
                return  # all in use: over the bound until they are unpinned and the next one is opened
            self.drop(victim)

    def relieve(self) -> bool:
        """Close the older half of the segments that are not in use: another part needs a descriptor. Returns whether one
        was closed. It waits for no lock: that of another table may be held."""
        if not self.lock.acquire(blocking=False):
            return False
        try:
            idle = [key for key, entry in self._entries.items() if not entry.pins]
            for key in idle[: (len(idle) + 1) // 2]:
                self.drop(key)
            return bool(idle)
        finally:
            self.lock.release()

    def close(self) -> None:
        """Drop all; what was not synced may be lost."""
        for key in list(self._entries):
            self.drop(key)

    def check_invariants(self) -> None:
        """No entry is dropped, and the bound holds as far as pins allow."""
        with self.lock:
            assert not any(entry.dropped for entry in self._entries.values())
            unpinned = sum([not entry.pins for entry in self._entries.values()])
            assert len(self._entries) <= self.open_files_max or unpinned <= self.open_files_max
