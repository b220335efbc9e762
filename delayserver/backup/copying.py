"""Copies a snapshot into a repository: only the bytes that the backup before it has not.

Files grow at their end or are replaced. So what a file had at the last backup mostly still stands in it: it is read and
compared by its SHA-256, and only what stands behind it is written. A file of which nothing has changed is not read.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

from delayserver.backup.objects import ObjectWriter
from delayserver.backup.repository import PACK_BYTES, BackupError, Repository, moment_of, name_of
from store.disk.filesystem import File, FileSystem
from store.snapshots.manifest import Manifest, Piece, StoredFile
from store.snapshots.snapshot_listing import ListedFile, Listing

PIECE_BYTES: Final = 8 << 20
"""A piece is read, verified and held in memory as a whole."""
SHORT_PIECES_MAX: Final = 32
"""Each backup of a growing file adds a short piece. Past so many they are copied anew, as one."""
ZEROS_READ_BYTES: Final = 64 << 10

Tell = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class BackedUp:
    """A new backup. `copied_bytes` were written, the others of `size_bytes` were there or are zeros."""

    name: str
    taken_us: int
    files: int
    size_bytes: int
    copied_bytes: int


def back_up(repository: Repository, fs: FileSystem, root: str, listing: Listing, program: str, tell: Tell) -> BackedUp:
    """Copy the files of a listing, which lie below `root`, and complete a backup. The caller holds the repository.

    `tell` gets the bytes done and all bytes, at least once every `PIECE_BYTES`. Raises BackupError (another server's
    backups, a file that is not as the listing says), CorruptionError, FormatError (of the backup before), StoreError.
    """
    name, previous = _begun(repository, listing)
    copying = _Copying(repository, name, previous, {file.path for file in listing.files})
    done, stored = 0, []
    try:
        for file in listing.files:
            stored.append(copying.file(fs, root, file, partial(_told, tell, done, listing.size_bytes)))
            done += file.size
        copying.finish()
    except BaseException:
        copying.give_up()
        raise
    manifest = Manifest(listing.server_id, listing.role, listing.taken_us, listing.log_end, program, tuple(stored))
    repository.add(name, manifest)
    return BackedUp(name, listing.taken_us, len(stored), listing.size_bytes, copying.copied_bytes)


def _told(tell: Tell, before: int, total: int, more: int) -> None:
    tell(before + more, total)


def _begun(repository: Repository, listing: Listing) -> tuple[str, Manifest | None]:
    """The name of the new backup, and the backup before it. Removes what an interrupted one has left."""
    names = repository.names()
    name = name_of(listing.taken_us)
    if not names:
        repository.remove_packs_behind("")
        return name, None
    previous = repository.manifest(names[-1])
    if previous.server_id != listing.server_id:
        raise BackupError(
            f"{repository.name}: holds backups of server {previous.server_id:012x}, and this is "
            f"{listing.server_id:012x}; choose another place"
        )
    repository.remove_packs_behind(names[-1])
    # Where the clock has stepped back, the last backup still has the last name.
    return max(name, name_of(moment_of(names[-1]) + 1)), previous


class _Copying:
    """Copies files into packs of one backup."""

    def __init__(self, repository: Repository, name: str, previous: Manifest | None, paths: set[str]) -> None:
        self._repository = repository
        self._name = name
        self._known = {} if previous is None else {file.path: file for file in previous.files if file.path in paths}
        self._usable = _usable_packs(repository.pack_sizes(), list(self._known.values()))
        self._pack = ""
        self._packs = 0
        self._writer: ObjectWriter | None = None
        self._pack_end = 0
        self.copied_bytes = 0

    def file(self, fs: FileSystem, root: str, listed: ListedFile, tell: Callable[[int], None]) -> StoredFile:
        """Copy one file. `tell` gets the bytes of it that are done."""
        known = self._known.get(listed.path)
        if known is not None and _unchanged(known, listed) and self._all_usable(known.pieces):
            tell(listed.size)
            return known
        path = f"{root}/{listed.path}"
        try:
            file = fs.open(path, write=False)
        except FileNotFoundError:
            raise BackupError(f"{path}: the file is gone; did another backup of this server begin?") from None
        try:
            pieces = self._still_there(file, listed.size, known)
            start = sum([piece.length for piece in pieces])
            end = _data_end(file, start, listed.size)
            for position in range(start, end, PIECE_BYTES):
                tell(position)
                pieces.append(self._write(_read(file, position, min(PIECE_BYTES, end - position))))
        finally:
            file.close()
        tell(listed.size)
        return StoredFile(listed.path, listed.size, listed.file_number, listed.changed_ns, tuple(pieces))

    def _all_usable(self, pieces: tuple[Piece, ...]) -> bool:
        return all(self._is_usable(piece) for piece in pieces)

    def _is_usable(self, piece: Piece) -> bool:
        return self._usable.get(piece.pack, 0) >= piece.offset + piece.length

    def _still_there(self, file: File, size: int, known: StoredFile | None) -> list[Piece]:
        """The pieces of the backup before that the file still begins with."""
        kept: list[Piece] = []
        position = 0
        for piece in () if known is None else _worth_keeping(known.pieces):
            if position + piece.length > size or not self._is_usable(piece):
                break
            if hashlib.sha256(_read(file, position, piece.length)).hexdigest() != piece.sha256:
                break
            kept.append(piece)
            position += piece.length
        return kept

    def _write(self, data: bytes) -> Piece:
        if self._writer is None:
            self._pack = f"{self._name}-{self._packs:04d}"
            self._writer = self._repository.pack_writer(self._pack)
            self._packs += 1
            self._pack_end = 0
        self._writer.write(data)
        piece = Piece(self._pack, self._pack_end, len(data), hashlib.sha256(data).hexdigest())
        self._pack_end += len(data)
        self.copied_bytes += len(data)
        if self._pack_end >= PACK_BYTES:
            self.finish()
        return piece

    def finish(self) -> None:
        """Finish the pack that is being written."""
        if self._writer is not None:
            self._writer.finish()
            self._writer = None

    def give_up(self) -> None:
        """Remove the pack that is being written. The next backup removes the others."""
        if self._writer is not None:
            self._writer.give_up()


def _unchanged(known: StoredFile, listed: ListedFile) -> bool:
    return (known.size, known.file_number, known.changed_ns) == (listed.size, listed.file_number, listed.changed_ns)


def _usable_packs(sizes: dict[str, int], files: list[StoredFile]) -> dict[str, int]:
    """The packs that a new backup may use, with their bytes. A pack of which less than half is still of use is not among
    them. Its bytes of files that are still there are copied anew, so the pack goes with the backups that need it."""
    used: Counter[str] = Counter()
    for file in files:
        for piece in file.pieces:
            used[piece.pack] += piece.length
    return {pack: size for pack, size in sizes.items() if 2 * used[pack] >= size}


def _worth_keeping(pieces: tuple[Piece, ...]) -> tuple[Piece, ...]:
    """All pieces, or where too many are short the ones before the first short one."""
    short = [place for place, piece in enumerate(pieces) if piece.length < PIECE_BYTES]
    return pieces[: short[0]] if len(short) > SHORT_PIECES_MAX else pieces


def _data_end(file: File, start: int, size: int) -> int:
    """Where the zeros begin that the file ends with, not before `start`."""
    while size > start:
        position = max(size - ZEROS_READ_BYTES, start)
        data = _read(file, position, size - position).rstrip(b"\0")
        if data:
            return position + len(data)
        size = position
    return start


def _read(file: File, offset: int, length: int) -> bytes:
    data = file.pread(offset, length)
    if len(data) != length:
        raise BackupError(f"{file.path}: the file ends before offset {offset + length}; begin the backup again")
    return data
