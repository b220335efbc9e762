"""The operation `snapshot`: the files of one moment, for a backup that copies them beside the running server.

A client copies, not the server: the copy takes neither the GIL nor the credentials of the server, and may be killed. So the
client runs on the machine that has the directory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, TypeVar

import trio

from delayserver.logs.events import EventLogger
from delayserver.operations.nodes.servers import Peer, Servers
from delayserver.protocol.errors import DiskFull, InvalidArgument, StorageFailed
from delayserver.protocol.schema.snapshots import (
    KEPT_MS,
    DropSnapshot,
    KeepSnapshot,
    Snapshot,
    SnapshotDropped,
    TakeSnapshot,
)
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from store.disk.filesystem import FileSystem, StillDisk
from store.errors import DiskFullError, StoreError
from store.snapshots.taking import SnapshotTaking

LOOK_MS: Final = 10_000
"""A snapshot that nobody keeps is dropped at most this late."""

Lengths = Callable[[], Mapping[str, int]]
T = TypeVar("T")
events = EventLogger()


class Snapshots:
    """Takes one snapshot at a time: the files of several would keep the room of all that was removed since the first."""

    def __init__(self, fs: FileSystem, path: str, lengths: Lengths, servers: Servers, runtime: Runtime) -> None:
        """`path` is the data directory. `lengths` gives the bytes in use of files that are allocated ahead, by path. A
        worker thread calls it."""
        self._fs = fs
        self._taking = SnapshotTaking(fs, path)
        self._lengths = lengths
        self._servers = servers
        self._clock = runtime.clock
        self._chance = runtime.chance
        self._workers = runtime.workers
        self._changing = trio.Lock()
        self._name = ""
        self._taken_ms = 0
        self._until_us = 0
        self._begun = Bell()
        # The moment of the last snapshot of which a backup is complete; None: none was, since the start.
        self.last_backup_ms: int | None = None

    async def take(self, _asked: TakeSnapshot, peer: Peer) -> Snapshot:
        """Takes a snapshot, and drops one that is there: its backup was interrupted, or gives up now.

        Raises ServerNotProven, InvalidArgument (a directory in memory), DiskFull, StorageFailed."""
        self._servers.check_operator(peer)
        if not isinstance(self._fs, StillDisk):
            raise InvalidArgument("the directory of this server is in memory, so there is nothing to back up")
        async with self._changing:
            self._name = ""
            await self._run(self._taking.drop_all)
            name = f"{self._chance.getrandbits(48):012x}"
            try:
                listing = await self._run(partial(self._taking.take, name, self._lengths, self._clock.now_us))
            except (DiskFull, StorageFailed):
                await self._run(self._taking.drop_all)
                raise
            self._name, self._taken_ms = name, listing.taken_us // 1000
            self._keep()
            self._begun.ring()
        path = self._fs.absolute(self._taking.path_of(name))
        events.info("snapshot_taken", "a snapshot for a backup was taken at {path}", path=path)
        return Snapshot(name, path, KEPT_MS)

    async def keep(self, asked: KeepSnapshot, peer: Peer) -> Snapshot:
        """Keeps the snapshot. Raises ServerNotProven, InvalidArgument (it was dropped)."""
        self._servers.check_operator(peer)
        if not self._name or asked.name != self._name or not isinstance(self._fs, StillDisk):
            raise InvalidArgument(
                f"the snapshot {asked.name[:12]!r} was dropped: another backup began, or it was not kept in time"
            )
        self._keep()
        return Snapshot(self._name, self._fs.absolute(self._taking.path_of(self._name)), KEPT_MS)

    async def drop(self, asked: DropSnapshot, peer: Peer) -> SnapshotDropped:
        """Drops the snapshot. Raises ServerNotProven, StorageFailed."""
        self._servers.check_operator(peer)
        async with self._changing:
            if not self._name or asked.name != self._name:
                return SnapshotDropped(dropped=False)
            self._name = ""
            if asked.complete:
                self.last_backup_ms = self._taken_ms
            await self._run(self._taking.drop_all)
        return SnapshotDropped(dropped=True)

    async def run(self) -> None:
        """Drops what an earlier process has left, and snapshots that nobody keeps, until cancelled."""
        if not isinstance(self._fs, StillDisk):
            await trio.sleep_forever()
        while True:
            self._begun.hush()
            await self._drop_forgotten()
            if self._name:
                await self._clock.sleep_ms(LOOK_MS)
            else:
                await self._begun.rung()

    async def _drop_forgotten(self) -> None:
        if self._name and self._clock.monotonic_us() < self._until_us:
            return
        async with self._changing:
            if self._name:
                events.warning("snapshot_forgotten", "a snapshot that no backup kept is dropped")
            self._name = ""
            try:
                await self._run(self._taking.drop_all)
            except (DiskFull, StorageFailed) as error:
                events.warning("snapshot_left", "a snapshot cannot be dropped: {reason}", reason=error.message)

    def _keep(self) -> None:
        self._until_us = self._clock.monotonic_us() + KEPT_MS * 1000

    async def _run(self, work: Callable[[], T]) -> T:
        try:
            return await self._workers.run(work)
        except DiskFullError as error:
            raise DiskFull(str(error), retry_after_ms=1000) from error
        except StoreError as error:
            raise StorageFailed(str(error)) from error
