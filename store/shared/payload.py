"""The payloads of a shared log: records as files have them, and small msgpack maps.

A new kind of data is a new kind of record, not a new kind of envelope. FORMAT.md describes the maps; change both together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from store.disk.filesystem import Buffer
from store.errors import UpgradeNeededError
from store.records.batches import KIND_KEPT
from store.records.record import BadRecordError
from store.records.record_image import RecordImage, record_images
from store.records.segment import Appendable, encode_appendable
from store.shared.envelope import EnvelopeKind

LOG_VERSION: Final = 1
"""The highest version of a shared log that this program reads. FORMAT.md says which kinds of records stand in a log of each
version. A log begins with 0, and a barrier raises it."""

# Kinds and versions of records that programs of version 0 do not know: they stand only in a log of this version, or a higher
# one.
_NEEDED: Final = {(KIND_KEPT, 1): 1}


class ClaimNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A standby claims the next epoch."""

    member: str
    """The name of the member."""
    address: str
    """Where clients reach it."""
    program: str
    """The version of its program."""
    position: int
    """Up to here it has read the log."""
    reason: str
    """Why it claims, for the operator."""
    http: str = ""
    """The URL of its HTTP interface; empty: it has none."""
    index: int = -1
    """The number of the last record of the epoch before that it has read; -1: it does not say."""


class BeatNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The primary lives, and says how far it may act until the next beat."""

    horizon_ms: int
    """Nothing is attempted that is due later, in milliseconds since 1970."""
    lease_ms: int
    """So long after it sent this beat, the primary serves pulls and lookups."""
    digest: bytes
    """The digest of the state at `position`; empty where the beat has none."""
    position: int
    """The position in the log up to which the digest counts."""
    address: str = ""
    """Where clients reach the primary, for a member that has not read its claim."""
    http: str = ""
    """The URL of its HTTP interface; empty: it has none."""


class EndNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The primary decides nothing more in this epoch."""

    heir: str
    """The name of the member that claims now; empty: any."""
    horizon_ms: int
    """Messages that are due up to then may have been attempted without an outcome in the log. In milliseconds since 1970; 0:
    none was."""


class BarrierNote(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """From here on the log may have records of a later version. A program that does not read it must not read on."""

    version: int
    """The version of the log from here on."""
    program: str
    """The version of a program that reads it."""


Note: TypeAlias = ClaimNote | BeatNote | EndNote | BarrierNote
"""What a map says."""

_NOTES: Final[dict[EnvelopeKind, type[Note]]] = {
    EnvelopeKind.CLAIM: ClaimNote,
    EnvelopeKind.BEAT: BeatNote,
    EnvelopeKind.END: EndNote,
    EnvelopeKind.BARRIER: BarrierNote,
}
_KINDS: Final = {note: kind for kind, note in _NOTES.items()}
_DECODERS: Final[dict[EnvelopeKind, Any]] = {kind: msgspec.msgpack.Decoder(note) for kind, note in _NOTES.items()}
_encode: Final = msgspec.msgpack.Encoder().encode


def kind_of(note: Note) -> EnvelopeKind:
    """The kind of the envelope around a map."""
    return _KINDS[type(note)]


def encode_note(note: Note) -> bytes:
    """The payload of a map."""
    return _encode(note)


def encode_records(batches: Sequence[Appendable]) -> list[Buffer]:
    """The payload of records, in parts: each as it would stand at offset 0 of a file. Blobs are not copied."""
    return [part for batch in batches for part in encode_appendable(batch, 0, 0).buffers]


def version_needed(kind: int, version: int) -> int:
    """The lowest version of a log in which a record of this kind and version may stand."""
    return _NEEDED.get((kind, version), 0)


def require_readable(version: int, reads: int, position: int, program: str = "") -> None:
    """Raises UpgradeNeededError where a log has a version from `position` on and this program reads less. `program`: the
    version of one that reads it; empty: not known."""
    if version > reads:
        enough = f"; delayserver {program} reads it" if program else ""
        raise UpgradeNeededError(
            position,
            f"the log has version {version} from here on, and this program reads up to version {reads}{enough}",
        )


def decode_note(kind: EnvelopeKind, payload: Buffer, position: int) -> Note:
    """The map of an envelope of any kind but records, which stands at `position` of the log.

    Raises UpgradeNeededError where it is not a map of this program: its checksum was right, so another program wrote it."""
    try:
        note: Note = _DECODERS[kind].decode(payload)
    except msgspec.MsgspecError as error:
        raise UpgradeNeededError(position, f"a payload of kind {kind}: {error}") from error
    return note


def decode_records(payload: Buffer, position: int) -> list[RecordImage]:
    """The records of an envelope of their kind, which stands at `position` of the log; at least one.

    Raises UpgradeNeededError where they are not records of this program."""
    try:
        return record_images(payload)
    except BadRecordError as error:
        raise UpgradeNeededError(position, str(error)) from error
