"""Messages on their way back through the delay pipeline, after a nack or an ack timeout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.ranges import Range
from store.batches import I64, MessageBatch, StoredBatch


@dataclass(frozen=True, slots=True)
class RetryBatch:
    """Internal records for the server to append to its message_log, and the deliveries they stand for.

    `messages` has sequence 0 on every row: the server assigns it. It is None where nothing is to be retried. Once the
    records are durable the server calls `settle_retry`, if they could not be appended `abandon_retry`. `unknown` counts
    deliveries that were not leased.
    """

    subject: int
    group: int
    messages: MessageBatch | None
    main: tuple[Range, ...]
    retry: tuple[Range, ...]
    unknown: int = 0

    def __len__(self) -> int:
        return 0 if self.messages is None else len(self.messages)


def retry_messages(
    parts: Sequence[StoredBatch], times_before: Sequence[NDArray[np.int64]], group: int, due_ms: int, now_us: int
) -> MessageBatch:
    """The internal records for stored rows: same subject, id, properties, body and expiry; one redelivery more.

    Every id is written out, because a derived one would be derived from the retry's own sequence.
    """
    stored = StoredBatch.concatenate(parts)
    count = len(stored)
    ids_length, ids = _written_ids(stored)
    return MessageBatch.filled(
        count,
        due_ms=due_ms,
        accepted_us=now_us,
        expires_ms=stored.expires_ms,
        origin_sequence=_origins(stored),
        subject=stored.subject,
        target_group=group,
        redelivery=stored.redelivery + 1 + np.concatenate(times_before),
        ids_length=ids_length,
        properties_length=stored.properties_length,
        bodies_length=stored.bodies_length,
        ids=ids,
        properties=stored.properties,
        bodies=stored.bodies,
    )


def _origins(stored: StoredBatch) -> I64:
    origins: I64 = np.where(stored.origin_sequence != 0, stored.origin_sequence, stored.sequence)
    return origins


def _written_ids(stored: StoredBatch) -> tuple[NDArray[np.uint32], bytes | memoryview]:
    lengths = stored.ids_length
    if bool(lengths.all()):
        return lengths, stored.ids
    # Retries are the exception, so a loop over them is no hot path.
    ids: list[bytes | memoryview] = []
    position = 0
    for server_id, sequence, length in zip(
        stored.server_id.tolist(), _origins(stored).tolist(), lengths.tolist(), strict=True
    ):
        ids.append(stored.ids[position : position + length] if length else b"%012x-%012x" % (server_id, sequence))
        position += length
    return np.array([len(one) for one in ids], np.uint32), b"".join(ids)
