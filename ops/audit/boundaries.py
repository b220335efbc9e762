"""Finds offsets at which a large file may be cut: the beginnings of records. Reads headers only and decodes no rows.

It walks the headers from the first record on and never searches for them, because a body may look like a record.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from store.disk.filesystem import File
from store.records.record import HEADER_BYTES, RECORD_MAGIC, record_bytes

# Bytes of one read, which covers many small records. The walk skips large records without reading them.
_READ_BYTES = 256 << 10
# magic, kind, columns_bytes, blob_bytes, place, synced_before of a record header; store/FORMAT.md draws it.
_WALKED = struct.Struct("<I4xH6xI4xQ4xIQ16x")
_ALIGN = 8
_PLACE_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class CutPoints:
    """`offsets`: starts of records, ascending. `synced`: the highest offset that was durable according to a header."""

    offsets: tuple[int, ...]
    synced: int


class WalkedHeader(NamedTuple):
    """A header whose checksum was not looked at: where its record starts and ends, and the offset that was durable."""

    position: int
    kind: int
    end: int
    synced_before: int


def headers(file: File, start: int, stop: int) -> Iterator[WalkedHeader]:
    """The headers of records from `start` on, up to the first bytes that are none."""
    position = start
    buffer, buffer_start = b"", start
    while position + HEADER_BYTES <= stop:
        begin = position - buffer_start
        if begin + HEADER_BYTES > len(buffer):
            buffer, buffer_start, begin = file.pread(position, min(_READ_BYTES, stop - position)), position, 0
            if len(buffer) < HEADER_BYTES:
                return
        magic, kind, columns_bytes, blob_bytes, place, before = _WALKED.unpack_from(buffer, begin)
        if magic != RECORD_MAGIC or place != (position // _ALIGN) & _PLACE_MASK or before > position:
            return
        end = position + record_bytes(columns_bytes, blob_bytes)
        yield WalkedHeader(position, kind, end, before)
        position = end


def cut_points(file: File, start: int, stop: int, part_bytes: int) -> CutPoints:
    """Offsets about `part_bytes` apart. The walk ends at the first bytes that are no header. The bytes behind belong to
    the last part, whose reader judges them. The reader also checks the header checksums."""
    offsets: list[int] = []
    synced, following = 0, start + part_bytes
    for header in headers(file, start, stop):
        if header.position >= following:
            offsets.append(header.position)
            following = header.position + part_bytes
        synced = max(synced, header.synced_before)
    return CutPoints(tuple(offsets), min(synced, stop))
