"""Finds offsets at which a large file may be cut: the beginnings of records. Reads headers only and decodes no rows.

It walks the headers from the first record on and never searches for them, because a body may look like a record.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from store.disk.filesystem import File
from store.records.record import HEADER_BYTES, RECORD_MAGIC, record_bytes

# Bytes of one read, which covers many small records. The walk skips large records without reading them.
_READ_BYTES = 256 << 10
# magic, columns_bytes, blob_bytes, place, synced_before of a record header; store/FORMAT.md draws it.
_WALKED = struct.Struct("<I12xI4xQ4xIQ16x")
_ALIGN = 8
_PLACE_MASK = 0xFFFF_FFFF


@dataclass(frozen=True, slots=True)
class CutPoints:
    """`offsets`: starts of records, ascending. `synced`: the highest offset that was durable according to a header."""

    offsets: tuple[int, ...]
    synced: int


def cut_points(file: File, start: int, stop: int, part_bytes: int) -> CutPoints:
    """Offsets about `part_bytes` apart. The walk ends at the first bytes that are no header. The bytes behind belong to
    the last part, whose reader judges them. The reader also checks the header checksums."""
    offsets: list[int] = []
    position, synced, following = start, 0, start + part_bytes
    buffer, buffer_start = b"", start
    while position + HEADER_BYTES <= stop:
        begin = position - buffer_start
        if begin + HEADER_BYTES > len(buffer):
            buffer, buffer_start, begin = file.pread(position, min(_READ_BYTES, stop - position)), position, 0
            if len(buffer) < HEADER_BYTES:
                break
        magic, columns_bytes, blob_bytes, place, before = _WALKED.unpack_from(buffer, begin)
        if magic != RECORD_MAGIC or place != (position // _ALIGN) & _PLACE_MASK or before > position:
            break
        if position >= following:
            offsets.append(position)
            following = position + part_bytes
        synced = max(synced, before)
        position += record_bytes(columns_bytes, blob_bytes)
    return CutPoints(tuple(offsets), min(synced, stop))
