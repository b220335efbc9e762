"""A record as bytes that stand in no file yet, such as a shared log carries: encoded once, for the files of many members.

Only the first 64 bytes of a record name its place. A member makes these anew when it writes the record to its file. It
touches neither the column block nor the blobs.
"""

from __future__ import annotations

import struct

import google_crc32c

from store.disk.filesystem import Buffer
from store.records.column_batch import ColumnBatch
from store.records.record import (
    ALIGN,
    HEADER_BYTES,
    BadRecordError,
    EncodedRecord,
    RecordHeader,
    decode_body,
    decode_header,
    known_batch,
    place_of,
)

# `place` and `synced_before`, as offsets in the bytes that the checksum of a header covers.
_CHECKED_FROM = 8
_CHECKSUM = struct.Struct("<I")
_CHECKSUM_AT = 4
_PLACE = struct.Struct("<IQ")
_PLACE_AT = 36
_checksum = google_crc32c.value


def placed_header(header: Buffer, synced_before: int, offset: int) -> bytes:
    """The 64 bytes of a record, made anew for a record that is to stand at `offset`."""
    assert len(header) == HEADER_BYTES and offset % ALIGN == 0
    assert synced_before <= offset, "what comes behind a record is not durable before it"
    placed = bytearray(header)
    _PLACE.pack_into(placed, _PLACE_AT, place_of(offset), synced_before)
    _CHECKSUM.pack_into(placed, _CHECKSUM_AT, _checksum(bytes(placed[_CHECKED_FROM:])))
    return bytes(placed)


class RecordImage:
    """One whole record, encoded for offset 0. It is appended as it is."""

    __slots__ = ("_data", "header")

    def __init__(self, data: memoryview) -> None:
        """`data` begins with a record, and may go on behind it. Its bytes are verified already: by the checksum of what
        brought them. Raises BadRecordError, and UnknownRecordError for the record of a newer program."""
        self.header: RecordHeader = decode_header(data, 0)
        known_batch(self.header)
        if len(data) < self.header.end:
            raise BadRecordError("cut off")
        self._data = data[: self.header.end]

    def __len__(self) -> int:
        """Number of rows."""
        return self.header.count

    @property
    def columns(self) -> memoryview:
        """The column block."""
        return self._data[HEADER_BYTES : HEADER_BYTES + self.header.columns_bytes]

    @property
    def body(self) -> memoryview:
        """The column block, and the blobs behind it."""
        return self._data[HEADER_BYTES : HEADER_BYTES + self.header.columns_bytes + self.header.blob_bytes]

    def to_batch(self) -> ColumnBatch:
        """The columns of the rows. Blobs are views of the bytes. Raises BadRecordError, if a mistake of the writer made the
        record."""
        return decode_body(self.header, self._data[HEADER_BYTES:], verify=False)

    def encode(self, synced_before: int, offset: int) -> EncodedRecord:
        """The record, to stand at `offset`: byte for byte what encoding the batch anew would give."""
        header = placed_header(self._data[:HEADER_BYTES], synced_before, offset)
        return EncodedRecord([header, self._data[HEADER_BYTES:]], self.header.end, self.header.blob_offset)


def record_images(data: Buffer) -> list[RecordImage]:
    """Records that stand one behind the other, each encoded for offset 0; at least one.

    Raises BadRecordError if they do not fill `data` exactly, and UnknownRecordError for the record of a newer program."""
    rest = memoryview(data)
    images = []
    while rest:
        images.append(RecordImage(rest))
        rest = rest[images[-1].header.end :]
    if not images:
        raise BadRecordError("no record")
    return images
