"""The report of damage in `status` and the log: corruption, unreadable bytes, operations that the disk refused.

Corruption is a fact about bytes, so each text is logged once and stays in `status`. A refusal is a fact about a moment,
and a failing disk refuses everything. So at most `LINES_A_MINUTE` refusals are logged, and the others are counted.
"""

from __future__ import annotations

import errno
from threading import Lock

from delayserver.logs.events import EventLogger
from delayserver.protocol.errors import DelayServerError, DiskFull, MessageDamaged, StorageFailed
from delayserver.runtime.clock import Clock
from store.errors import (
    CorruptionError,
    DiskError,
    DiskFullError,
    StoreError,
    SyncFailedError,
    TooManyFilesError,
    UnreadableError,
)

events = EventLogger()

# Texts in `status`. An operator needs the first ones; a disk that fails as a whole gives thousands.
CORRUPTIONS_MAX = 1000
UNREADABLE_MAX = 100
LINES_A_MINUTE = 10
MINUTE_US = 60_000_000


class DamageReport:
    """Collects every disk error that the server survives. `report` may be called in any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = Lock()
        self.corruption: list[str] = []
        self.own = ""
        """The first corruption by which this directory lacks something; empty: none is known."""
        self.unreadable: list[str] = []
        """One text for each file that the disk could not read since the start."""
        self.refused = 0
        """How often the disk refused an operation since the start. `refused_last` is the latest text."""
        self.refused_last = ""
        self._unreadable_paths: set[str] = set()
        self._minute_began_us = 0
        self._lines: set[tuple[str, str, int]] = set()
        self._not_logged = 0

    def report(self, error: Exception, *, own: bool = True) -> None:
        """Note an error. Log it if it is new and the bound of lines allows it. `own`: this directory lacks something by it.
        Not so where the file is another's, or was made anew of the others."""
        with self._lock:
            if isinstance(error, UnreadableError):
                self._note_unreadable(error)
                self._refused(str(error), (error.path, "read", error.errno))
            elif isinstance(error, SyncFailedError):
                self._refused(str(error), (str(error), "sync", 0))
            elif isinstance(error, DiskError):
                self._refused(str(error), (error.path, error.operation, error.errno))
            else:
                self._corrupt(str(error))
                if own:
                    self.own = self.own or str(error)

    def forbids_leading(self) -> bool:
        """Whether damage of this directory is known, so that another member of the cluster must lead. Then it is logged."""
        if self.own:
            events.error(
                "damaged_member_does_not_lead",
                "this member does not lead: its directory is damaged ({finding}); make it anew from a backup",
                finding=self.own,
            )
        return bool(self.own)

    def _corrupt(self, text: str) -> None:
        if text not in self.corruption and len(self.corruption) < CORRUPTIONS_MAX:
            self.corruption.append(text)
            events.error(
                "corruption_found",
                "corruption: {finding} (run `delayserver recover check` on a copy)",
                finding=text,
            )

    def _note_unreadable(self, error: UnreadableError) -> None:
        if error.path not in self._unreadable_paths and len(self.unreadable) < UNREADABLE_MAX:
            self._unreadable_paths.add(error.path)
            self.unreadable.append(str(error))

    def _refused(self, text: str, kind: tuple[str, str, int]) -> None:
        self.refused += 1
        self.refused_last = text
        now_us = self._clock.monotonic_us()
        if now_us - self._minute_began_us >= MINUTE_US:
            self._minute_began_us = now_us
            self._lines.clear()
        if kind in self._lines or len(self._lines) >= LINES_A_MINUTE:
            self._not_logged += 1
            return
        self._lines.add(kind)
        not_logged, self._not_logged = self._not_logged, 0
        events.error(
            "disk_refused",
            "disk error: {reason}" + (" ({not_logged} more disk errors were not logged)" if not_logged else ""),
            reason=text,
            not_logged=not_logged,
        )

    def check_invariants(self) -> None:
        """All bounds hold."""
        assert len(self.corruption) <= CORRUPTIONS_MAX
        assert len(self.unreadable) == len(self._unreadable_paths) <= UNREADABLE_MAX
        assert len(self._lines) <= LINES_A_MINUTE
        assert self._not_logged <= self.refused


def named(error: StoreError | FileNotFoundError) -> DelayServerError:
    """The protocol's error for an error that the store raised during a request."""
    if isinstance(error, DiskFullError) and not isinstance(error, TooManyFilesError):
        return DiskFull(str(error), retry_after_ms=1000)
    if isinstance(error, (DiskError, UnreadableError)):
        return StorageFailed(str(error), retry_after_ms=1000)
    if isinstance(error, CorruptionError):
        return MessageDamaged(str(error))
    return StorageFailed(str(error))


def as_disk_error(error: StoreError | FileNotFoundError) -> StoreError:
    """The same error; for a FileNotFoundError a DiskError with its path: the file disappeared while in use."""
    if isinstance(error, StoreError):
        return error
    detail = "the file was removed or moved while the server ran; put it back and restart the server"
    return DiskError(str(error.filename), "open", error.errno or errno.ENOENT, detail)
