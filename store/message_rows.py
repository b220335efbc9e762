"""Messages in row form: what single sends are between their acceptance and their replay.

Columns pay from a few dozen rows on; for a handful the calls of numpy cost more than the messages. So small groups stay
lists of plain values: they are written as the very record that their columns would give, and become columns when
the replayer has gathered many of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c
import numpy as np

from store.batches import MessageBatch
from store.columns import CONSTANT, PLAIN, STEP, integer_column
from store.id_hash import hash_id, hash_ids
from store.record import ALIGN, HEADER_BYTES, EncodedRecord, encode_header, record_bytes

# Up to here a list is cheaper than an array.
ROWS_MAX = 64

# Up to here ids are hashed one by one.
_HASH_ONE_BY_ONE_MAX = 24

_FIELDS = len(MessageBatch.schema.fields)
_DIRECTORY_BYTES = (_FIELDS + ALIGN - 1) // ALIGN * ALIGN
_ONE_ROW = struct.Struct("<4q4q3Q4Q")
_ONE_ROW_DIRECTORY = bytes([CONSTANT] * _FIELDS) + bytes(_DIRECTORY_BYTES - _FIELDS)
_PADDING = [bytes(-size % ALIGN) for size in range(ALIGN)]
_checksum = google_crc32c.value


class MessageRows:
    """Accepted messages as lists, one entry a row. `number` gives them their sequences, `first_sequence` on."""

    __slots__ = (
        "accepted_us",
        "blob_bytes",
        "bodies",
        "count",
        "due_ms",
        "expires_ms",
        "first_sequence",
        "ids",
        "properties",
        "subject",
    )

    def __init__(self) -> None:
        self.due_ms: list[int] = []
        self.subject: list[int] = []
        self.expires_ms: list[int] = []
        self.ids: list[bytes] = []
        self.properties: list[bytes] = []
        self.bodies: list[bytes] = []
        self.first_sequence = 0
        self.accepted_us = 0
        self.count = 0
        self.blob_bytes = 0

    def __len__(self) -> int:
        return self.count

    @property
    def last_sequence(self) -> int:
        """The sequence of the last row."""
        return self.first_sequence + self.count - 1

    def append(
        self, due_ms: int, subject: int, expires_ms: int, message_id: bytes, properties: bytes, body: bytes
    ) -> None:
        """Add one row; an id, properties or an expiry that is not given is empty or 0."""
        self.due_ms.append(due_ms)
        self.subject.append(subject)
        self.expires_ms.append(expires_ms)
        self.ids.append(message_id)
        self.properties.append(properties)
        self.bodies.append(body)
        self.count += 1
        self.blob_bytes += len(message_id) + len(properties) + len(body)

    def extend(self, other: MessageRows) -> None:
        """Add the rows of another."""
        self.due_ms += other.due_ms
        self.subject += other.subject
        self.expires_ms += other.expires_ms
        self.ids += other.ids
        self.properties += other.properties
        self.bodies += other.bodies
        self.count += other.count
        self.blob_bytes += other.blob_bytes

    def number(self, first_sequence: int, accepted_us: int) -> None:
        """Give the rows their sequences and the time of their acceptance."""
        self.first_sequence = first_sequence
        self.accepted_us = accepted_us


def to_batch(parts: Sequence[MessageRows]) -> MessageBatch:
    """The columns of numbered rows, in order; `parts` hold at least one row."""
    if len(parts) == 1:
        rows = parts[0]
        sequence = np.arange(rows.first_sequence, rows.first_sequence + len(rows), dtype="<i8")
        accepted_us: Any = rows.accepted_us
    else:
        rows = MessageRows()
        for part in parts:
            rows.extend(part)
        sequences: list[int] = []
        times: list[int] = []
        for part in parts:
            count = len(part)
            sequences += range(part.first_sequence, part.first_sequence + count)
            times += [part.accepted_us] * count
        sequence, accepted_us = np.array(sequences, "<i8"), integer_column(times, "<i8")
    columns: dict[str, Any] = {}
    if any(rows.ids):
        ids_length = integer_column([len(value) for value in rows.ids], "<u4")
        blob = b"".join(rows.ids)
        columns |= {"ids_length": ids_length, "ids": blob, "id_hash": hash_ids(blob, ids_length)}
    if any(rows.properties):
        columns["properties_length"] = integer_column([len(value) for value in rows.properties], "<u4")
        columns["properties"] = b"".join(rows.properties)
    if any(rows.expires_ms):
        columns["expires_ms"] = integer_column(rows.expires_ms, "<i8")
    return MessageBatch.filled(
        len(rows),
        sequence=sequence,
        accepted_us=accepted_us,
        due_ms=integer_column(rows.due_ms, "<i8"),
        subject=integer_column(rows.subject, "<u4"),
        bodies_length=integer_column([len(value) for value in rows.bodies], "<u4"),
        bodies=b"".join(rows.bodies),
        **columns,
    )


def encode_rows(rows: MessageRows, synced_before: int, offset: int) -> EncodedRecord:
    """The record of numbered rows, to stand at `offset`: byte for byte what `encode_record` makes of their columns."""
    count = rows.count
    if count == 1:
        message_id, properties, body = rows.ids[0], rows.properties[0], rows.bodies[0]
        columns = _ONE_ROW_DIRECTORY + _ONE_ROW.pack(
            rows.first_sequence, rows.due_ms[0], rows.accepted_us, rows.expires_ms[0], 0, 0, 0, 0,
            hash_id(message_id) if message_id else 0, rows.subject[0], 0,
            0, len(message_id), len(properties), len(body),
        )  # fmt: skip
        blob = message_id + properties + body if message_id or properties else body
    else:
        columns = _encode_columns(rows, count)
        blob = b"".join([*rows.ids, *rows.properties, *rows.bodies])
    header = encode_header(
        MessageBatch.schema, count, columns, len(blob), _checksum(blob) if blob else 0,
        synced_before, offset, rows.first_sequence, rows.first_sequence + count - 1,
    )  # fmt: skip
    blob_start = HEADER_BYTES + len(columns)
    data = b"".join((header, columns, blob, _PADDING[len(blob) % ALIGN]))
    return EncodedRecord([data], record_bytes(len(columns), len(blob)), blob_start)


def _encode_columns(rows: MessageRows, count: int) -> bytes:
    ids_length = [len(value) for value in rows.ids]
    if not any(ids_length):
        hashes = ids_length
    elif count <= _HASH_ONE_BY_ONE_MAX:
        hashes = [hash_id(value) for value in rows.ids]
    else:
        hashes = hash_ids(b"".join(rows.ids), np.array(ids_length, "<u4")).tolist()
    directory = bytearray([CONSTANT] * _FIELDS) + bytearray(_DIRECTORY_BYTES - _FIELDS)
    directory[0] = STEP
    parts: list[bytes | bytearray] = [directory, rows.first_sequence.to_bytes(ALIGN, "little")]
    for field, values in enumerate((rows.due_ms, None, rows.expires_ms), 1):
        if values is None:
            parts.append(rows.accepted_us.to_bytes(ALIGN, "little"))
        else:
            _encode_column(parts, directory, field, values, "q")
    parts.append(bytes(4 * ALIGN))  # origin_sequence, duplicate_of, replaces_sequence, replaces_due_ms
    _encode_column(parts, directory, 8, hashes, "Q")
    _encode_column(parts, directory, 9, rows.subject, "I")
    parts.append(bytes(2 * ALIGN))  # target_group, redelivery
    _encode_column(parts, directory, 12, ids_length, "I")
    _encode_column(parts, directory, 13, [len(value) for value in rows.properties], "I")
    _encode_column(parts, directory, 14, [len(value) for value in rows.bodies], "I")
    return b"".join(parts)


def _encode_column(
    parts: list[bytes | bytearray], directory: bytearray, field: int, values: list[int], code: str
) -> None:
    first, count = values[0], len(values)
    if values.count(first) == count:
        parts.append((first & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(ALIGN, "little"))
        return
    directory[field] = PLAIN
    data = struct.pack(f"<{count}{code}", *values)
    parts.append(data)
    if len(data) % ALIGN:
        parts.append(_PADDING[len(data) % ALIGN])
