"""Batches with random content, for tests: the same seed gives the same bytes."""

from __future__ import annotations

import numpy as np

from store.records.batches import MessageBatch, OutcomeBatch
from store.records.id_hash import hash_ids


def messages(first_sequence: int, count: int, *, due_ms: int = 0, span_ms: int = 60_000, seed: int = 0) -> MessageBatch:
    """`count` messages with ragged ids (some empty), properties and bodies, due within `span_ms` of `due_ms`."""
    random = np.random.default_rng([seed, first_sequence, count])
    lengths = [random.integers(0, most, count).astype(np.uint32) for most in (9, 5, 40)]
    blobs = [random.integers(0, 256, int(length.sum()), dtype=np.uint8).tobytes() for length in lengths]
    return MessageBatch.filled(
        count,
        sequence=first_sequence + np.arange(count),
        due_ms=due_ms + random.integers(0, span_ms, count),
        accepted_us=random.integers(1, 1 << 50, count),
        origin_sequence=np.where(random.random(count) < 0.2, random.integers(1, 1 << 20, count), 0),
        duplicate_of=np.where(random.random(count) < 0.2, random.integers(1, 1 << 20, count), 0),
        subject=random.integers(1, 5, count).astype(np.uint32),
        id_hash=hash_ids(blobs[0], lengths[0]),
        ids_length=lengths[0],
        properties_length=lengths[1],
        bodies_length=lengths[2],
        ids=blobs[0],
        properties=blobs[1],
        bodies=blobs[2],
    )


def outcomes(sequences: list[int], *, due_ms: int = 0, seed: int = 0) -> OutcomeBatch:
    """Outcomes 4 to 8 of these messages, some of them of internal records."""
    count = len(sequences)
    random = np.random.default_rng([seed, *sequences])
    outcome = random.integers(4, 9, count).astype(np.uint8)
    internal = (random.random(count) < 0.3) & (outcome != 7)
    return OutcomeBatch.filled(
        count,
        sequence=np.array(sequences, np.int64),
        due_ms=due_ms,
        outcome=outcome,
        subject=random.integers(1, 5, count).astype(np.uint32),
        redelivery=internal.astype(np.uint32),
        origin_sequence=np.where(internal | (outcome == 7), 1, 0),
    )
