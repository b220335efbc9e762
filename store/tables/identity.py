"""The owner of a data directory: the lock, the server id, and the reservation of sequences.

(server id, sequence) is unique for ever: the id is drawn once when the directory is made, and no sequence is used
before a durable reservation covers it. The reservation also covers the times of a checkpoint, because a
checkpoint may be lost and this file may not. Both files are 64 bytes, checksummed and replaced atomically; FORMAT.md
draws them.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass

import google_crc32c

from store.disk.filesystem import File, FileSystem, keep_room, read_whole, write_atomically
from store.errors import CorruptionError, FormatError
from store.tables.member_file import FILE_NAME as OWNER
from store.tables.member_file import MemberOf, require_owner, write_owner

FORMAT_VERSION = 1
SERVER_ID_BITS = 48
IDENTITY, SEQUENCES, LOCK = "identity", "sequences", "lock"
ROLES = ("", "server", "broker")
"""The kinds of programs that own a directory, by the code in `identity`. Code 0 is not known: any of them may open it."""
# Sequences of one reservation: four seconds at a million messages a second between two small writes, and a crash
# leaves at most one and a half such gaps of a 63-bit space.
BLOCK = 1 << 22
# The clock of one reservation: a small write every ten minutes. After the loss of a checkpoint, messages due in that
# time cannot be cancelled any more: few.
CLOCK_AHEAD_US = 600_000_000
_MINUTE_US = 60_000_000
_FILE_BYTES = 64
_IDENTITY = struct.Struct("<8sHHIQ")
_SEQUENCES = struct.Struct("<8sHHIQqq")
# Flags of `sequences`. A program that knows only the first takes an orderly end for a crash.
_CLEAN, _ORDERLY = 1, 2
_IDENTITY_MAGIC, _SEQUENCES_MAGIC = b"DELAYIDN", b"DELAYSEQ"
# Names that a crash may leave while the directory is made, and the one that a fresh mount holds.
_UNFINISHED = {LOCK, SEQUENCES, f"{SEQUENCES}.tmp", f"{IDENTITY}.tmp", OWNER, f"{OWNER}.tmp", "lost+found"}


def _seal(head: bytes) -> bytes:
    crc: int = google_crc32c.value(head)
    return head + bytes(_FILE_BYTES - 4 - len(head)) + crc.to_bytes(4, "little")


def _unseal(fs: FileSystem, path: str, layout: struct.Struct, magic: bytes) -> tuple[int, ...]:
    data = read_whole(fs, path)
    if len(data) != _FILE_BYTES or data[:8] != magic:
        raise CorruptionError(path, 0, f"{len(data)} bytes that are not a file of this name")
    head = data[: layout.size]
    if google_crc32c.value(head) != int.from_bytes(data[-4:], "little") or any(data[layout.size : -4]):
        raise CorruptionError(path, 0, "checksum")
    fields = layout.unpack(head)
    if fields[1] > FORMAT_VERSION:
        raise FormatError(path, f"format version {fields[1]} is newer than this program's {FORMAT_VERSION}; upgrade it")
    return fields[1:]


def read_identity(fs: FileSystem, path: str) -> int:
    """The server id of a data directory, without lock or change. Raises FormatError, CorruptionError."""
    return _read_identity(fs, path)[3]


def read_role(fs: FileSystem, path: str) -> str:
    """The owner of a data directory, one of `ROLES`. Raises FormatError, CorruptionError."""
    code = _read_identity(fs, path)[1]
    if code >= len(ROLES):
        raise FormatError(f"{path}/{IDENTITY}", f"role {code} is none that this program knows; upgrade it")
    return ROLES[code]


def _read_identity(fs: FileSystem, path: str) -> tuple[int, ...]:
    try:
        return _unseal(fs, f"{path}/{IDENTITY}", _IDENTITY, _IDENTITY_MAGIC)
    except FileNotFoundError:
        raise FormatError(path, "not a data directory of this program (no identity file)") from None


@dataclass(frozen=True, slots=True)
class Reservation:
    """The contents of `sequences`: sequences below `reserved` may have been used; `next` is exact where `clean`. No
    checkpoint has a time behind `clock_us`, microseconds since 1970; 0: this is not known. `orderly`: all attempts of the
    last process have known results, and the checkpoint says which older ones have none."""

    clean: bool
    next: int
    reserved: int
    clock_us: int
    orderly: bool = False


def read_reservation(fs: FileSystem, path: str, server_id: int) -> Reservation:
    """The reservation in the file at `path`, without change, for tools. Raises CorruptionError (damaged or missing),
    FormatError (of another server, newer)."""
    try:
        _, flags, clock_minute, owner, following, reserved = _unseal(fs, path, _SEQUENCES, _SEQUENCES_MAGIC)
    except FileNotFoundError:
        raise CorruptionError(path, 0, "the reservation of sequences is missing") from None
    if owner != server_id:
        raise FormatError(path, f"belongs to server {owner:012x}, this data directory to {server_id:012x}")
    return Reservation(
        bool(flags & _CLEAN), following, reserved, clock_minute * _MINUTE_US, orderly=bool(flags & (_CLEAN | _ORDERLY))
    )


@dataclass(frozen=True, slots=True)
class DataDirectory:
    """A locked data directory. `server_id` is 48 random bits, never 0; `created` says that this open made it. `owner`: what
    the file `cluster` says of it; None without one."""

    path: str
    server_id: int
    created: bool
    lock: File
    owner: MemberOf | None = None

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        path: str,
        *,
        random_server_id: Callable[[], int],
        holder: str = "delayserver",
        role: str = "",
        member: MemberOf | None = None,
    ) -> DataDirectory:
        """Make or open the directory and lock it. `holder` is the text in the error of a program that finds it locked.
        `role` is one of `ROLES`: a server's directory is no broker's. `member`: which one opens it; None: a server without
        a cluster.

        Raises LockedError, FormatError (not empty and not ours, of another role or member, newer format), CorruptionError
        (identity).
        """
        fs.make_directory(path)
        _refuse_foreign(fs, path)
        lock = fs.lock(f"{path}/{LOCK}", holder.encode("utf-8"))
        try:
            owner = require_owner(fs, path, member)
            # Asked again under the lock: another process may just have made the directory.
            created = not fs.exists(f"{path}/{IDENTITY}")
            if created:
                server_id = random_server_id()
                if member is not None:  # a crash leaves no directory that a single server would take
                    write_owner(fs, path, server_id, owner := member)
                _create(fs, path, server_id, role)
            _refuse_other_role(fs, path, role)
            return cls(path, read_identity(fs, path), created, lock, owner)
        except BaseException:
            lock.close()
            raise

    @staticmethod
    def look(fs: FileSystem, path: str, *, holder: str, role: str, member: MemberOf) -> int | None:
        """Raise what `open` would raise, and make nothing but the file of the lock. The server id; None: `open` would make
        the directory."""
        if not fs.exists(path):
            return None
        _refuse_foreign(fs, path)
        with closing(fs.lock(f"{path}/{LOCK}", holder.encode("utf-8"))):
            require_owner(fs, path, member)
            if not fs.exists(f"{path}/{IDENTITY}"):
                return None
            _refuse_other_role(fs, path, role)
            return read_identity(fs, path)

    def close(self) -> None:
        """Give the lock back."""
        self.lock.close()


def _refuse_foreign(fs: FileSystem, path: str) -> None:
    names = set(fs.listdir(path))
    foreign = sorted(names - _UNFINISHED)
    if IDENTITY not in names and foreign:
        raise FormatError(
            path, f"not empty and not a data directory of this program (it holds {foreign[0]!r}); choose an empty one"
        )


def _refuse_other_role(fs: FileSystem, path: str, role: str) -> None:
    found = read_role(fs, path)
    if role and found and found != role:
        raise FormatError(path, f"the data of a {found}, and this is a {role}; choose another directory")


def _create(fs: FileSystem, path: str, server_id: int, role: str) -> None:
    """The identity comes last: a directory that has one is complete."""
    assert 0 < server_id < 1 << SERVER_ID_BITS, "a server id is 48 bits and never 0"
    _write_sequences(fs, path, server_id, _CLEAN, following=1, reserved=1, clock_minute=0)
    _write_identity(fs, path, server_id, role)


def rebuild_identity(fs: FileSystem, path: str, server_id: int) -> None:
    """Write a lost identity anew: the server id that the logs of the directory carry, and no role, which no log carries.
    Durable when this returns."""
    _write_identity(fs, path, server_id, "")


def _write_identity(fs: FileSystem, path: str, server_id: int, role: str) -> None:
    head = _IDENTITY.pack(_IDENTITY_MAGIC, FORMAT_VERSION, ROLES.index(role), 0, server_id)
    write_atomically(fs, f"{path}/{IDENTITY}", _seal(head))


def _write_sequences(
    fs: FileSystem, path: str, server_id: int, flags: int, *, following: int, reserved: int, clock_minute: int
) -> None:
    head = _SEQUENCES.pack(_SEQUENCES_MAGIC, FORMAT_VERSION, flags, clock_minute, server_id, following, reserved)
    write_atomically(fs, f"{path}/{SEQUENCES}", _seal(head))
    # The next start reserves sequences before anything else, and it may meet a full disk.
    keep_room(fs, f"{path}/{SEQUENCES}", len(head))


def pass_over_sequences(fs: FileSystem, path: str, server_id: int, count: int) -> int:
    """Reserve `count` more sequences that nobody takes, and let the last stop be no clean one. Returns the next sequence.

    A directory that is older than what its server gave out goes on behind that. Durable when this returns. Raises
    CorruptionError, FormatError, DiskFullError."""
    found = read_reservation(fs, f"{path}/{SEQUENCES}", server_id)
    following = max(found.next, found.reserved) + count
    minute = found.clock_us // _MINUTE_US
    _write_sequences(fs, path, server_id, 0, following=following, reserved=following, clock_minute=minute)
    return following


class SequenceReservation:
    """Gives out sequences from durably reserved blocks. `take` belongs to one thread; `extend` may run in another.

    `next` is the first sequence not taken. `clean` says whether the last stop stored its end: after an unclean one
    attempts with unknown results may exist, and sequences go on behind everything that was reserved.

    It reserves times in the same file: `reserve_clock` comes before the horizon of attempts moves to a time.
    """

    __slots__ = ("_clock_minute", "_closed", "_extending", "_fs", "_path", "_reserved", "_server_id", "clean", "next")

    def __init__(self, fs: FileSystem, path: str, server_id: int, start: Reservation) -> None:
        self._fs = fs
        self._path = path
        self._server_id = server_id
        self._reserved = start.reserved
        self._clock_minute = _minute_behind(start.clock_us)
        self._extending = threading.Lock()
        self._closed = False
        self.clean = start.clean
        self.next = start.next

    @classmethod
    def open(
        cls, fs: FileSystem, path: str, server_id: int, *, above: int = 0, clock_us: int | None = None
    ) -> SequenceReservation:
        """Read `sequences` in a data directory and reserve the first block, durable on return.

        `above`: the highest sequence found in the logs, as a second fence. `clock_us`: what is reserved of the clock from
        now on; without it, what the file says stays. Raises CorruptionError (damaged or missing:
        `rebuild` makes a new one above what the logs hold), FormatError (of another server, newer), DiskFullError.
        """
        reservation = cls.open_unwritten(fs, path, server_id, above=above, clock_us=clock_us)
        reservation.extend()
        return reservation

    @classmethod
    def open_unwritten(
        cls, fs: FileSystem, path: str, server_id: int, *, above: int = 0, clock_us: int | None = None
    ) -> SequenceReservation:
        """Like `open`, but writes nothing. The caller must call `extend` before the first record."""
        file = f"{path}/{SEQUENCES}"
        found = read_reservation(fs, file, server_id)
        following = max(found.next if found.clean else found.reserved, above + 1)
        reserved_us = found.clock_us if clock_us is None else clock_us
        return cls(fs, path, server_id, Reservation(found.clean, following, following, reserved_us))

    @classmethod
    def rebuild(cls, fs: FileSystem, path: str, server_id: int, *, above: int) -> SequenceReservation:
        """Replace a lost reservation: go on two blocks behind the highest sequence that any log holds."""
        # The lost file may have reserved a block and a half beyond the last sequence that reached a log.
        reserved = above + 1 + 2 * BLOCK
        _write_sequences(fs, path, server_id, 0, following=above + 1, reserved=reserved, clock_minute=0)
        return cls.open(fs, path, server_id)

    @property
    def reserved(self) -> int:
        """Sequences below this may be taken without touching the disk."""
        return self._reserved

    def take(self, count: int) -> int:
        """The first of `count` sequences, which are the caller's alone. Touches the disk only if `extend` is late.

        Raises DiskFullError, SyncFailedError and so on from that; nothing is taken then.
        """
        assert count > 0 and not self._closed
        first = self.next
        while first + count > self._reserved:
            self.extend(count)
        self.next = first + count
        return first

    def needs_extension(self) -> bool:
        """Whether less than half a block is left."""
        return self._reserved - self.next < BLOCK // 2

    def extend(self, count: int = 0) -> None:
        """Reserve a further block of at least `count`, durable on return. Raises DiskFullError, SyncFailedError."""
        with self._extending:
            if not self.needs_extension() and self.next + count <= self._reserved:
                return  # another thread was faster
            reserved = self._reserved + max(BLOCK, count)
            self._write(reserved, self._clock_minute)
            self._reserved = reserved

    def reserve_clock(self, time_us: int) -> None:
        """Durable on return: a checkpoint may state `time_us`, microseconds since 1970. Writes only if that time is not
        reserved yet, and then reserves `CLOCK_AHEAD_US` more. Writes nothing after a clean end. For any thread. Raises
        DiskFullError, SyncFailedError."""
        with self._extending:
            if self._closed or _minute_behind(time_us) <= self._clock_minute:
                return
            minute = _minute_behind(time_us + CLOCK_AHEAD_US)
            self._write(self._reserved, minute)
            self._clock_minute = minute

    def _write(self, reserved: int, clock_minute: int) -> None:
        _write_sequences(
            self._fs,
            self._path,
            self._server_id,
            0,
            following=self.next,
            reserved=reserved,
            clock_minute=clock_minute,
        )

    def close_clean(self, following: int | None = None) -> None:
        """Store the exact next sequence (by default `next`) at a clean shutdown; nothing may be taken afterwards."""
        following = self.next if following is None else following
        assert following >= self.next, "a sequence that was taken is never given out again"
        with self._extending:
            self._closed = True
            # No attempt is unknown now: a clock that once ran far ahead need not be remembered.
            _write_sequences(
                self._fs,
                self._path,
                self._server_id,
                _CLEAN,
                following=following,
                reserved=following,
                clock_minute=0,
            )

    def close_orderly(self) -> None:
        """Store the end of a process that knows the results of all its attempts. Attempts of a process before it are still
        unknown: the checkpoint says which. Nothing may be taken afterwards."""
        with self._extending:
            self._closed = True
            _write_sequences(
                self._fs,
                self._path,
                self._server_id,
                _ORDERLY,
                following=self.next,
                reserved=self.next,
                clock_minute=self._clock_minute,
            )


def _minute_behind(time_us: int) -> int:
    """The first whole minute that is not before a time; what its field holds at most. The clock may show anything."""
    return min(max(-(-time_us // _MINUTE_US), 0), (1 << 32) - 1)
