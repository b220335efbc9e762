"""Makes the directory of a single server of that of a member.

A member keeps what it decided in its message_log, and brings it to the other files later. So the directory is opened as the
member opens it, without the log of the shard, until all that message_log has is in its files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NoReturn

import trio
from msgspec.structs import replace

from delayserver.backup.restoring import begin_epoch, pass_over
from delayserver.config.cluster_settings import ClusterSettings
from delayserver.crossing.directory_settings import settings_of
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import LogDescription, LogRecord
from delayserver.server.delay_server import DelayServer
from delayserver.server.ground import Doors, Membership
from delayserver.server.tasks import tasks_by_stage
from delayserver.state.positions.readiness import Stage
from delayserver.state.shard.seat import Seat
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.shared.envelope import LogWriter, ShardIdentity
from store.tables import checkpoint
from store.tables.identity import SEQUENCES, read_identity, read_reservation
from store.tables.member_file import MemberOf, read_owner, write_owner


class _NoLog:
    """The log of a member that follows none: nobody calls it."""

    async def run(self, position: int, arrived: Callable[[Sequence[LogRecord]], None]) -> NoReturn:
        raise AssertionError

    def append(self, record: bytes) -> None:
        raise AssertionError

    async def ask(self) -> int:
        raise AssertionError

    def pause(self) -> None:
        raise AssertionError

    def resume(self) -> None:
        raise AssertionError

    async def trim(self, position: int) -> None:
        raise AssertionError

    async def describe(self) -> LogDescription:
        raise AssertionError


class _NoLogs:
    def open(self, shard: int) -> _NoLog:
        return _NoLog()


async def leave(fs: FileSystem, root: str, runtime: Runtime) -> int:
    """Make a member's directory that of a single server, which goes on with the sequence that is returned. An interrupted
    call may be repeated. Raises LockedError, FormatError (no member's directory), CorruptionError, DiskFullError,
    StoreError."""
    server_id, owner = _member(fs, root)
    try:
        found = checkpoint.read(fs, f"{root}/checkpoint")
    except CorruptionError:
        found = None
    if found is None or not found.written_us:
        raise CorruptionError(
            f"{root}/checkpoint", 0, "it is lost, so nothing says how old the directory is; start it as a member once"
        )
    elapsed_s = max(runtime.clock.now_us() - found.written_us, 0) // 1_000_000 + 1
    end = await settle(fs, root, server_id, owner, runtime)
    following = pass_over(fs, root, server_id, elapsed_s)
    begin_epoch(fs, root, server_id, runtime.clock.now_us())
    write_owner(fs, root, server_id, replace(owner, log_offset=end, left=True))
    return following


async def leave_restored(fs: FileSystem, root: str, runtime: Runtime) -> int:
    """As `leave`, of a directory for which a restore has passed over the sequences that the shard can have used."""
    server_id, owner = _member(fs, root)
    end = await settle(fs, root, server_id, owner, runtime)
    write_owner(fs, root, server_id, replace(owner, log_offset=end, left=True))
    return read_reservation(fs, f"{root}/{SEQUENCES}", server_id).reserved


def _member(fs: FileSystem, root: str) -> tuple[int, MemberOf]:
    server_id = read_identity(fs, root)
    owner = read_owner(fs, root, server_id)
    if owner is None or owner.left:
        raise FormatError(root, "the directory of a server of its own: it is no member's")
    return server_id, owner


async def settle(fs: FileSystem, root: str, server_id: int, owner: MemberOf, runtime: Runtime) -> int:
    """Bring what message_log has to the other files; the offset behind it."""
    seat = Seat(owner.shard, ShardIdentity(owner.cluster_id, server_id), LogWriter(0, 0), owner.member, "")
    membership = Membership(_NoLogs(), seat, ClusterSettings())
    server = DelayServer(settings_of(fs, root), runtime=runtime, doors=Doors(fs), membership=membership)
    server.open()
    try:
        parts = server.parts
        async with trio.open_nursery() as nursery:
            for task in tasks_by_stage(parts)[Stage.REPLAYING]:
                nursery.start_soon(task)
            await parts.recovery.finish()
            await parts.outcomes.recorder.flush()
            await parts.end.checkpoint.write()
            end = parts.files.log.end
            nursery.cancel_scope.cancel()
    finally:
        server.close()
    return end
