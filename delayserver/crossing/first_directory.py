"""Makes the first directory of a shard of that of a single server.

The directory gets a mark, as if it had followed the log of the shard up to its begin. All other members begin with a backup
of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from msgspec.structs import replace

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.files.progress_log import AppliedTo, ProgressLog, ProgressRows
from delayserver.broker.service.broker import Broker
from delayserver.crossing.directory_settings import settings_of
from delayserver.runtime.runtime import Runtime
from delayserver.startup.directory_opening import Opened, OpeningMember, open_directory
from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.shared.followed import FollowedTo, marker
from store.tables.identity import LOCK, read_identity, read_role
from store.tables.member_file import MemberOf, read_owner, write_owner

HOLDER = "delayserver cluster init"


def require_single(fs: FileSystem, root: str) -> tuple[int, MemberOf | None]:
    """The server id of a single server's directory, and what an interrupted call has written: it goes on with that. Raises
    FormatError (no server's directory, that of a member), CorruptionError."""
    server_id, owner = read_identity(fs, root), read_owner(fs, root)
    if read_role(fs, root) == "broker":
        raise FormatError(root, "the data of a broker that runs alone, which has no messages of its own to keep")
    if owner is None or owner.left:
        return server_id, None
    if owner.member:
        raise FormatError(
            root,
            f"the directory of {owner}. When that cluster has ended for good, make a server of its own of it first: "
            f"delayserver cluster leave --data-dir {root}",
        )
    return server_id, owner


def require_whole(fs: FileSystem, root: str, owner: MemberOf | None, runtime: Runtime) -> None:
    """Before any directory is given: one that is damaged stays what it is. `owner`: what an interrupted call has written.

    Raises LockedError, CorruptionError (the directory is damaged), FormatError, DiskFullError, StoreError."""
    with _whole(fs, root, owner, runtime):
        pass


def give_to_shard(fs: FileSystem, root: str, server_id: int, owner: MemberOf) -> None:
    """From now on no single server opens the directory. Raises LockedError (a server works on it), DiskFullError."""
    lock = fs.lock(f"{root}/{LOCK}", HOLDER.encode())
    try:
        write_owner(fs, root, server_id, owner)
    finally:
        lock.close()


def begin_shard(fs: FileSystem, root: str, owner: MemberOf, position: int, runtime: Runtime) -> int:
    """Let the directory, which `give_to_shard` has given, follow the log of its shard from a position on. May be repeated.
    Returns the epoch of the directory: the first member to lead claims the next one.

    Raises LockedError, CorruptionError (the directory is damaged), FormatError, DiskFullError, StoreError."""
    with _whole(fs, root, owner, runtime) as (opened, broker):
        server_id, log = opened.directory.server_id, opened.files.log
        epoch, store_end = broker.state.files.epoch.value, broker.state.files.store.end
        owner = replace(owner, log_offset=log.end)
        place = FollowedTo(position, epoch, 0, horizon_ms=max(opened.attempts.attempted.due_before_ms - 1, 0))
        log.append_durably([marker((), place)])
        log.require_name()
        progress = ProgressLog.open(fs, f"{root}/broker/progress.log", server_id)
        try:
            applied = AppliedTo(log.end, store_end, opened.sequences.next)
            progress.write_applied(ProgressRows(), applied, anew=False)
        finally:
            progress.close()
        write_owner(fs, root, server_id, owner)
    return epoch


@contextmanager
def _whole(fs: FileSystem, root: str, owner: MemberOf | None, runtime: Runtime) -> Iterator[tuple[Opened, Broker]]:
    """The open directory, and its broker, which is closed again. Raises as `require_whole`."""
    opener = None if owner is None else OpeningMember(read_identity(fs, root), owner)
    opened = open_directory(fs, settings_of(fs, root), runtime, HOLDER, "server", member=opener)
    try:
        broker = Broker.open(fs, f"{root}/broker", opened.directory.server_id, runtime.clock.now_us(), BrokerLimits())
        broker.close()
        damages = [*runtime.damage.corruption, *broker.state.damages.texts]
        if damages:
            raise CorruptionError(root, 0, f"{damages[0]}. All members would have it: delayserver recover check")
        yield opened, broker
    finally:
        opened.close()
