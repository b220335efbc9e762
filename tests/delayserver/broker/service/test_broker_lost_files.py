"""The broker without some of its files' bytes: damaged, lost, or given back by retention."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.broker.broker_limits import DAY_MS, BrokerLimits
from delayserver.broker.queues.queue import SpilledBlock
from store.records.segment import FILE_HEADER_BYTES
from tests.delayserver.broker.brokers import (
    GROUP,
    HOUR_US,
    NOW_US,
    SUBJECT,
    DirectBroker,
    drain,
    messages,
    open_broker,
)
from tests.fakes.disk import FakeDisk

DAY_US = DAY_MS * 1000
SMALL_BLOCKS = BrokerLimits(
    segment_bytes=1 << 16, queue_segment_bytes=512, queue_runs_max=4, cache_bytes_max=0, blocks_cached_max=1
)


def damage_block(disk: FakeDisk, broker: DirectBroker, number: int) -> None:
    """Flip a bit in a block of index rows on disk. The next block takes its place in memory, where there is room for one."""
    blocks = broker.state.files.blocks
    offset, next_offset = [block.block_offset for block in spilled(broker)[number : number + 2]]
    base, segment = blocks.log.locate(offset)
    disk.flip_bit(segment.path, offset - base + 100)
    blocks.keep({next_offset: blocks.load(next_offset)})


def spilled(broker: DirectBroker) -> list[SpilledBlock]:
    """The blocks of index rows that the subject's queue has on disk, oldest first."""
    return broker.state.queues[SUBJECT, 0].blocks


def cut(disk: FakeDisk, path: str, length: int) -> None:
    """Cut a file, durably."""
    file = disk.open(path)
    file.truncate(length)
    file.datasync()
    file.close()


def test_after_a_crash_the_store_keeps_messages_behind_an_old_checkpoint(disk: FakeDisk) -> None:
    broker = open_broker(disk)  # with a checkpoint
    first, now_us = 1, NOW_US
    while len(disk.files("/data/broker/store/")) < 2:
        broker.deliver(messages(first, 10), False, now_us)
        broker.durability.sync()
        first, now_us = first + 10, NOW_US + 10 * DAY_US
    broker.arrivals.window_complete(7, [60_000])
    day_11 = NOW_US + 11 * DAY_US
    assert broker.retention.retire(day_11) == [], "all but the first ten are a day old"
    disk.kill()
    broker = open_broker(disk, now_us=day_11)
    broker.arrivals.window_complete(7, [60_000])
    assert broker.retention.retire(day_11) == []
    assert drain(broker) == list(range(1, first))


def test_a_group_that_has_acked_all_it_was_given_gets_more() -> None:
    broker = open_broker(FakeDisk(), BrokerLimits(lease_ranges_max=3_000))
    broker.deliver(messages(1, 10_000), False, NOW_US)
    held = []
    while (pulled := broker.pull(SUBJECT, GROUP, 1, 1 << 20, NOW_US, NOW_US)) is not None:
        held.append(pulled.delivery)
    assert len(held) == 3_000
    assert broker.consuming.ack((SUBJECT, GROUP), np.concatenate(held)).acked == len(held)
    assert broker.pull(SUBJECT, GROUP, 1, 1 << 20, NOW_US, NOW_US) is not None


def test_retention_leaves_the_blocks_of_a_queue_whose_first_one_was_made_again(disk: FakeDisk) -> None:
    limits = BrokerLimits(
        segment_bytes=4096,
        queue_segment_bytes=512,
        queue_runs_max=4,
        cache_bytes_max=0,
        blocks_cached_max=1,
        retention_ms=0,
    )
    broker = open_broker(disk, limits)
    for subject, first in ((SUBJECT + 1, 1001), (SUBJECT, 1)):
        for batch in range(40):
            broker.deliver(messages(first + 3 * batch, 3, subject=subject), False, NOW_US)
    broker.arrivals.window_complete(7, [60_000])
    assert len(drain(broker, subject=SUBJECT + 1)) == 120
    damage_block(disk, broker, 0)
    pulled = broker.pull(SUBJECT, GROUP, 3, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None and pulled.batch.sequence.tolist() == [1, 2, 3]
    broker.consuming.ack((SUBJECT, GROUP), pulled.delivery)
    assert len(broker.state.damages.texts) == 1, "the block, which was made again"
    assert broker.retention.retire(NOW_US + 1000) != []
    assert drain(broker) == list(range(4, 121))
    assert len(broker.state.damages.texts) == 1


def test_a_block_is_never_taken_for_another_one() -> None:
    broker = open_broker(FakeDisk(), SMALL_BLOCKS)
    for batch in range(40):
        broker.deliver(messages(1 + 3 * batch, 3), False, NOW_US)
    _, index = broker.state.files.logs
    before = index.first
    index.retire(spilled(broker)[-1].block_offset)
    assert index.first > before
    assert drain(broker) == list(range(1, 121))
    assert broker.state.damages.texts


def test_a_damaged_block_on_a_full_disk_is_made_again_for_the_pull_alone(disk: FakeDisk) -> None:
    broker = open_broker(disk, SMALL_BLOCKS)
    for batch in range(12):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.durability.sync()
    damage_block(disk, broker, 1)
    disk.capacity_bytes = disk.used_bytes
    assert drain(broker) == list(range(1, 121))


@pytest.mark.parametrize("which", ["first", "last"])
def test_where_block_and_record_are_damaged_only_the_record_is_lost(which: str, disk: FakeDisk) -> None:
    broker = open_broker(disk, SMALL_BLOCKS)
    for batch in range(12):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.close()
    disk.kill()
    broker = open_broker(disk, SMALL_BLOCKS)
    block, following = spilled(broker)[1:3]
    damage_block(disk, broker, 1)
    record = block.store_offset_first if which == "first" else block.store_offset_last
    disk.flip_bit(disk.files("/data/broker/store")[0], record + 70)
    lost = set(range(1, 121)) - set(drain(broker))
    first = block.position + 1 if which == "first" else following.position - 9
    assert lost == set(range(first, first + 10))
    assert broker.status()["damaged_messages"] == 10


@pytest.mark.parametrize("runs_max", [4, 10, 14, 20])
def test_segments_that_retention_removed_are_no_damage_to_a_late_group(runs_max: int) -> None:
    limits = BrokerLimits(segment_bytes=4096, queue_segment_bytes=4096, queue_runs_max=runs_max, cache_bytes_max=4096)
    broker = open_broker(FakeDisk(), limits)
    for batch in range(60):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.arrivals.window_complete(7, [60_000])
    for _ in range(50):
        pulled = broker.pull(SUBJECT, GROUP, 10, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        broker.consuming.ack((SUBJECT, GROUP), pulled.delivery)
    assert broker.retention.retire(NOW_US + 2 * HOUR_US) != []
    late = drain(broker, GROUP + 1)
    assert late and late == list(range(late[0], 601))
    assert not broker.state.damages.texts and not broker.status()["damaged_messages"]


def test_a_store_that_lost_its_end_is_reported_and_does_not_hold_up_a_repeated_hand_off(disk: FakeDisk) -> None:
    limits = BrokerLimits(segment_bytes=1 << 16, queue_segment_bytes=4096, queue_runs_max=4)
    broker = open_broker(disk, limits)
    for batch in range(20):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.close()
    disk.kill()
    cut(disk, disk.files("/data/broker/store/")[0], 6000)
    broker = open_broker(disk, limits)
    assert broker.state.damages.texts
    assert broker.deliver(messages(191, 10), True, NOW_US).outcome.tolist() == [1] * 10
    assert broker.deliver(messages(1, 10), True, NOW_US).outcome.tolist() == [2] * 10


def test_a_segment_of_the_store_that_is_gone_hides_its_own_messages_only(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for batch in range(40):
        broker.deliver(messages(1 + 10 * batch, 10), False, NOW_US)
    broker.close()
    disk.kill()
    disk.remove(disk.files("/data/broker/store/")[3])
    broker = open_broker(disk)
    assert broker.deliver(messages(391, 10), True, NOW_US).outcome.tolist() == [2] * 10
    assert broker.deliver(messages(1, 10), True, NOW_US).outcome.tolist() == [2] * 10
    assert broker.state.damages.texts


def test_every_group_goes_on_where_all_that_was_stored_is_lost(disk: FakeDisk) -> None:
    broker = open_broker(disk, BrokerLimits())
    broker.deliver(messages(1, 20), False, NOW_US)
    for group, count in ((GROUP, 5), (GROUP + 1, 9)):
        pulled = broker.pull(SUBJECT, group, count, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        broker.consuming.ack((SUBJECT, group), pulled.delivery)
    broker.durability.sync()
    disk.kill()
    cut(disk, disk.files("/data/broker/store")[0], FILE_HEADER_BYTES)
    broker = open_broker(disk, BrokerLimits())
    assert len(broker.state.damages.texts) == 1, "acks prove that messages are missing"
    broker.deliver(messages(101, 20), False, NOW_US)
    for group in (GROUP, GROUP + 1):
        assert drain(broker, group) == list(range(101, 121))


def test_on_a_full_disk_retention_removes_segments_that_the_last_checkpoint_does_not_need(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    for window in (1, 2):
        for batch in range(40):
            broker.deliver(messages(1000 * window + 10 * batch, 10, window_ms=window * 60_000), False, NOW_US)
        broker.arrivals.window_complete(7, [window * 60_000])
        drain(broker)
        broker.durability.sync()
        if window == 1:
            broker.durability.checkpoint()
    disk.capacity_bytes = 0
    assert broker.retention.retire(NOW_US + 2 * HOUR_US) != []
    broker.deliver(messages(1, 10), False, NOW_US)
