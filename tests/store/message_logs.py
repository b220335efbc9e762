"""A message_log on the fake disk, and what is put into it."""

from __future__ import annotations

from random import Random

from store.logs.message_log import MessageLog
from store.records.batches import MessageBatch
from tests.fakes.disk import PAGE, FakeDisk

DIRECTORY = "/d/message_log"
SEGMENT_BYTES = 2 * PAGE


def batch(sequence: int, body_bytes: int = 700) -> MessageBatch:
    return MessageBatch.filled(
        1, sequence=sequence, bodies_length=body_bytes, bodies=bytes([sequence % 251 + 1]) * body_bytes
    )


def opened(fs: FakeDisk, valid_to: int = 0, segment_bytes: int = SEGMENT_BYTES) -> MessageLog:
    return MessageLog.open(fs, DIRECTORY, 7, segment_bytes=segment_bytes, valid_to=valid_to)


def fill(log: MessageLog, count: int, first: int = 1, body_bytes: int = 700) -> list[int]:
    """Append and sync one by one; their start offsets."""
    starts = []
    for sequence in range(first, first + count):
        starts += [entry.start for entry in log.append([batch(sequence, body_bytes)])]
        log.sync()
    return starts


def sequences(log: MessageLog, offset: int = 0, bytes_max: int = 1 << 30) -> list[int]:
    found = []
    for entry in log.read(max(offset, log.first), log.synced, bytes_max):
        assert isinstance(entry.batch, MessageBatch)
        assert bytes(entry.batch.bodies) == bytes(batch(int(entry.batch.sequence[0]), len(entry.batch.bodies)).bodies)
        found.append(int(entry.batch.sequence[0]))
    return found


def lose_power(fs: FakeDisk, seed: int, done: int) -> None:
    """Afterwards the log has the messages 1 to `done`, which were acknowledged, and perhaps the one that was under way."""
    fs.crash(Random(seed))
    log = opened(fs)
    assert log.damages == []
    assert sequences(log) in (list(range(1, done + 1)), list(range(1, done + 2)))
