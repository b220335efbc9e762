"""Reads the rows of a piece of a shard's log, as `PartReader` reads those of a file. Without Spark and Arrow."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Final

import numpy as np

from delayserver.state.decisions.outcome_rows import cancelled_outcomes, cancels_of_replacements
from ops.audit.capture import BROKER_LOG, DISPATCH_LOG, MESSAGE_LOG, Captured, Part
from ops.audit.part_reader import Chunk, chunk_of
from ops.audit.topic_survey import Name, Survey, judged
from ops.audit.topics import TopicShard
from store.disk.filesystem import FileSystem
from store.records.batches import (
    KIND_CANCELS,
    KIND_MESSAGES,
    KIND_OUTCOMES,
    KIND_STORED,
    CancelBatch,
    MessageBatch,
    OutcomeBatch,
)
from store.records.column_batch import ColumnBatch
from store.records.fast_reader import CHUNK_BLOB_BYTES_MAX, CHUNK_RECORDS_MAX, CHUNK_ROWS_MAX
from store.records.record import BATCHES
from store.records.records import Records, RecordsBuilder
from store.shared.envelope import EnvelopeKind
from store.shared.followed import FollowedTo
from store.shared.payload import decode_records
from store.tables.names import Names

KINDS: Final = {
    # Each member derives the outcomes of cancels, reschedules and transactions.
    DISPATCH_LOG: (KIND_OUTCOMES, KIND_CANCELS, KIND_MESSAGES),
    MESSAGE_LOG: (KIND_MESSAGES, KIND_CANCELS),
    BROKER_LOG: (KIND_STORED,),
}
"""The kinds of records that are read for the rows of a log."""
_REPLACING: Final = (
    "sequence", "due_ms", "accepted_us", "replaces_sequence", "replaces_due_ms", "subject", "origin_sequence",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class TopicPart(Part):
    """A piece of a shard's log, from `place` on: positions `start` to `stop`. `bytes_read`: about so many are in it."""

    shard: TopicShard
    place: FollowedTo
    table: tuple[Name, ...]
    first_sequence: int
    bytes_read: int

    @property
    def size_bytes(self) -> int:
        """Bytes to read."""
        return self.bytes_read

    def is_gone(self, fs: FileSystem) -> bool:
        """No: a log that was trimmed fails the read."""
        return False

    def names(self) -> Names:
        """The names that the log has."""
        return _named(self.table)


@lru_cache(maxsize=256)
def _named(table: tuple[Name, ...]) -> Names:
    return Names.listed(table)


def require_log(log: str) -> None:
    """Raises ValueError for a log that the topic of a cluster does not have."""
    if log not in KINDS:
        raise ValueError(f"the topic of a cluster has no {log}: it has {', '.join(KINDS)}")


def topic_parts(found: Survey, log: str) -> list[TopicPart]:
    """The pieces of a shard's log, for the rows of a log of a server. Raises ValueError for one that it does not have."""
    require_log(log)
    shard, parts = found.shard, []
    for (place, after), size in zip(pairwise(found.places), found.sizes, strict=True):
        parts.append(
            TopicPart(
                "", shard.path, shard.server_id, place.position, after.position, after.position, 0, 0, log, shard, place,
                found.names, found.first_sequence, size,
            )
        )  # fmt: skip
    return [part for part in parts if part.start < part.stop]


def topic_capture(surveys: Sequence[Survey], log: str) -> Captured:
    """The logs of shards as one."""
    return Captured(log, tuple([part for found in surveys for part in topic_parts(found, log)]))


class TopicReader:
    """Iterates over the chunks of a piece. The offset of a row is the position of its record in the log."""

    def __init__(
        self, part: TopicPart, names: Callable[[type[ColumnBatch]], Sequence[str]], blobs: Sequence[str] = ()
    ) -> None:
        self._part = part
        self._names = names
        self._blobs = tuple(blobs)

    def __iter__(self) -> Iterator[Chunk]:
        """Yields the chunks. Raises the errors of the log, and UpgradeNeededError."""
        part, builder, size = self._part, RecordsBuilder(), 0
        kinds = KINDS[part.log]
        for place, found in judged(part.shard, part.place, part.shard.records(part.start, part.stop)):
            if found.envelope.kind is not EnvelopeKind.RECORDS:
                continue
            position = place.position - 1
            for image in decode_records(found.payload, position):
                if image.header.kind in kinds:
                    block = image.body if self._blobs else image.columns
                    builder.add(replace(image.header, offset=position), bytes(block))
                    size += len(block)
            if builder.rows >= CHUNK_ROWS_MAX or builder.records >= CHUNK_RECORDS_MAX or size >= CHUNK_BLOB_BYTES_MAX:
                yield from self._chunks(builder.take(), place.position)
                size = 0
        if builder.records:
            yield from self._chunks(builder.take(), part.stop)

    def _chunks(self, records: Records, end: int) -> Iterator[Chunk]:
        for kind in np.unique(records.kinds).tolist():
            mine = records.of_kind(kind)
            if self._part.log == DISPATCH_LOG and kind == KIND_CANCELS:
                yield from self._cancelled(mine, end)
            elif self._part.log == DISPATCH_LOG and kind == KIND_MESSAGES:
                yield from self._replaced(mine, end)
            else:
                batch_type = BATCHES[kind]
                yield chunk_of(mine, batch_type, self._names(batch_type), self._blobs, self._part.path, end)

    def _cancelled(self, records: Records, end: int) -> Iterator[Chunk]:
        columns = records.columns(CancelBatch, [name for name, _ in CancelBatch.schema.fields])
        yield _ended(CancelBatch(**columns), records.row_offsets(), end)

    def _replaced(self, records: Records, end: int) -> Iterator[Chunk]:
        columns = records.columns_alone(MessageBatch, _REPLACING)
        rows = columns["replaces_sequence"] != 0
        if rows.any():
            batch = MessageBatch.filled(int(rows.sum()), **{name: columns[name][rows] for name in _REPLACING})
            yield _ended(cancels_of_replacements(batch), records.row_offsets()[rows], end)


def _ended(cancels: CancelBatch, offsets: np.ndarray[tuple[int], np.dtype[np.int64]], end: int) -> Chunk:
    """The outcomes of cancels, as a member writes them to its dispatch_log."""
    outcomes = cancelled_outcomes(cancels, 0)
    columns = {name: getattr(outcomes, name) for name, _ in OutcomeBatch.schema.fields}
    return Chunk(OutcomeBatch, columns | {"settled_us": cancels.requested_us}, {}, offsets, end)
