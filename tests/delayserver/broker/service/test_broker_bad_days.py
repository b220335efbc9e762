"""The broker on a disk that is full, fails, forgets or lies, and what retention may take."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import numpy as np
import pytest

from delayserver.broker.broker_limits import DAY_MS, BrokerLimits
from delayserver.broker.queues.group_cursors import Cursor
from delayserver.broker.queues.ranges import Range
from store.errors import CorruptionError, DiskFullError, SyncFailedError, UnreadableError
from store.failed_reads import READ_TRIES
from tests.delayserver.broker.brokers import (
    GROUP,
    HOUR_US,
    NOW_US,
    SERVER,
    SUBJECT,
    drain,
    messages,
    open_broker,
)
from tests.fakes.disk import FakeDisk, SimulatedCrash


def test_after_a_crash_a_repeated_hand_off_stores_exactly_the_lost_messages() -> None:
    for seed in range(20):
        disk = FakeDisk()
        broker = open_broker(disk)
        broker.deliver(messages(1, 10), False, NOW_US)
        broker.durability.sync()
        broker.deliver(messages(11, 10), False, NOW_US)
        broker.deliver(messages(21, 10), False, NOW_US)
        disk.crash(Random(seed))
        broker = open_broker(disk)
        for first in (1, 11, 21):
            delivered = broker.deliver(messages(first, 10), True, NOW_US)
            assert set(delivered.outcome.tolist()) <= ({2} if first == 1 else {1, 2})
        assert sorted(drain(broker)) == list(range(1, 31))


def test_a_repeated_hand_off_stores_damaged_messages_again_and_knows_the_others(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for first in (1, 11, 21):
        broker.deliver(messages(first, 10), False, NOW_US)
    broker.durability.sync()
    broker = open_broker(disk)
    path = disk.files("/data/broker/store")[0]
    disk.flip_bit(path, 200)  # in the columns of the first record
    outcomes = [broker.deliver(messages(first, 10), True, NOW_US).outcome.tolist() for first in (1, 11, 21)]
    assert outcomes == [[1] * 10, [2] * 10, [2] * 10]
    assert any(path in text for text in broker.state.damages.texts)
    assert sorted(set(drain(broker))) == list(range(1, 31))


def test_a_repeat_that_is_partly_new_stores_only_the_new_rows() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 10), False, NOW_US)
    assert broker.deliver(messages(6, 10), True, NOW_US).outcome.tolist() == [2] * 5 + [1] * 5
    assert drain(broker) == list(range(1, 16))


def test_another_redelivery_of_the_same_sequence_is_another_message() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 2), False, NOW_US)
    again = messages(1, 2).with_columns(redelivery=1)
    assert broker.deliver(again, True, NOW_US).outcome.tolist() == [1, 1]


def test_the_keys_of_a_complete_window_are_forgotten() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 2), False, NOW_US)
    assert broker.status()["open_windows"] == 1
    broker.arrivals.window_complete(SERVER, [60_000])
    assert broker.status()["open_windows"] == 0


def test_persisted_progress_never_passes_the_synced_store(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(messages(1, 10), False, NOW_US)
    assert drain(broker) == list(range(1, 11))
    before = disk.content("/data/broker/progress.log")
    disk.fail_next_sync("broker/store/")
    with pytest.raises(SyncFailedError):
        broker.durability.sync()
    assert disk.content("/data/broker/progress.log") == before


def test_an_ack_of_a_position_that_a_crash_gave_to_another_message_is_unknown() -> None:
    for seed in range(30):
        disk = FakeDisk()
        broker = open_broker(disk)
        broker.deliver(messages(1, 1), False, NOW_US)
        pulled = broker.pull(SUBJECT, GROUP, 1, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        disk.crash(Random(seed))
        broker = open_broker(disk)
        if broker.deliver(messages(100, 1), False, NOW_US).end and drain(broker, GROUP + 1) == [100]:
            broker.pull(SUBJECT, GROUP, 1, 1 << 20, NOW_US, NOW_US)
            assert broker.consuming.ack((SUBJECT, GROUP), pulled.delivery).unknown == 1
            return
    raise AssertionError("no crash lost the message")


def test_a_full_disk_refuses_deliveries_and_service_resumes_when_space_returns() -> None:
    disk = FakeDisk(capacity_bytes=64 << 10)
    broker = open_broker(disk)
    stored, first = [], 1
    while True:
        outcome = broker.deliver(messages(first, 20), False, NOW_US).outcome.tolist()
        if outcome != [1] * 20:
            break
        stored += list(range(first, first + 20))
        first += 20
    fitting = outcome.count(1)
    assert outcome == [1] * fitting + [3] * (20 - fitting) and fitting < 20
    stored += list(range(first, first + fitting))
    assert len(stored) >= 100
    assert drain(broker) == stored
    disk.capacity_bytes = None
    broker.durability.sync()
    assert broker.deliver(messages(first, 20), True, NOW_US).outcome.tolist() == [2] * fitting + [1] * (20 - fitting)
    assert drain(broker) == list(range(first + fitting, first + 20))
    broker.check_invariants()


def test_retention_removes_consumed_and_old_segments_and_keeps_those_that_a_group_needs(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for batch in range(40):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.arrivals.window_complete(SERVER, [60_000])
    slow = broker.pull(SUBJECT, GROUP + 1, 10, 1 << 20, NOW_US, NOW_US)
    assert slow is not None
    drain(broker)
    before = len(disk.files("/data/broker/store/"))
    later = NOW_US + 2 * HOUR_US
    assert broker.retention.retire(later) == []  # the slow group has acked nothing
    broker.consuming.ack((SUBJECT, GROUP + 1), slow.delivery)
    assert drain(broker, GROUP + 1) == list(range(11, 401))
    assert broker.retention.retire(NOW_US + 1000) == []  # too young
    removed = broker.retention.retire(later)
    assert len(removed) == before - 1
    broker.check_invariants()
    broker.close()
    disk.kill()
    broker = open_broker(disk)
    assert drain(broker) == []
    broker.deliver(messages(1000, 5), False, NOW_US)
    assert drain(broker) == list(range(1000, 1005))


def test_a_crash_after_segments_were_given_back_does_not_take_them_for_lost(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for batch in range(40):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.arrivals.window_complete(SERVER, [60_000])
    drain(broker)
    broker.durability.sync()
    assert broker.retention.needs_checkpoint(NOW_US + 2 * HOUR_US)
    assert broker.retention.retire(NOW_US + 2 * HOUR_US) != []
    disk.kill()
    broker = open_broker(disk)
    assert broker.state.damages.texts == []
    assert drain(broker) == []


def test_a_subject_without_group_keeps_its_messages_for_a_week_and_no_longer() -> None:
    broker = open_broker(FakeDisk())
    for batch in range(40):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.arrivals.window_complete(SERVER, [60_000])
    assert broker.retention.retire(NOW_US + 6 * DAY_MS * 1000) == []
    assert broker.retention.retire(NOW_US + 8 * DAY_MS * 1000) != []
    left = drain(broker)
    assert left == list(range(left[0], 401))
    assert 1 < left[0] < 401


def test_a_window_that_is_not_complete_keeps_its_keys_although_all_is_consumed() -> None:
    broker = open_broker(FakeDisk())
    for batch in range(40):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    drain(broker)
    assert broker.retention.retire(NOW_US + 2 * HOUR_US) == []
    assert broker.deliver(messages(1, 10), True, NOW_US).outcome.tolist() == [2] * 10


def test_a_damaged_record_is_reported_and_the_records_behind_it_are_served(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for batch in range(20):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.close()
    disk.kill()
    path = disk.files("/data/broker/store/")[1]
    disk.flip_bit(path, 1000)
    broker = open_broker(disk)
    found = drain(broker)
    lost = set(range(1, 201)) - set(found)
    assert len(lost) == 10
    assert broker.status()["damaged_messages"] == 10
    assert any(path in damage for damage in broker.state.damages.texts)


def test_a_damaged_block_of_index_rows_is_made_again_from_the_store(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for batch in range(20):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.close()
    disk.kill()
    path = disk.files("/data/broker/queue/")[0]
    disk.flip_bit(path, 200)
    broker = open_broker(disk)
    assert drain(broker) == list(range(1, 201))
    assert any(path in damage for damage in broker.state.damages.texts)


@pytest.mark.parametrize("damage", ["lost", "garbage"])
def test_without_its_checkpoint_the_broker_rebuilds_its_queues_from_the_store(damage: str, disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for batch in range(20):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    rest = 55
    while rest:  # a pull ends where the next message has to be read
        pulled = broker.pull(SUBJECT, GROUP, rest, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        broker.consuming.ack((SUBJECT, GROUP), pulled.delivery)
        rest -= len(pulled)
    broker.close()
    disk.kill()
    if damage == "lost":
        disk.remove("/data/broker/checkpoint")
    else:
        disk.flip_bit("/data/broker/checkpoint", 60)
    broker = open_broker(disk)
    assert drain(broker) == list(range(56, 201))


def test_a_snapshot_that_replaces_the_progress_log_keeps_all_acks(disk: FakeDisk) -> None:
    broker = open_broker(disk, BrokerLimits(progress_bytes_max=2000))
    broker.deliver(messages(1, 400), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 400, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    longest = 0
    for row in range(0, 400, 2):
        broker.consuming.ack(
            (SUBJECT, GROUP), pulled.delivery[row : row + 1] if row % 4 else pulled.delivery[row : row + 2]
        )
        broker.durability.sync()
        longest = max(longest, len(disk.content("/data/broker/progress.log")))
    assert longest < 20_000  # two hundred appended records would be 40,000 bytes
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert drain(broker) == [1 + row + 1 for row in range(2, 400, 4)]


def test_a_batch_larger_than_the_free_disk_is_stored_as_far_as_it_fits(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(messages(1, 1), False, NOW_US)
    disk.capacity_bytes = disk.used_bytes + 3 * 4096
    batch = messages(10, 400).with_columns(subject=np.where(np.arange(400) % 2, SUBJECT, SUBJECT + 1))
    stored = 0
    for _ in range(3):  # the rows it refuses come again, and a further try does not lose what there is room for
        delivered = broker.deliver(batch, False, NOW_US)
        stored += int((delivered.outcome == 1).sum())
        batch = batch.take(np.flatnonzero(delivered.outcome == 3))
        broker.check_invariants()
    assert 20 < stored < 400
    broker.durability.sync()
    disk.capacity_bytes = None
    assert set(broker.deliver(batch, False, NOW_US).outcome.tolist()) == {1}
    odd = drain(broker)
    assert sorted(odd) == [1, *range(11, 410, 2)]
    broker = open_broker(disk)
    assert broker.status()["delivered"] == 0 and not broker.state.damages.texts


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("lost", ["store", "progress.log"])
def test_the_loss_of_a_file_is_reported_with_its_name_its_effect_and_what_to_do(lost: str, checkpoint: bool) -> None:
    disk = FakeDisk()
    broker = open_broker(disk)
    broker.deliver(messages(1, 20), False, NOW_US)
    pulled = broker.pull(SUBJECT, GROUP, 5, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    broker.consuming.ack((SUBJECT, GROUP), pulled.delivery)
    broker.close()
    disk.kill()
    for path in disk.files(f"/data/broker/{lost}"):
        disk.remove(path)
    if not checkpoint:
        disk.remove("/data/broker/checkpoint")
    for _ in range(2):
        with pytest.raises(CorruptionError, match=f"/data/broker/{lost}.*missing"):
            open_broker(disk)
        disk.kill()
    if lost == "store":
        for path in disk.files("/data/broker"):
            disk.remove(path)
        assert drain(open_broker(disk)) == []
    else:
        disk.open("/data/broker/progress.log", create=True)
        assert drain(open_broker(disk)) == list(range(1, 21))


@pytest.mark.parametrize("seed", range(10))
def test_a_crash_while_the_files_are_made_is_not_taken_for_their_loss(seed: int) -> None:
    for operations in range(1, 40):
        disk = FakeDisk()
        disk.crash_after(operations)
        with suppress(SimulatedCrash):
            open_broker(disk)
        disk.crash(Random(seed))
        broker = open_broker(disk)
        broker.deliver(messages(1, 3), False, NOW_US)
        assert drain(broker) == [1, 2, 3] and not broker.state.damages.texts


@pytest.mark.parametrize("readable_again", [True, False])
def test_messages_that_the_disk_cannot_read_are_asked_for_again_before_they_are_passed_over(
    readable_again: bool, disk: FakeDisk
) -> None:
    broker = open_broker(disk)
    for first in (1, 11):
        broker.deliver(messages(first, 10), False, NOW_US)
    broker.durability.sync()
    broker.close()
    broker = open_broker(disk)
    (path,) = disk.files("/data/broker/store")
    disk.unreadable[path] = [(512, 520)]
    for _ in range(READ_TRIES - 1):
        with pytest.raises(UnreadableError):
            broker.pull(SUBJECT, GROUP, 20, 1 << 20, NOW_US, NOW_US)
        assert broker.status()["damaged_messages"] == 0
    if readable_again:
        disk.unreadable.clear()
    assert drain(broker) == list(range(1 if readable_again else 11, 21))
    assert broker.status()["damaged_messages"] == (0 if readable_again else 10)


def test_acks_on_a_full_disk_take_bounded_memory_and_are_durable_when_it_has_room() -> None:
    disk = FakeDisk(capacity_bytes=64 << 20)
    broker = open_broker(disk, BrokerLimits(segment_bytes=1 << 20, progress_bytes_max=4096))
    broker.deliver(messages(1, 4000), False, NOW_US)
    broker.durability.sync()
    pulled = broker.pull(SUBJECT, GROUP, 4000, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    disk.capacity_bytes = disk.used_bytes
    written: list[int] = []
    for number in range(500):  # in order: their state is one range
        broker.consuming.ack((SUBJECT, GROUP), pulled.delivery[2 * number : 2 * number + 2])
        plan = broker.durability.sync_plan()
        written.append(len(plan.progress.rows))
        try:
            plan.run()
        except DiskFullError:
            broker.durability.abort_sync(plan)
        else:  # what the log had allocated
            broker.durability.finish_sync()
    with pytest.raises(DiskFullError):
        broker.durability.sync()
    assert broker.durability.needs_sync(), "a caller that asks again must not hear that the acks are durable"
    assert max(written) <= 2 * 4096 // 56
    disk.capacity_bytes = None
    broker.durability.sync()
    disk.kill()
    again = open_broker(disk, BrokerLimits(segment_bytes=1 << 20, progress_bytes_max=4096))
    assert sorted(drain(again)) == list(range(1001, 4001))


def test_a_snapshot_that_found_no_room_is_not_made_anew_at_each_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    disk = FakeDisk(capacity_bytes=64 << 20)
    broker = open_broker(disk, BrokerLimits(segment_bytes=1 << 20, progress_bytes_max=100))
    broker.deliver(messages(1, 400), False, NOW_US)
    broker.durability.sync()
    seen = 0
    acked_to_log = Cursor.acked_to_log

    def counted(cursor: Cursor) -> list[Range]:
        nonlocal seen
        seen += 1
        return acked_to_log(cursor)

    monkeypatch.setattr(Cursor, "acked_to_log", counted)
    groups = range(GROUP, GROUP + 100)
    pulled = [broker.pull(SUBJECT, group, 400, 1 << 20, NOW_US, NOW_US) for group in groups]
    disk.capacity_bytes = disk.used_bytes
    for number in range(100):
        for group, each in zip(groups, pulled, strict=True):
            if group % 50 == number % 50:
                assert each is not None
                broker.consuming.ack((SUBJECT, group), each.delivery[number : number + 1])
        plan = broker.durability.sync_plan()
        try:
            plan.run()
        except DiskFullError:
            broker.durability.abort_sync(plan)
        else:
            broker.durability.finish_sync()
    assert 0 < seen <= 10 * 200, "cursors"
    disk.capacity_bytes = None
    broker.durability.sync()
    disk.kill()
    again = open_broker(disk, BrokerLimits(segment_bytes=1 << 20))
    assert {len(drain(again, group)) for group in groups} == {398}
