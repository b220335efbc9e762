"""Makes a data directory of a backup.

The directory is of the past, and its server may have gone on since. It keeps the server id, so that receipts of its
messages stay valid. So it must not give out what the server gave out since: (server id, sequence) would name two
messages. It goes on behind all that the server can have used in the time since the backup. A jump of a fixed size would
not do: a backup may be restored twice, and both directories may have served.

The directory of a cluster's member is another matter: what came since stands in the shared log, and the member reads it
there. So the directory is taken as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from msgspec.structs import replace

from delayserver.backup.point_in_time import RestorePlan
from delayserver.backup.repository import BackupError, Repository
from delayserver.broker.files.broker_checkpoint import in_later_epoch
from store.disk.filesystem import File, FileSystem, directory_of, read_whole, write_atomically
from store.errors import CorruptionError
from store.records.batches import CancelBatch, MessageBatch
from store.records.segment import FILE_HEADER_BYTES, FILE_MESSAGE_LOG, Segment
from store.shared.followed import FollowedTo, followed_in
from store.shared.payload import LOG_VERSION, require_readable
from store.snapshots.manifest import StoredFile
from store.snapshots.snapshot_listing import MESSAGE_LOG, base_of
from store.tables import checkpoint
from store.tables.identity import BLOCK, IDENTITY, LOCK, pass_over_sequences
from store.tables.member_file import read_owner, write_owner

SEQUENCES_A_SECOND: Final = 1 << 20
"""No server takes so many on average, over the time from a backup to its restore. A receipt has room for 2^48: that is
eight years of such times."""
STARTS: Final = 4096
"""A start after a crash passes over a block of sequences without using a message for it. So many may have come beside."""
SEQUENCE_MAX: Final = 1 << 47
"""A restored directory does not begin in the upper half of what a receipt has room for."""
CLOCK_BEHIND_US: Final = 3_600_000_000
"""The clock of the machine that restores may be so far behind that of the server."""
FILES_SYNCED_TOGETHER: Final = 64
_BROKER_CHECKPOINT: Final = "broker/checkpoint"
_MAY_BE_THERE: Final = frozenset({LOCK, "lost+found"})

Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Restored:
    """A restored directory. `taken_us`: the moment of the backup it began with. `last_us`: when the last message or cancel
    was accepted that the message_log of a later backup added, 0 without any. `followed`: where a member goes on in the
    shared log. None: this is a server of its own, which goes on with `next_sequence`. `of_member`: then the caller calls
    `leave_restored`, before a server opens it."""

    name: str
    server_id: int
    taken_us: int
    last_us: int
    followed: FollowedTo | None
    next_sequence: int
    files: int
    size_bytes: int
    of_member: bool = False


def restore(repository: Repository, plan: RestorePlan, fs: FileSystem, root: str, now_us: int, tell: Tell) -> Restored:
    """Make the directory `root`, which must be empty or missing. It is complete, and durable, when this returns: an
    interrupted restore leaves one that no server opens.

    `now_us` is the wall clock. `tell` gets the bytes done and all bytes. Raises BackupError (not empty, a clock before the
    backup), CorruptionError (damage of the backup, by its file and offset), UpgradeNeededError (of a member whose log has a
    version that this program does not read), DiskFullError, StoreError.
    """
    base = plan.base
    if now_us < base.taken_us - CLOCK_BEHIND_US:
        raise BackupError("the clock of this machine is more than an hour behind the backup; set it, then restore")
    fs.make_directory(root)
    found = sorted({*fs.listdir(root)} - _MAY_BE_THERE)
    if found:
        raise BackupError(
            f"{root}: not empty (it holds {found[0]!r}); choose an empty directory. If an earlier restore was interrupted, "
            "remove what it has left"
        )
    lock = fs.lock(f"{root}/{LOCK}", b"a restore")
    try:
        (identity,) = [file for file in plan.files if file.path == IDENTITY]
        writing = _Writing(repository, fs, root, sum([file.size for file in plan.files]), tell)
        writing.files([file for file in plan.files if file is not identity])
        last_us = _cut_log(fs, root, plan) if plan.until_us is not None else 0
        followed = None if plan.alone else followed_in(fs, [(path, fs.size(path)) for path in plan.log_paths(root)])
        following = 0
        if followed is not None:
            require_readable(followed.barrier, LOG_VERSION, followed.position)
        else:
            elapsed_s = max(now_us - base.taken_us, 0) // 1_000_000 + 1
            following = pass_over(fs, root, base.server_id, elapsed_s)
            begin_epoch(fs, root, base.server_id, now_us)
        owner = read_owner(fs, root)
        of_member = owner is not None and not owner.left
        if owner is not None and of_member:
            write_owner(fs, root, base.server_id, replace(owner, member=""))
        writing.files([identity])
    finally:
        lock.close()
    return Restored(
        plan.name, base.server_id, base.taken_us, last_us, followed, following, len(plan.files), writing.size_bytes,
        of_member,
    )  # fmt: skip


def pass_over(fs: FileSystem, root: str, server_id: int, elapsed_s: int) -> int:
    """Go on behind the sequences that the server can have used in this time. Returns the next one."""
    # A member reserves none: those of its shard follow from the shared log.
    known = None
    with suppress(CorruptionError):  # the start reports it, and makes it anew
        known = checkpoint.read(fs, f"{root}/checkpoint")
    used = 0 if known is None else known.replayed_sequence
    following = pass_over_sequences(fs, root, server_id, used + elapsed_s * SEQUENCES_A_SECOND + STARTS * BLOCK)
    if following > SEQUENCE_MAX:
        raise BackupError(f"{root}: the sequences of server {server_id:012x} are used up; begin a new directory")
    return following


class _Writing:
    """Writes files from their pieces."""

    def __init__(self, repository: Repository, fs: FileSystem, root: str, size_bytes: int, tell: Tell) -> None:
        self._repository = repository
        self._fs = fs
        self._root = root
        self._tell = tell
        self._done = 0
        self.size_bytes = size_bytes

    def files(self, files: list[StoredFile]) -> None:
        """Write some files and make them durable, with the folders that name them."""
        for start in range(0, len(files), FILES_SYNCED_TOGETHER):
            written: list[File] = []
            try:
                # One by one, so that those which were opened before a failure are closed.
                for file in files[start : start + FILES_SYNCED_TOGETHER]:
                    written.append(self._file(file))  # noqa: PERF401
                self._fs.sync_together(written)
            finally:
                for each in written:
                    each.close()
        for folder in sorted({directory_of(f"{self._root}/{file.path}") for file in files}):
            self._fs.sync_directory(folder)

    def _file(self, stored: StoredFile) -> File:
        path = f"{self._root}/{stored.path}"
        self._fs.make_directory(directory_of(path))
        file = self._fs.open(path, create=True)
        try:
            position = 0
            for piece in stored.pieces:
                position += file.pwrite(position, [self._repository.read(piece)])
                self._tell(self._done + position, self.size_bytes)
            if position < stored.size:
                file.truncate(stored.size)  # the rest is zeros
        except BaseException:
            file.close()
            raise
        self._done += stored.size
        self._tell(self._done, self.size_bytes)
        return file


def _cut_log(fs: FileSystem, root: str, plan: RestorePlan) -> int:
    """Cut message_log before the first record that was accepted too late. Returns when the last one was accepted, in
    microseconds, among those that the backup itself has not; 0: none."""
    assert plan.until_us is not None
    last_us, cut = 0, False
    for path in plan.log_paths(root):
        base = base_of(path)
        if cut:
            fs.remove(path)
            continue
        segment = Segment.open(fs, path, FILE_MESSAGE_LOG, plan.base.server_id)
        try:
            start = max(FILE_HEADER_BYTES, plan.log_from - base)
            for header, batch in segment.records(start) if start < segment.end else ():
                at_us = _accepted_us(batch)
                if at_us > plan.until_us:
                    segment.file.truncate(header.offset)
                    segment.file.datasync()
                    cut = True
                    break
                last_us = max(last_us, at_us)
        finally:
            segment.close()
    if cut:
        fs.sync_directory(f"{root}/{MESSAGE_LOG}")
    return last_us


def _accepted_us(batch: object) -> int:
    """When the last row of a record was accepted; 0 where the rows have no time."""
    if isinstance(batch, MessageBatch):
        return int(batch.accepted_us.max())
    return int(batch.requested_us.max()) if isinstance(batch, CancelBatch) else 0


def begin_epoch(fs: FileSystem, root: str, server_id: int, now_us: int) -> None:
    """Consumers may still hold deliveries of the server that went on. Their ids name its epoch, so the restored one takes a
    later epoch: the time, as a broker does that has lost its checkpoint."""
    path = f"{root}/{_BROKER_CHECKPOINT}"
    try:
        data = read_whole(fs, path)
    except FileNotFoundError:
        return
    later = in_later_epoch(data, server_id, now_us // 1_000_000)
    if later is not None:
        write_atomically(fs, path, later)
