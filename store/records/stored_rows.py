"""Published messages in row form: a few single messages between their publish and the first consumer that reads them.

Columns pay from a few dozen rows on. So small groups stay lists of plain values. They are written as the very record that
their columns would give, and become columns when a consumer reads them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import google_crc32c

from store.records.batches import FLAG_PUBLISHED, StoredBatch
from store.records.column_batch import CONSTANT, PLAIN, STEP, integer_column
from store.records.id_hash import hash_id
from store.records.message_rows import Row, order_key_columns
from store.records.record import ALIGN, HEADER_BYTES, EncodedRecord, encode_header

_SCHEMA = StoredBatch.schema
_FIELDS = len(_SCHEMA.fields)
_DIRECTORY_BYTES = (_FIELDS + ALIGN - 1) // ALIGN * ALIGN
_DIRECTORY = bytes([CONSTANT] * _FIELDS) + bytes(_DIRECTORY_BYTES - _FIELDS)
_ONE_ROW = struct.Struct("<9q10Q")
_PADDING = [bytes(-size % ALIGN) for size in range(ALIGN)]
_checksum = google_crc32c.value


class StoredRows:
    """Messages that this node stores for itself, as one record: rows of a subject side by side.

    `sequences` and `positions` have an entry for each row. All rows were accepted and stored at `accepted_us`.
    """

    __slots__ = ("accepted_us", "blob_bytes", "positions", "rows", "sequences", "server_id")

    def __init__(
        self,
        rows: list[Row],
        sequences: list[int],
        positions: list[int],
        accepted_us: int,
        server_id: int,
    ) -> None:
        self.rows = rows
        self.sequences = sequences
        self.positions = positions
        self.accepted_us = accepted_us
        self.server_id = server_id
        # The bytes of ids, properties, bodies and order keys.
        self.blob_bytes = sum([len(row[3]) + len(row[4]) + len(row[5]) + len(row[7]) for row in rows])

    def __len__(self) -> int:
        return len(self.rows)

    def place(self, positions: list[int]) -> None:
        """Give the rows their positions in the queue of their subject."""
        self.positions = positions

    def to_batch(self) -> StoredBatch:
        """The columns of the rows."""
        return stored_batch(self.rows, self.sequences, self.positions, self.accepted_us, self.server_id)

    def encode(self, synced_before: int, offset: int) -> EncodedRecord:
        """The record, to stand at `offset`: byte for byte what `encode_record` makes of the columns."""
        count = len(self.rows)
        if count == 1:
            _, subject, expires_ms, message_id, properties, body, tag, order_key = self.rows[0]
            columns = _DIRECTORY + _ONE_ROW.pack(
                self.sequences[0], self.positions[0], self.rows[0][0], self.accepted_us, self.accepted_us, expires_ms, 0,
                self.server_id, 0,
                subject, 0, 0, len(message_id), len(properties), len(body),
                hash_id(order_key) if order_key else 0, tag, FLAG_PUBLISHED, len(order_key),
            )  # fmt: skip
            blob = b"".join((message_id, properties, body, order_key))
        else:
            columns, blob = self._encode_columns()
        header = encode_header(
            _SCHEMA, count, columns, len(blob), _checksum(blob) if blob else 0,
            synced_before, offset, self.sequences[0], self.sequences[-1],
        )  # fmt: skip
        data = b"".join((header, columns, blob, _PADDING[len(blob) % ALIGN]))
        return EncodedRecord([data], len(data), HEADER_BYTES + len(columns))

    def _encode_columns(self) -> tuple[bytes, bytes]:
        """The column block and the blob block."""
        due_ms, subjects, expires_ms, ids, properties, bodies, tags, order_keys = zip(*self.rows, strict=True)
        stored = self.accepted_us.to_bytes(ALIGN, "little")
        directory = bytearray(_DIRECTORY)
        parts: list[bytes | bytearray] = [directory]
        _encode(parts, directory, 0, self.sequences, "q", may_step=True)
        _encode(parts, directory, 1, self.positions, "q", may_step=True)
        _encode(parts, directory, 2, due_ms, "q")
        parts += [stored, stored]
        _encode(parts, directory, 5, expires_ms, "q")
        parts.append(struct.pack("<3q", 0, self.server_id, 0))
        _encode(parts, directory, 9, subjects, "I")
        parts.append(bytes(2 * ALIGN))  # target_group, redelivery
        for field, values in ((12, ids), (13, properties), (14, bodies)):
            _encode(parts, directory, field, [len(value) for value in values], "I")
        _encode(parts, directory, 15, [hash_id(key) for key in order_keys], "Q")
        _encode(parts, directory, 16, tags, "I")
        parts.append(FLAG_PUBLISHED.to_bytes(ALIGN, "little"))
        _encode(parts, directory, 18, [len(key) for key in order_keys], "I")
        return b"".join(parts), b"".join(ids + properties + bodies + order_keys)


def stored_batch(
    rows: Sequence[Row], sequences: list[int], positions: list[int], accepted_us: int, server_id: int
) -> StoredBatch:
    """The columns of published rows; there must be one at least."""
    due_ms, subjects, expires_ms, ids, properties, bodies, tags, order_keys = map(list, zip(*rows, strict=True))
    columns: dict[str, Any] = {}
    if any(ids):
        columns |= {"ids": b"".join(ids), "ids_length": integer_column([len(value) for value in ids], "<u4")}
    if any(properties):
        lengths = integer_column([len(value) for value in properties], "<u4")
        columns |= {"properties": b"".join(properties), "properties_length": lengths}
    if any(expires_ms):
        columns["expires_ms"] = integer_column(expires_ms, "<i8")
    if any(tags):
        columns["tag"] = integer_column(tags, "<u4")
    if any(order_keys):
        columns |= order_key_columns(b"".join(order_keys), integer_column([len(key) for key in order_keys], "<u4"))
    return StoredBatch.filled(
        len(rows),
        sequence=integer_column(sequences, "<i8"),
        position=integer_column(positions, "<i8"),
        due_ms=integer_column(due_ms, "<i8"),
        accepted_us=accepted_us,
        dispatched_us=accepted_us,
        server_id=server_id,
        subject=integer_column(subjects, "<u4"),
        flags=FLAG_PUBLISHED,
        bodies_length=integer_column([len(value) for value in bodies], "<u4"),
        bodies=b"".join(bodies),
        **columns,
    )


def _encode(
    parts: list[bytes | bytearray],
    directory: bytearray,
    field: int,
    values: Sequence[int],
    code: str,
    *,
    may_step: bool = False,
) -> None:
    first, count = values[0], len(values)
    if values.count(first) == count:
        parts.append((first & 0xFFFF_FFFF_FFFF_FFFF).to_bytes(ALIGN, "little"))
        return
    if may_step and list(values) == list(range(first, first + count)):
        directory[field] = STEP
        parts.append(first.to_bytes(ALIGN, "little"))
        return
    directory[field] = PLAIN
    data = struct.pack(f"<{count}{code}", *values)
    parts.append(data)
    if len(data) % ALIGN:
        parts.append(_PADDING[len(data) % ALIGN])
