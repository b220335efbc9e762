"""The backups of one server in one place: a manifest for each, and packs of bytes that several of them share.

A manifest is written last, so an interrupted backup has none. Its packs are removed by the next backup.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final

from delayserver.backup.objects import Objects, ObjectWriter
from store.errors import CorruptionError, FormatError, StoreError
from store.snapshots.manifest import Manifest, Piece, decode_manifest, encode_manifest
from store.snapshots.verified_backup import VerifiedBackup, decode_verified, encode_verified

MANIFESTS: Final = "snapshots"
PACKS: Final = "packs"
_MANIFEST: Final = ".manifest"
_VERIFIED: Final = ".verified"
PACK_BYTES: Final = 256 << 20
"""A pack is closed when it has so many bytes. A place of objects takes far larger ones; one that nothing needs any more
frees so much at once."""


class BackupError(StoreError):
    """What was asked for cannot be done with this backup. The message says why, and what can be."""


class Repository:
    """Reads and writes the backups of a place."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self.name = objects.name
        self._alone = False

    def names(self) -> list[str]:
        """The complete backups, the oldest first. A name is the moment of its snapshot."""
        found = self._objects.sizes(MANIFESTS)
        return sorted([name.removesuffix(_MANIFEST) for name in found if name.endswith(_MANIFEST)])

    def manifest(self, name: str) -> Manifest:
        """The manifest of a backup. Raises CorruptionError, FormatError."""
        path = f"{MANIFESTS}/{name}{_MANIFEST}"
        return decode_manifest(self._objects.read(path), f"{self.name}/{path}")

    def newest(self) -> tuple[str, Manifest]:
        """The last backup. Raises BackupError if there is none, CorruptionError, FormatError."""
        names = self.names()
        if not names:
            raise BackupError(f"{self.name}: there is no backup here")
        return names[-1], self.manifest(names[-1])

    def pack_sizes(self) -> dict[str, int]:
        """The packs with their bytes."""
        return self._objects.sizes(PACKS)

    def read(self, piece: Piece) -> bytes:
        """The bytes of a piece, verified. Raises CorruptionError."""
        path = f"{PACKS}/{piece.pack}"
        data = self._objects.read(path, piece.offset, piece.length)
        where = f"{self.name}/{path}"
        if len(data) != piece.length:
            raise CorruptionError(
                where, piece.offset, f"{piece.length - len(data)} of {piece.length} bytes are missing"
            )
        if hashlib.sha256(data).hexdigest() != piece.sha256:
            raise CorruptionError(where, piece.offset, f"checksum of {piece.length} bytes")
        return data

    def hold(self) -> None:
        """Keep other backups out, if the place can. Raises LockedError, StoreError."""
        self._alone = self._objects.hold()

    def close(self) -> None:
        """Let other backups in."""
        self._objects.close()

    def pack_writer(self, pack: str) -> ObjectWriter:
        """A new pack."""
        return self._objects.writer(f"{PACKS}/{pack}")

    def add(self, name: str, manifest: Manifest) -> None:
        """Complete a backup, whose packs are all finished. Raises BackupError (one has gone), StoreError."""
        sizes = self.pack_sizes()
        for piece in manifest.pieces():
            if sizes.get(piece.pack, 0) < piece.offset + piece.length:
                raise BackupError(
                    f"{self.name}: {piece.pack} has gone; another backup or a `prune` ran at the same time"
                )
        self._objects.put(f"{MANIFESTS}/{name}{_MANIFEST}", encode_manifest(manifest))

    def verify(self, name: str, verified: VerifiedBackup) -> None:
        """Write down that a member's directory was made of a backup, and checked. Raises StoreError."""
        self._objects.put(f"{MANIFESTS}/{name}{_VERIFIED}", encode_verified(verified))

    def verified(self) -> dict[str, VerifiedBackup]:
        """The backups of members that were checked, by name, the oldest first. Raises CorruptionError, FormatError."""
        marks = self._objects.sizes(MANIFESTS)
        found: dict[str, VerifiedBackup] = {}
        for name in self.names():
            path = f"{MANIFESTS}/{name}{_VERIFIED}"
            if f"{name}{_VERIFIED}" in marks:
                found[name] = decode_verified(self._objects.read(path), f"{self.name}/{path}")
        return found

    def prune(self, keep: int) -> list[str]:
        """Remove all backups but the last `keep`, and then the packs that no backup needs. Returns the removed backups.

        Raises CorruptionError, FormatError (a manifest that stays cannot be read: no pack is removed), StoreError.
        """
        names = self.names()
        removed = names[: max(len(names) - keep, 0)]
        for name in removed:
            # First the mark: a backup without its manifest covers nothing.
            self._objects.remove(f"{MANIFESTS}/{name}{_VERIFIED}")
            self._objects.remove(f"{MANIFESTS}/{name}{_MANIFEST}")
        needed: set[str] = set()
        for name in self.names():
            needed |= self.manifest(name).packs()
        for pack in self.pack_sizes():
            if pack not in needed:
                self._objects.remove(f"{PACKS}/{pack}")
        return removed

    def remove_packs_behind(self, name: str) -> None:
        """Remove the packs of backups that came behind this one, the last that is complete: they were interrupted. Without a
        lock one of them may be under way, and nothing is removed."""
        for pack in self.pack_sizes() if self._alone else ():
            if pack.rpartition("-")[0] > name:
                self._objects.remove(f"{PACKS}/{pack}")

    def damages(self, names: list[str], tell: Callable[[int, int], None]) -> list[StoreError]:
        """Reads and verifies the manifests of these backups and all bytes that they need, each once. Returns what is wrong.
        `tell` gets the bytes done and all bytes."""
        found: list[StoreError] = []
        pieces: dict[Piece, None] = {}
        for name in names:
            try:
                pieces |= dict.fromkeys(self.manifest(name).pieces())
            except (CorruptionError, FormatError) as error:
                found.append(error)
        total, done = sum([piece.length for piece in pieces]), 0
        for piece in pieces:
            try:
                self.read(piece)
            except CorruptionError as error:
                found.append(error)
            done += piece.length
            tell(done, total)
        return found


def name_of(taken_us: int) -> str:
    """The name of a backup by the moment of its snapshot, such as `20261127T224500.123456Z`. Names sort as moments do."""
    return f"{datetime.fromtimestamp(taken_us // 1_000_000, UTC):%Y%m%dT%H%M%S}.{taken_us % 1_000_000:06d}Z"


def moment_of(name: str) -> int:
    """The moment of a name, microseconds since 1970. Raises BackupError for a name that `name_of` does not give."""
    try:
        moment = datetime.strptime(f"{name.removesuffix('Z')}+0000", "%Y%m%dT%H%M%S.%f%z")
    except ValueError:
        raise BackupError(f"{name}: the manifest has a name that no backup gives; remove it") from None
    return (moment - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1)
