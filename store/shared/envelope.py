"""The envelope of a record in a shared log: 64 bytes in front of a payload. Bytes only; FORMAT.md draws it, change both
together.

     0 magic u32      |  4 version u16    |  6 kind u16       |  8 cluster_id u64   | 16 server_id u64
    24 epoch u32      | 28 member u32     | 32 index u64      | 40 instance u64     | 48 wall_us i64
    56 length u32     | 60 crc u32

`crc` covers bytes 0 to 60 and the payload, which has `length` bytes. The places of `magic`, `version`, `cluster_id`,
`server_id`, `length` and `crc` are those of every version. So an older program knows a newer record from a foreign one.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

import google_crc32c
import numpy as np

from store.disk.filesystem import Buffer
from store.errors import UpgradeNeededError

ENVELOPE_MAGIC: Final = 0x474F4C44  # "DLOG"
ENVELOPE_VERSION: Final = 1
ENVELOPE_BYTES: Final = 64

_CHECKED = struct.Struct("<IHHQQIIQQqI")
_CHECKSUM = struct.Struct("<I")
_extend = google_crc32c.extend
_checksum = google_crc32c.value


class EnvelopeKind(IntEnum):
    """What the payload is, and so what a member does with it."""

    CLAIM = 1
    """A standby begins an epoch."""
    BEAT = 2
    """The primary lives."""
    END = 3
    """The primary hands over."""
    RECORDS = 4
    """Records of the kinds that files have."""
    BARRIER = 7
    """Older programs must not read on."""


_KINDS: Final = {int(kind): kind for kind in EnvelopeKind}


class ForeignRecordError(ValueError):
    """The bytes are no record of this shard: no envelope, damaged, or of another cluster or shard. The reader reports it,
    and goes on as if it were not there."""


class ShardIdentity(NamedTuple):
    """The shard that a record belongs to. Both ids are random, and never 0."""

    cluster_id: int
    server_id: int


class LogWriter(NamedTuple):
    """Who wrote a record: the number of a member, and the instance of its process, which is random."""

    member: int
    instance: int


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields in front of a payload. `index` is 0 in a claim; then it counts the records of the epoch. `wall_us` is the
    writer's clock, in microseconds since 1970."""

    kind: EnvelopeKind
    shard: ShardIdentity
    epoch: int
    index: int
    writer: LogWriter
    wall_us: int


class Unwrapped(NamedTuple):
    """A record of the log, verified. `payload` is a view of its bytes."""

    envelope: Envelope
    payload: memoryview


def wrap(envelope: Envelope, payload: Sequence[Buffer]) -> bytes:
    """The record: the envelope and the parts of its payload, copied once."""
    member, instance = envelope.writer
    assert (envelope.kind is EnvelopeKind.CLAIM) == (envelope.index == 0), "a claim comes before the first record"
    checked = _CHECKED.pack(
        ENVELOPE_MAGIC, ENVELOPE_VERSION, envelope.kind, *envelope.shard, envelope.epoch, member, envelope.index,
        instance, envelope.wall_us, sum(map(len, payload)),
    )  # fmt: skip
    crc = _checksum(checked)
    for part in payload:
        crc = _extended(crc, part)
    return b"".join((checked, _CHECKSUM.pack(crc), *payload))


def unwrap(data: Buffer, shard: ShardIdentity, position: int) -> Unwrapped:
    """Verify a record of the log, which stands at `position` there.

    Raises ForeignRecordError, and UpgradeNeededError for a kind or version that this program does not know."""
    if len(data) < ENVELOPE_BYTES:
        raise ForeignRecordError(f"{len(data)} bytes are no envelope")
    magic, version, number, cluster_id, server_id, epoch, member, index, instance, wall_us, length = (
        _CHECKED.unpack_from(data)
    )
    if magic != ENVELOPE_MAGIC:
        raise ForeignRecordError("no envelope")
    view = memoryview(data)
    payload = view[ENVELOPE_BYTES:]
    if length != len(payload):
        raise ForeignRecordError(f"a payload of {len(payload)} bytes, where the envelope says {length}")
    (crc,) = _CHECKSUM.unpack_from(data, _CHECKED.size)
    if _extended(_checksum(bytes(view[: _CHECKED.size])), payload) != crc:
        raise ForeignRecordError("envelope checksum")
    if (cluster_id, server_id) != shard:
        raise ForeignRecordError(f"of cluster {cluster_id:012x} and server {server_id:012x}")
    kind = _KINDS.get(number)
    if version != ENVELOPE_VERSION or kind is None:
        raise UpgradeNeededError(position, f"an envelope of kind {number} and version {version}")
    envelope = Envelope(kind, ShardIdentity(cluster_id, server_id), epoch, index, LogWriter(member, instance), wall_us)
    return Unwrapped(envelope, payload)


def _extended(crc: int, part: Buffer) -> int:
    # An array, since the checksum takes no view and a copy would cost as much.
    found: int = _extend(crc, part if isinstance(part, bytes) else np.frombuffer(part, np.uint8))
    return found
