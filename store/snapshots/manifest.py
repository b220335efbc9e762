"""The manifest of a backup: every file of a snapshot, and where its bytes are. A backup with a manifest is complete."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from store.snapshots.sealed_text import seal, unseal
from store.snapshots.snapshot_listing import is_segment

_KIND, _VERSION = "DELAYBAK", 1
NAMES: Final = "names.log"


class Piece(Struct, frozen=True, array_like=True):
    """Some bytes of a file: `length` bytes of a pack from `offset` on, with their SHA-256 in hex."""

    pack: str
    offset: int
    length: int
    sha256: str


class StoredFile(Struct, frozen=True, array_like=True):
    """A file of a snapshot. Its pieces follow one another from its first byte on. What they lack up to `size` is zeros.
    `file_number` and `changed_ns` are those of the listing."""

    path: str
    size: int
    file_number: int
    changed_ns: int
    pieces: tuple[Piece, ...]


class Manifest(Struct, frozen=True):
    """A snapshot in a backup. The fields that a listing has too are those of it. `program` is the version that wrote it."""

    server_id: int
    role: str
    taken_us: int
    log_end: int
    program: str
    files: tuple[StoredFile, ...]

    @property
    def size_bytes(self) -> int:
        """The bytes of all files."""
        return sum([file.size for file in self.files])

    @property
    def segments(self) -> list[StoredFile]:
        """The segments of message_log, in order."""
        return [file for file in self.files if is_segment(file.path)]

    def pieces(self) -> Iterator[Piece]:
        """The pieces of all files."""
        return (piece for file in self.files for piece in file.pieces)

    def packs(self) -> set[str]:
        """The packs that it needs."""
        return {piece.pack for piece in self.pieces()}


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the file."""
    return seal(_KIND, _VERSION, manifest)


def decode_manifest(data: bytes, path: str) -> Manifest:
    """The manifest in these bytes. Raises CorruptionError, FormatError; `path` is for the error."""
    return unseal(data, path, _KIND, _VERSION, Manifest)
