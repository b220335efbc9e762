"""Waiting for room on a full disk: the log lines for the operator, and the pauses. It does not wait by itself.

A part that meets a full disk calls `full` at each attempt and `resume` when it goes on. The first call is logged at once,
further calls at most once a minute.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from delayserver.logs.events import EventLogger
from delayserver.runtime.clock import Clock
from store.disk.filesystem import FileSystem
from store.errors import DiskError, DiskFullError, TooManyFilesError

events = EventLogger()

# The first and the longest pause before the next attempt on a full disk. An attempt may cost as much as a replay round.
PAUSE_MS = 200
PAUSE_MS_MAX = 1000
# An operator who reads the log finds the line within a minute, and a night gives a few hundred lines.
AGAIN_US = 60_000_000


class RoomWait:
    """One part that may wait for room."""

    __slots__ = ("_clock", "_fs", "_last_us", "_path", "_what", "blocked", "pause_ms", "text")

    def __init__(self, fs: FileSystem, path: str, what: str, clock: Clock) -> None:
        """`what` names the part in log lines: "the replay of accepted messages". `path`: the data directory."""
        self._fs = fs
        self._path = path
        self._what = what
        self._clock = clock
        self._last_us: int | None = None
        self.text = ""
        self.pause_ms = PAUSE_MS
        # Set while the part waits. `resume` replaces it by a new event.
        self.blocked = trio.Event()

    @property
    def waiting(self) -> bool:
        """Whether the part waits for room now."""
        return self.blocked.is_set()

    def full(self, needed_bytes: int, refusal: DiskFullError) -> None:
        """The part met a full disk, and needs about `needed_bytes` to go on, or what the `refusal` asked for."""
        needed_bytes = max(needed_bytes, refusal.needed_bytes)
        free_bytes = self._free_bytes()
        if free_bytes >= needed_bytes or isinstance(refusal, TooManyFilesError):
            # A quota, blocks that are kept for root, no inodes, no descriptors: more bytes would not help.
            self.text = f"{self._what} waits: {refusal}"
        else:
            self.text = f"{self._what} needs about {needed_bytes} bytes on a disk with {free_bytes} bytes free"
        now_us = self._clock.monotonic_us()
        if self._last_us is None or now_us - self._last_us >= AGAIN_US:
            self._last_us = now_us
            if isinstance(refusal, TooManyFilesError):
                events.warning(
                    "no_descriptors",
                    "{part} waits: {reason}. Nothing is lost, and the server goes on by itself",
                    part=self._what,
                    reason=str(refusal),
                )
            elif free_bytes >= needed_bytes:
                events.warning(
                    "disk_full",
                    "disk full: {part} is refused although {free_bytes} bytes are free: {reason}. Look at quotas, at "
                    "blocks that are kept for root, and at free inodes (df -i) of {path}. Nothing is lost, and the server "
                    "goes on by itself",
                    part=self._what,
                    free_bytes=free_bytes,
                    reason=str(refusal),
                    path=self._path,
                )
            else:
                events.warning(
                    "disk_full",
                    "disk full: {part} needs about {needed_bytes} bytes on a disk with {free_bytes} bytes free. Make room "
                    "for at least {missing_bytes} bytes more on the disk of {path}, but delete nothing in that directory. "
                    "Nothing is lost, and the server goes on by itself",
                    part=self._what,
                    needed_bytes=needed_bytes,
                    free_bytes=free_bytes,
                    missing_bytes=needed_bytes - free_bytes,
                    path=self._path,
                )
        if self.waiting:
            self.pause_ms = min(self.pause_ms * 2, PAUSE_MS_MAX)
        self.blocked.set()

    def _free_bytes(self) -> int:
        try:
            return self._fs.free_bytes(self._path)
        except DiskError:
            return 0

    def resume(self) -> None:
        """Ends the wait for room: the disk took what the part wrote."""
        if self.waiting:
            events.warning("disk_full_ended", "the disk has room again: {part} goes on", part=self._what)
            self.text = ""
            self.pause_ms = PAUSE_MS
            self._last_us = None
            self.blocked = trio.Event()

    async def end_when_blocked(self, wait: Callable[[], Awaitable[None]]) -> None:
        """Await `wait()`, or cancel it and return when the part waits for room."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._cancel_when_blocked, nursery.cancel_scope)
            await wait()
            nursery.cancel_scope.cancel()

    async def _cancel_when_blocked(self, scope: trio.CancelScope) -> None:
        await self.blocked.wait()
        scope.cancel()

    def check_invariants(self) -> None:
        """A text is set, and a line was logged, exactly while the part waits."""
        assert self.waiting == bool(self.text) == (self._last_us is not None)
