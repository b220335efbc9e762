"""Messages in row form: single sends between their acceptance and their replay.

Columns pay from a few dozen rows on. For a handful of rows the numpy calls cost more than the messages. So small groups
stay lists of plain values. They are written as the very record that their columns would give. The replayer makes columns
of them when it has gathered many.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, TypeAlias

import google_crc32c
import numpy as np

from store.disk.filesystem import Buffer
from store.records.batches import U32, MessageBatch
from store.records.column_batch import CONSTANT, PLAIN, STEP, integer_column
from store.records.id_hash import hash_id, hash_ids
from store.records.record import ALIGN, HEADER_BYTES, EncodedRecord, encode_header, encode_record
from store.records.versions import schema_at

# Up to here a list is cheaper than an array.
ROWS_MAX = 64
# The schema of rows without a tag or an order key.
_SCHEMA = schema_at(MessageBatch.schema, 1)

# Up to here ids are hashed one by one.
_HASH_ONE_BY_ONE_MAX = 24

_FIELDS = len(_SCHEMA.fields)
_DIRECTORY_BYTES = (_FIELDS + ALIGN - 1) // ALIGN * ALIGN
_ONE_ROW = struct.Struct("<4q4q3Q4Q")
_ONE_ROW_DIRECTORY = bytes([CONSTANT] * _FIELDS) + bytes(_DIRECTORY_BYTES - _FIELDS)
_SIX_CONSTANT_ZEROS = bytes(6 * ALIGN)
_FOUR_CONSTANT_ZEROS, _TWO_CONSTANT_ZEROS = bytes(4 * ALIGN), bytes(2 * ALIGN)
_PADDING = [bytes(-size % ALIGN) for size in range(ALIGN)]
_checksum = google_crc32c.value


Row: TypeAlias = tuple[int, int, int, bytes, bytes, bytes, int, bytes]
"""One accepted message: due_ms, subject's code, expires_ms, id, properties, body, tag's code, order key; 0 or empty where
it has none."""


class MessageRows:
    """Accepted messages that become one record: their sequences are consecutive, from `first_sequence` on."""

    __slots__ = ("accepted_us", "first_sequence", "rows")

    def __init__(self, rows: list[Row], first_sequence: int, accepted_us: int) -> None:
        self.rows = rows
        self.first_sequence = first_sequence
        self.accepted_us = accepted_us

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def last_sequence(self) -> int:
        """The sequence of the last row."""
        return self.first_sequence + len(self.rows) - 1

    @property
    def due_ms(self) -> list[int]:
        """The due time of each row."""
        return [row[0] for row in self.rows]


def to_batch(parts: Sequence[MessageRows]) -> MessageBatch:
    """The columns of some rows, in order; `parts` hold at least one row."""
    if len(parts) == 1:
        rows, first = parts[0].rows, parts[0].first_sequence
        sequence = np.arange(first, first + len(rows), dtype="<i8")
        accepted_us: Any = parts[0].accepted_us
    else:
        rows = []
        sequences: list[int] = []
        times: list[int] = []
        for part in parts:
            rows += part.rows
            count = len(part.rows)
            sequences += range(part.first_sequence, part.first_sequence + count)
            times += [part.accepted_us] * count
        sequence, accepted_us = np.array(sequences, "<i8"), integer_column(times, "<i8")
    due_ms, subject, expires_ms, ids, properties, bodies, tags, order_keys = map(list, zip(*rows, strict=True))
    columns: dict[str, Any] = {}
    if any(ids):
        ids_length = integer_column([len(value) for value in ids], "<u4")
        blob = b"".join(ids)
        columns |= {"ids_length": ids_length, "ids": blob, "id_hash": hash_ids(blob, ids_length)}
    if any(properties):
        columns["properties_length"] = integer_column([len(value) for value in properties], "<u4")
        columns["properties"] = b"".join(properties)
    if any(expires_ms):
        columns["expires_ms"] = integer_column(expires_ms, "<i8")
    if any(tags):
        columns["tag"] = integer_column(tags, "<u4")
    if any(order_keys):
        columns |= order_key_columns(b"".join(order_keys), integer_column([len(key) for key in order_keys], "<u4"))
    return MessageBatch.filled(
        len(rows),
        sequence=sequence,
        accepted_us=accepted_us,
        due_ms=integer_column(due_ms, "<i8"),
        subject=integer_column(subject, "<u4"),
        bodies_length=integer_column([len(value) for value in bodies], "<u4"),
        bodies=b"".join(bodies),
        **columns,
    )


def order_key_columns(order_keys: Buffer, lengths: U32) -> dict[str, Any]:
    """The columns of order keys that lie end to end, with lengths u32[n]."""
    return {
        "order_keys": order_keys,
        "order_keys_length": lengths,
        "order_hash": hash_ids(order_keys, lengths),
    }


def encode_rows(rows: MessageRows, synced_before: int, offset: int) -> EncodedRecord:
    """The record of rows, to stand at `offset`: byte for byte what `encode_record` makes of their columns."""
    count, first = len(rows.rows), rows.first_sequence
    for row in rows.rows:
        if row[6] or row[7]:
            return encode_record(to_batch([rows]), synced_before, offset)
    if count == 1:
        due_ms, subject, expires_ms, message_id, properties, body, _, _ = rows.rows[0]
        columns = _ONE_ROW_DIRECTORY + _ONE_ROW.pack(
            first, due_ms, rows.accepted_us, expires_ms, 0, 0, 0, 0,
            hash_id(message_id) if message_id else 0, subject, 0,
            0, len(message_id), len(properties), len(body),
        )  # fmt: skip
        blob = message_id + properties + body if message_id or properties else body
    else:
        columns, blob = _encode_columns(rows)
    header = encode_header(
        _SCHEMA, count, columns, len(blob), _checksum(blob) if blob else 0,
        synced_before, offset, first, first + count - 1,
    )  # fmt: skip
    blob_start = HEADER_BYTES + len(columns)
    data = b"".join((header, columns, blob, _PADDING[len(blob) % ALIGN]))
    return EncodedRecord([data], len(data), blob_start)


def _encode_columns(rows: MessageRows) -> tuple[bytes, bytes]:
    """The column block and the blob block."""
    due_ms, subject, expires_ms, ids, properties, bodies, _, _ = zip(*rows.rows, strict=True)
    # Nearly always rows are due, a subject and a body: what stands between those is zeros.
    plain = not any(ids) and not any(properties) and not any(expires_ms)
    ids_length = [] if plain else [len(value) for value in ids]
    directory = bytearray(_ONE_ROW_DIRECTORY)
    directory[0] = STEP
    parts: list[bytes | bytearray] = [directory, rows.first_sequence.to_bytes(ALIGN, "little")]
    _encode_column(parts, directory, 1, due_ms, "q")
    parts.append(rows.accepted_us.to_bytes(ALIGN, "little"))
    if plain:
        parts.append(_SIX_CONSTANT_ZEROS)
    else:
        _encode_column(parts, directory, 3, expires_ms, "q")
        parts.append(_FOUR_CONSTANT_ZEROS)  # origin_sequence, duplicate_of, replaces_sequence, replaces_due_ms
        _encode_column(parts, directory, 8, _hashes(ids, ids_length), "Q")
    _encode_column(parts, directory, 9, subject, "I")
    if plain:
        parts.append(_FOUR_CONSTANT_ZEROS)
    else:
        parts.append(_TWO_CONSTANT_ZEROS)  # target_group, redelivery
        _encode_column(parts, directory, 12, ids_length, "I")
        _encode_column(parts, directory, 13, [len(value) for value in properties], "I")
    _encode_column(parts, directory, 14, [len(value) for value in bodies], "I")
    return b"".join(parts), b"".join(bodies if plain else ids + properties + bodies)


def _hashes(ids: Sequence[bytes], ids_length: list[int]) -> list[int]:
    if not any(ids_length):
        return ids_length
    if len(ids) <= _HASH_ONE_BY_ONE_MAX:
        return [hash_id(value) for value in ids]
    hashes: list[int] = hash_ids(b"".join(ids), np.array(ids_length, "<u4")).tolist()
    return hashes


def _encode_column(
    parts: list[bytes | bytearray], directory: bytearray, field: int, values: Sequence[int], code: str
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
