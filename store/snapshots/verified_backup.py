"""The mark of a checked backup of a cluster's member: from where in the shared log its directory goes on."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from store.snapshots.sealed_text import seal, unseal

_KIND: Final = "DELAYVER"
_VERSION: Final = 1


class VerifiedBackup(Struct, frozen=True):
    """A directory was made of the backup, and `recover check` was clean. `position` is the next one to read of the shared
    log, `epoch` that of the last record before it. `checked_us`: when, microseconds since 1970."""

    server_id: int
    position: int
    epoch: int
    checked_us: int


def encode_verified(verified: VerifiedBackup) -> bytes:
    """The bytes of the file."""
    return seal(_KIND, _VERSION, verified)


def decode_verified(data: bytes, path: str) -> VerifiedBackup:
    """The mark in these bytes. Raises CorruptionError, FormatError; `path` is for the error."""
    return unseal(data, path, _KIND, _VERSION, VerifiedBackup)
