"""Converts rows of a DataFrame to columns of a send: subjects by index, bodies as one blob, ids given or derived."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

COLUMNS = ("subject", "body", "due_ms", "due", "message_id", "properties", "expires_ms")
# 128 bits: a collision within a campaign of ten million rows has a chance of 1 in 10^24.
_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class MessageRows:
    """n messages: subject names with an index u32[n], due_ms i64[n], bodies end to end with offsets i64[n + 1], n ids.
    `properties` and `expires_ms` are None if the rows have none."""

    subjects: list[str]
    subject_index: NDArray[np.uint32]
    due_ms: NDArray[np.int64]
    bodies: memoryview
    offsets: NDArray[np.int64]
    message_ids: list[str]
    properties: list[dict[str, str] | None] | None
    expires_ms: NDArray[np.int64] | None

    def __len__(self) -> int:
        return len(self.due_ms)

    def slice(self, start: int, stop: int) -> MessageRows:
        """The rows `start` to `stop`, without copying bodies."""
        offsets = self.offsets[start : stop + 1]
        return MessageRows(
            self.subjects,
            self.subject_index[start:stop],
            self.due_ms[start:stop],
            self.bodies,
            offsets,
            self.message_ids[start:stop],
            None if self.properties is None else self.properties[start:stop],
            None if self.expires_ms is None else self.expires_ms[start:stop],
        )

    def take(self, wanted: NDArray[np.bool_]) -> MessageRows:
        """The rows where `wanted` is True."""
        rows = np.flatnonzero(wanted).tolist()
        bodies = [self.bodies[self.offsets[row] : self.offsets[row + 1]] for row in rows]
        lengths = np.array([len(body) for body in bodies], np.int64)
        return MessageRows(
            self.subjects,
            self.subject_index[rows],
            self.due_ms[rows],
            memoryview(b"".join(bodies)),
            np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
            [self.message_ids[row] for row in rows],
            None if self.properties is None else [self.properties[row] for row in rows],
            None if self.expires_ms is None else self.expires_ms[rows],
        )

    def places(self, count: int) -> NDArray[np.int64]:
        """The server of each row, of `count` servers, i64[n]. It depends only on the id, so it is always the same."""
        return np.array([zlib.crc32(text.encode()) % count for text in self.message_ids], np.int64)

    def blob(self) -> bytes:
        """The bodies of these rows, end to end."""
        return bytes(self.bodies[int(self.offsets[0]) : int(self.offsets[-1])])


def rows_of(batch: pa.RecordBatch, subject: str | None, campaign: str) -> MessageRows:
    """The rows of an Arrow batch. Raises ValueError for a missing subject or due time, or a time without a zone."""
    columns = {name: batch.column(name) for name in batch.schema.names}
    subjects, subject_index = _subjects(columns.get("subject"), subject, batch.num_rows)
    due_ms = _due_ms(columns)
    bodies, offsets = _bodies(columns.get("body"), batch.num_rows)
    properties = columns["properties"].to_pylist(maps_as_pydicts="strict") if "properties" in columns else None
    expires = columns.get("expires_ms")
    rows = MessageRows(
        subjects,
        subject_index,
        due_ms,
        bodies,
        offsets,
        [],
        properties,
        None if expires is None else np.asarray(expires.fill_null(0).cast(pa.int64())),
    )
    given = columns["message_id"].to_pylist() if "message_id" in columns else [None] * batch.num_rows
    rows.message_ids.extend(_ids(rows, given, campaign))
    return rows


def _subjects(column: pa.Array | None, subject: str | None, count: int) -> tuple[list[str], NDArray[np.uint32]]:
    if column is None:
        return [str(subject)], np.zeros(count, np.uint32)
    if column.null_count and subject is None:
        raise ValueError("a row has no subject: fill it, or give the option subject")
    encoded = column.fill_null(str(subject)).dictionary_encode() if column.null_count else column.dictionary_encode()
    return encoded.dictionary.to_pylist(), np.asarray(encoded.indices).astype(np.uint32)


def _due_ms(columns: dict[str, Any]) -> NDArray[np.int64]:
    column = columns["due_ms"] if "due_ms" in columns else columns["due"]
    if column.null_count:
        raise ValueError("a row has no due time")
    if not pa.types.is_timestamp(column.type):
        return np.asarray(column.cast(pa.int64()))
    if column.type.tz is None:
        raise ValueError("column due is a timestamp without a zone, which could be any hour: cast it to timestamp")
    # Rounded up: a message is never early.
    micros = np.asarray(pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64()))
    return -(-micros // 1000)


def _bodies(column: pa.Array | None, count: int) -> tuple[memoryview, NDArray[np.int64]]:
    if column is None:
        return memoryview(b""), np.zeros(count + 1, np.int64)
    if column.null_count:
        column = column.fill_null(
            b"" if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type) else ""
        )
    plain = column.cast(pa.large_binary())
    _, ends, data = plain.buffers()
    offsets = np.frombuffer(ends, np.int64, count + 1, plain.offset * 8) if count else np.zeros(1, np.int64)
    return memoryview(data) if data is not None else memoryview(b""), offsets


def _ids(rows: MessageRows, given: Sequence[str | None], campaign: str) -> list[str]:
    if all(given):
        return [str(text) for text in given]
    salt = campaign.encode()
    heads = [blake2b(salt + b"\0" + name.encode() + b"\0", digest_size=_ID_BYTES) for name in rows.subjects]
    due, index, offsets = rows.due_ms.astype("<i8").tobytes(), rows.subject_index.tolist(), rows.offsets.tolist()
    bodies, properties = rows.bodies, rows.properties
    digests = []
    # The only step per row: a digest of 128 bits, the same only for equal rows.
    for row, (head, start, stop) in enumerate(zip(index, offsets, offsets[1:], strict=False)):
        digest = heads[head].copy()
        digest.update(due[8 * row : 8 * row + 8])
        if properties is not None and properties[row]:
            digest.update(repr(sorted(properties[row].items())).encode())  # type: ignore[union-attr]
        digest.update(bodies[start:stop])
        digests.append(digest.digest())
    digits = b"".join(digests).hex()
    made = [digits[start : start + 2 * _ID_BYTES] for start in range(0, len(digits), 2 * _ID_BYTES)]
    return [text or derived for text, derived in zip(given, made, strict=True)] if any(given) else made
