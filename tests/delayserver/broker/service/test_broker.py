"""Named facts about the broker on a real directory."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from store.disk.filesystem import RealFileSystem
from store.records.batches import StoredBatch
from tests.delayserver.broker.brokers import DirectBroker

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


def open_broker(directory: Path) -> DirectBroker:
    return DirectBroker.open(RealFileSystem(), str(directory), SERVER, NOW_US)


def test_a_delivered_message_is_pulled_byte_identical_and_acked_once(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    delivered = broker.deliver(messages(1, 100), False, NOW_US)
    assert delivered.outcome.tolist() == [1] * 100
    assert delivered.arrived == [(SUBJECT, 0)]
    pulled = broker.pull(SUBJECT, GROUP, 60, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    assert bytes(pulled.batch.bodies) == b"".join([b"%08d" % number for number in range(1, 61)])
    assert pulled.attempt.tolist() == [1] * 60
    assert broker.consuming.ack((SUBJECT, GROUP), pulled.delivery).acked == 60
    again = broker.consuming.ack((SUBJECT, GROUP), pulled.delivery)
    assert (again.acked, again.unknown) == (0, 60)
    broker.close()


def test_after_a_restart_acked_stays_acked_and_leased_comes_again_with_a_higher_attempt(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    broker.deliver(messages(1, 10), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 6, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    broker.consuming.ack((SUBJECT, GROUP), pulled.delivery[:4])
    broker.durability.sync()
    broker.abandon()
    broker = open_broker(tmp_path)
    pulled = broker.pull(SUBJECT, GROUP, 100, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    assert pulled.batch.sequence.tolist() == [5, 6, 7, 8, 9, 10]
    assert pulled.attempt.tolist() == [2, 2, 1, 1, 1, 1]
    broker.close()


def test_a_late_group_gets_earlier_messages(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    broker.deliver(messages(1, 5), False, NOW_US)
    first = broker.pull(SUBJECT, GROUP, 10, 1 << 20, NOW_US, NOW_US)
    assert first is not None
    broker.consuming.ack((SUBJECT, GROUP), first.delivery)
    late = broker.pull(SUBJECT, GROUP + 1, 10, 1 << 20, NOW_US, NOW_US)
    assert late is not None
    assert late.batch.sequence.tolist() == first.batch.sequence.tolist()
    broker.close()


def test_rows_of_many_subjects_go_to_their_queues_and_keep_their_order(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    subjects = np.array([3, 1, 2, 1, 3, 1], np.uint32)
    delivered = broker.deliver(messages(1, 6).with_columns(subject=subjects), False, NOW_US)
    assert sorted(delivered.arrived) == [(1, 0), (2, 0), (3, 0)]
    found = {subject: broker.pull(subject, GROUP, 10, 1 << 20, NOW_US, NOW_US) for subject in (1, 2, 3)}
    assert {subject: pulled and bytes(pulled.batch.bodies).split() for subject, pulled in found.items()} == {
        1: [b"000000020000000400000006"],
        2: [b"00000003"],
        3: [b"0000000100000005"],
    }
    broker.close()


def test_a_pull_ends_at_its_bytes_but_the_first_message_always_fits(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    lengths = np.array([100, 10, 10, 500], np.uint32)
    batch = StoredBatch.filled(4, subject=SUBJECT, bodies_length=lengths, bodies=bytes(620))
    broker.deliver(batch, False, NOW_US)
    counts = []
    while (pulled := broker.pull(SUBJECT, GROUP, 10, 250, NOW_US, NOW_US)) is not None:
        counts.append(len(pulled))
    assert counts == [2, 1, 1]
    broker.close()


def test_a_nack_becomes_an_internal_record_for_its_group_only(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    broker.deliver(messages(1, 3), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 10, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    retry = broker.nack(SUBJECT, GROUP, pulled.delivery[1:2], 1500, NOW_US + 1, NOW_US + 1)
    assert retry.messages is not None
    assert retry.messages.due_ms.tolist() == [NOW_US // 1000 + 1501]  # rounded up: never early
    assert retry.messages.origin_sequence.tolist() == [2]
    assert retry.messages.target_group.tolist() == [GROUP]
    assert retry.messages.redelivery.tolist() == [0], "nothing has failed"
    assert bytes(retry.messages.ids) == b"000000000007-000000000002"
    assert bytes(retry.messages.bodies) == b"00000002"
    assert broker.consuming.ack((SUBJECT, GROUP), pulled.delivery).unknown == 1
    broker.retries.settle(retry)
    again = messages(50, 1, group=GROUP).with_columns(redelivery=1, origin_sequence=2)
    assert broker.deliver(again, False, NOW_US).arrived == [(SUBJECT, GROUP)]
    pulled = broker.pull(SUBJECT, GROUP, 10, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    assert pulled.attempt.tolist() == [2]
    other = broker.pull(SUBJECT, GROUP + 1, 10, 1 << 20, NOW_US, NOW_US)
    assert other is not None
    assert other.batch.sequence.tolist() == [1, 2, 3]
    broker.close()


def test_an_ack_timeout_gives_the_message_to_the_retry_pipeline_at_its_deadline(tmp_path: Path) -> None:
    broker = open_broker(tmp_path)
    broker.deliver(messages(1, 4), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 4, 1 << 20, NOW_US, NOW_US, 2000)
    assert pulled is not None
    broker.consuming.ack((SUBJECT, GROUP), pulled.delivery[:1])
    deadline = broker.retries.next_deadline_us()
    assert deadline == NOW_US + 2_000_000
    assert broker.expired_leases(deadline, deadline - 1, 100) == []
    first = broker.expired_leases(deadline, deadline, 2)
    second = broker.expired_leases(deadline, deadline, 2)
    origins = [batch.messages.origin_sequence.tolist() for batch in (*first, *second) if batch.messages]
    assert origins in ([[2], [3, 4]], [[2, 3], [4]])
    assert broker.retries.next_deadline_us() is None
    broker.close()
