"""Named facts about the broker on a real directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from delayserver.broker.broker import Broker
from store.batches import StoredBatch
from store.filesystem import RealFileSystem

NOW_US = 1_900_000_000_000_000
SERVER, SUBJECT, GROUP = 7, 1, 9


def messages(first: int, count: int, *, subject: int = SUBJECT, window_ms: int = 60_000, group: int = 0) -> StoredBatch:
    """Rows with bodies `sequence` as text, padded to 8 bytes."""
    sequence = np.arange(first, first + count)
    return StoredBatch.filled(
        count,
        sequence=sequence,
        due_ms=5,
        server_id=SERVER,
        window_ms=window_ms,
        subject=subject,
        target_group=group,
        bodies_length=8,
        bodies=b"".join([b"%08d" % number for number in sequence.tolist()]),
    )


def open_broker(directory: Path) -> Broker:
    return Broker.open(RealFileSystem(), str(directory), SERVER, NOW_US)


def test_what_is_delivered_is_pulled_byte_identical_and_acked_once(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    delivered = broker.deliver(messages(1, 100), False, NOW_US)
    assert delivered.outcome.tolist() == [1] * 100
    assert delivered.arrived == [(SUBJECT, 0)]
    pulled = broker.pull(SUBJECT, GROUP, 60, 1 << 20, NOW_US)
    assert pulled is not None
    assert bytes(pulled.batch.bodies) == b"".join([b"%08d" % number for number in range(1, 61)])
    assert pulled.attempt.tolist() == [1] * 60
    assert broker.ack(SUBJECT, GROUP, pulled.delivery, NOW_US).acked == 60
    again = broker.ack(SUBJECT, GROUP, pulled.delivery, NOW_US)
    assert (again.acked, again.unknown) == (0, 60)
    broker.close()


def test_after_a_restart_acked_stays_acked_and_leased_comes_again_with_a_higher_attempt(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    broker.deliver(messages(1, 10), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 6, 1 << 20, NOW_US)
    assert pulled is not None
    broker.ack(SUBJECT, GROUP, pulled.delivery[:4], NOW_US)
    broker.sync()
    broker.abandon()
    broker = open_broker(tmp_path)
    pulled = broker.pull(SUBJECT, GROUP, 100, 1 << 20, NOW_US)
    assert pulled is not None
    assert pulled.batch.sequence.tolist() == [5, 6, 7, 8, 9, 10]
    assert pulled.attempt.tolist() == [2, 2, 1, 1, 1, 1]
    broker.close()
