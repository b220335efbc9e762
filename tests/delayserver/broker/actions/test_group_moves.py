"""Seeks, starts and removals of consumer groups, reads without a group, and the bound on what a lagging group holds."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
import pytest

from delayserver.broker.actions.group_moves import Looked
from delayserver.broker.broker_limits import DAY_MS, BrokerLimits
from delayserver.broker.reads import Steps, read_at_once
from store.records.batches import StoredBatch
from store.records.segment import FILE_HEADER_BYTES
from tests.delayserver.broker.brokers import (
    GROUP,
    LIMITS,
    NOW_US,
    SUBJECT,
    DirectBroker,
    drain,
    messages,
    open_broker,
    record_place,
)
from tests.fakes.disk import FakeDisk

KEY = (SUBJECT, GROUP)


def pull(broker: DirectBroker, count: int = 100, group: int = GROUP) -> tuple[list[int], np.ndarray]:
    """Sequences and delivery ids of one pull."""
    pulled = broker.pull(SUBJECT, group, count, 1 << 20, NOW_US, NOW_US)
    if pulled is None:
        return [], np.empty(0, np.int64)
    return pulled.batch.sequence.tolist(), pulled.delivery


def at(first: int, count: int, time_us: int) -> StoredBatch:
    """Messages that were dispatched at a time."""
    return messages(first, count).with_columns(dispatched_us=np.full(count, time_us, np.int64))


def look_at(broker: DirectBroker, *arguments: int) -> Looked:
    return broker.at_once(partial(broker.positions.look, *arguments))


def found_by_time(broker: DirectBroker, time_us: int) -> int:
    search = broker.positions.search(SUBJECT, time_us)
    assert search is not None
    return read_at_once(broker.state.files.reads, search)


def retry_queue(broker: DirectBroker, sequences: tuple[int, ...]) -> None:
    """Redeliveries for the group arrive, as from the delay pipeline."""
    batch = messages(sequences[0], len(sequences)).with_columns(target_group=np.full(len(sequences), GROUP, np.uint32))
    broker.deliver(batch, False, NOW_US)


def test_a_seek_back_brings_everything_from_there_again_as_if_for_the_first_time() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 10), False, NOW_US)
    _, held = pull(broker)
    broker.consuming.ack((SUBJECT, GROUP), held[:2])
    broker.consuming.ack((SUBJECT, GROUP), held[5:7])  # above a gap
    broker.positions.seek(KEY, 4)
    pulled = broker.pull(SUBJECT, GROUP, 100, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    assert pulled.batch.sequence.tolist() == [5, 6, 7, 8, 9, 10]
    assert pulled.attempt.tolist() == [1] * 6


def test_acks_and_nacks_of_leases_from_before_a_seek_are_unknown() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 6), False, NOW_US)
    _, before = pull(broker)
    broker.positions.seek(KEY, 0)
    assert broker.consuming.ack((SUBJECT, GROUP), before).unknown == 6
    sequences, again = pull(broker)
    assert sequences == [1, 2, 3, 4, 5, 6]
    assert broker.consuming.ack((SUBJECT, GROUP), before).unknown == 6, "the same positions are leased again"
    assert broker.nack(SUBJECT, GROUP, before, 0, NOW_US, NOW_US).unknown == 6
    assert broker.consuming.ack((SUBJECT, GROUP), again).acked == 6


def test_a_lease_from_before_a_seek_does_not_end() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 6), False, NOW_US)
    pull(broker)
    broker.positions.seek(KEY, 6)
    assert broker.retries.next_deadline_us() is None
    assert broker.expired_leases(NOW_US + 10**9, NOW_US + 10**9, 100) == []


def test_a_seek_passes_over_the_retry_queue_and_later_redeliveries_still_come() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 3), False, NOW_US)
    pull(broker, 1)
    retry_queue(broker, (101, 102))
    broker.positions.seek(KEY, 3)
    assert pull(broker)[0] == []
    retry_queue(broker, (103,))
    assert pull(broker)[0] == [103]


def test_a_redelivery_that_is_being_written_during_a_seek_acks_no_later_message() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 3), False, NOW_US)
    _, held = pull(broker)
    batch = broker.nack(SUBJECT, GROUP, held, 0, NOW_US, NOW_US)
    broker.positions.seek(KEY, 0)
    broker.retries.settle(batch)
    assert pull(broker)[0] == [1, 2, 3]
    broker.check_invariants()


@pytest.mark.parametrize("ends", ["settle", "abandon"])
def test_a_redelivery_that_is_being_written_while_its_group_is_removed_ends_quietly(ends: str) -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 3), False, NOW_US)
    _, held = pull(broker)
    batch = broker.nack(SUBJECT, GROUP, held, 0, NOW_US, NOW_US)
    broker.state.groups.remove(KEY)
    if ends == "settle":
        broker.retries.settle(batch)
    else:
        broker.retries.abandon(batch, NOW_US)
    assert broker.retries.next_deadline_us() is None
    assert pull(broker)[0] == [1, 2, 3]
    broker.check_invariants()


@pytest.mark.parametrize("snapshot", [False, True])
@pytest.mark.parametrize("position", [0, 4, 10])
def test_a_seek_survives_a_crash_once_it_is_synced(position: int, snapshot: bool, disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, progress_bytes_max=0 if snapshot else 1 << 20))
    broker.deliver(messages(1, 10), False, NOW_US)
    _, before = pull(broker)
    broker.consuming.ack((SUBJECT, GROUP), before[:6])
    broker.durability.sync()
    broker.positions.seek(KEY, position)
    broker.durability.sync()
    if snapshot:
        broker.consuming.ack((SUBJECT, GROUP), before)
        pull(broker, 1)
        broker.durability.sync()
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert broker.consuming.ack((SUBJECT, GROUP), before).unknown == 10
    assert pull(broker)[0] == list(range(position + 1, 11))


def test_a_seek_that_was_not_synced_is_forgotten_by_a_crash_and_the_acks_stay(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(messages(1, 4), False, NOW_US)
    _, held = pull(broker)
    broker.consuming.ack((SUBJECT, GROUP), held)
    broker.durability.sync()
    broker.positions.seek(KEY, 0)
    disk.crash(Random(1))
    assert pull(open_broker(disk))[0] == []


def test_acks_behind_a_seek_count_after_a_restart(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(messages(1, 6), False, NOW_US)
    drain(broker)
    broker.positions.seek(KEY, 2)
    _, held = pull(broker, 2)
    broker.consuming.ack((SUBJECT, GROUP), held[1:])
    broker.durability.sync()
    disk.kill()
    broker = open_broker(disk)
    assert pull(broker)[0] == [3, 5, 6]


def test_a_new_group_begins_at_its_start_argument_and_stays_there_after_a_crash(disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(messages(1, 4), False, NOW_US)
    broker.positions.begin(KEY, broker.positions.bounds(SUBJECT)[1])
    broker.durability.sync()
    assert pull(broker)[0] == []
    broker.deliver(messages(5, 2), False, NOW_US)
    broker.durability.sync()
    disk.crash(Random(2))
    assert pull(open_broker(disk))[0] == [5, 6]


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_removed_group_is_gone_after_a_crash_with_its_redeliveries(checkpoint: bool, snapshot: bool) -> None:
    disk = FakeDisk()
    broker = open_broker(disk, replace(LIMITS, progress_bytes_max=0 if snapshot else 1 << 20))
    broker.deliver(messages(1, 4), False, NOW_US)
    drain(broker)
    retry_queue(broker, (101, 102, 103))
    broker.durability.sync()
    broker.durability.checkpoint()
    broker.state.groups.remove(KEY)
    broker.durability.sync()
    if snapshot:
        pull(broker, 1, group=GROUP + 1)
        broker.deliver(messages(5, 1), False, NOW_US)
        broker.durability.sync()
    if checkpoint:
        broker.durability.checkpoint()
    disk.crash(Random(3))
    broker = open_broker(disk)
    assert KEY not in broker.state.groups
    assert broker.group_row(KEY) is None
    assert 101 not in drain(broker)
    broker.check_invariants()


@pytest.mark.parametrize("full", [False, True], ids=["crash", "no room for the removal"])
def test_a_group_whose_removal_was_not_durable_has_its_redeliveries_after_a_crash(full: bool, disk: FakeDisk) -> None:
    broker = open_broker(disk)
    broker.deliver(messages(1, 4), False, NOW_US)
    drain(broker)
    retry_queue(broker, (101, 102))
    broker.durability.sync()
    broker.state.groups.remove(KEY)
    if full:
        broker.durability.abort_sync(broker.durability.sync_plan())
    broker.durability.checkpoint()
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert KEY in broker.state.groups
    assert drain(broker) == [101, 102]


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("checkpoint", ["none", "before the sync", "beside the sync", "behind the sync"])
def test_a_group_made_anew_before_the_removal_is_durable_gets_no_earlier_redelivery(
    start: bool, checkpoint: str, disk: FakeDisk
) -> None:
    broker = open_broker(disk, replace(LIMITS, progress_bytes_max=0))
    broker.deliver(messages(1, 4), False, NOW_US)
    drain(broker)
    retry_queue(broker, (101, 102))
    broker.durability.sync()
    broker.state.groups.remove(KEY)
    if start:
        broker.positions.begin(KEY, 0)
    if checkpoint == "before the sync":
        broker.durability.checkpoint()
    assert pull(broker)[0] == [1, 2, 3, 4]
    plan = broker.durability.sync_plan()
    if checkpoint == "beside the sync":
        broker.durability.checkpoint()
    retry_queue(broker, (103,))
    plan.run()
    broker.durability.finish_sync()
    if checkpoint == "behind the sync":
        broker.durability.checkpoint()
    assert pull(broker)[0] == [103]
    broker.deliver(messages(5, 1), False, NOW_US)
    broker.durability.sync()  # a snapshot of the progress log
    broker.check_invariants()
    disk.crash(Random(2))
    broker = open_broker(disk)
    assert drain(broker) == [103, 1, 2, 3, 4, 5]


def test_a_group_that_is_made_anew_does_not_take_acks_of_the_one_that_was_removed() -> None:
    broker = open_broker(FakeDisk())
    broker.deliver(messages(1, 3), False, NOW_US)
    _, before = pull(broker)
    broker.state.groups.remove(KEY)
    assert pull(broker)[0] == [1, 2, 3]
    assert broker.consuming.ack((SUBJECT, GROUP), before).unknown == 3


@pytest.mark.parametrize("clean", [True, False])
def test_acks_of_a_group_that_is_younger_than_a_seek_of_another_count_after_a_restart(clean: bool) -> None:
    disk = FakeDisk()
    broker = open_broker(disk)
    broker.deliver(messages(1, 4), False, NOW_US)
    drain(broker, GROUP + 1)
    broker.positions.seek((SUBJECT, GROUP + 1), 4)
    _, held = pull(broker, 2)
    if clean:
        broker.close()
    else:
        broker.durability.sync()
        disk.crash(Random(1))
    broker = open_broker(disk)
    assert broker.consuming.ack((SUBJECT, GROUP), held).acked == 2
    assert pull(broker)[0] == [3, 4]


@pytest.mark.parametrize("covered", [False, True], ids=["logged", "covered by a checkpoint"])
@pytest.mark.parametrize("pulled", [False, True], ids=["gone", "made anew"])
def test_acks_of_a_removed_group_are_unknown_after_a_restart_too(pulled: bool, covered: bool, disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, progress_bytes_max=0 if covered else 1 << 20))
    broker.deliver(messages(1, 4), False, NOW_US)
    _, before = pull(broker, 2)
    broker.state.groups.remove(KEY)
    if covered:
        broker.durability.sync()
        broker.durability.checkpoint()
        pull(broker, 1, group=GROUP + 1)
        broker.deliver(messages(5, 1), False, NOW_US)
        broker.durability.sync()
    if pulled:
        assert pull(broker, 2)[0] == [1, 2]
    broker.durability.sync()
    disk.crash(Random(1))
    broker = open_broker(disk)
    assert broker.consuming.ack((SUBJECT, GROUP), before).unknown == 2
    assert (KEY in broker.state.groups) == pulled
    assert pull(broker, 4)[0] == [1, 2, 3, 4]


def test_a_removed_group_holds_nothing_back(disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, retention_ms=0))
    pull(broker)
    for first in range(1, 400, 10):
        broker.deliver(messages(first, 10), False, NOW_US)
        retry_queue(broker, (1000 + first,))
    drain(broker, GROUP + 1)
    broker.arrivals.window_complete(7, [60_000])
    assert broker.retention.retire(NOW_US + 1000) == [], "the group has all of it before it"
    broker.state.groups.remove(KEY)
    broker.durability.sync()
    assert broker.retention.retire(NOW_US + 1000) != []
    broker.check_invariants()


def test_a_time_is_found_in_memory_and_in_spilled_blocks() -> None:
    broker = open_broker(FakeDisk())
    for number in range(50):  # blocks hold two runs each
        broker.deliver(at(1 + 3 * number, 3, NOW_US + number * 1000), False, NOW_US)
    assert len(broker.state.queues[SUBJECT, 0].blocks) > 5
    assert found_by_time(broker, 0) == 0
    for number in range(50):
        assert found_by_time(broker, NOW_US + number * 1000) == 3 * number
        assert found_by_time(broker, NOW_US + number * 1000 - 1) == 3 * number
        assert found_by_time(broker, NOW_US + number * 1000 + 1) == 3 * number + 3
    assert found_by_time(broker, NOW_US + 10**9) == 150, "the end: only what comes from now on"


def test_a_time_is_found_with_few_reads() -> None:
    broker = open_broker(FakeDisk())
    for number in range(1000):
        broker.deliver(at(1 + number, 1, NOW_US + number), False, NOW_US)
    search = broker.positions.search(SUBJECT, NOW_US + 700)
    assert search is not None
    reads = 0

    def counted() -> Steps[int]:
        nonlocal reads
        for plan in search:
            reads += 1
            yield plan
        return 0

    read_at_once(broker.state.files.reads, counted())
    assert 0 < reads <= 16
    assert found_by_time(broker, NOW_US + 700) == 700


@pytest.mark.parametrize("number", [50, 196])
def test_retention_in_the_middle_of_a_search_changes_neither_the_read_nor_the_result(number: int) -> None:
    broker = open_broker(FakeDisk())
    for each in range(200):
        broker.deliver(at(1 + each, 1, NOW_US + each), False, NOW_US)
    drain(broker)
    broker.durability.sync()
    search = broker.positions.search(SUBJECT, NOW_US + number)
    assert search is not None

    reads, later_us = broker.state.files.reads, NOW_US + 400 * DAY_MS * 1000
    with pytest.raises(StopIteration) as stop:
        while True:
            plan = next(search)
            assert plan is not None
            reads.begin(plan)
            broker.retention.retire(later_us)  # while a thread is about to read
            plan.run()
            assert plan.find(plan.key) is not None, "the segment is still there"
            reads.finish(plan)
            broker.retention.retire(later_us)
    first = broker.positions.bounds(SUBJECT)[0]
    assert first == 192
    assert stop.value.value == max(number, first)


def test_a_time_within_a_record_is_found_by_its_rows() -> None:
    broker = open_broker(FakeDisk())
    times = np.array([5, 10, 10, 20], np.int64)
    broker.deliver(messages(1, 4).with_columns(dispatched_us=times), False, NOW_US)
    assert [found_by_time(broker, time_us) for time_us in (4, 5, 6, 10, 11, 20, 21)] == [0, 0, 1, 1, 3, 3, 4]


def test_a_damaged_record_lets_a_time_be_found_before_it(disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, segment_bytes=1 << 20))
    for number in range(8):
        broker.deliver(at(1 + number, 1, NOW_US + number), False, NOW_US)
    broker.durability.sync()
    _, path, offset = record_place(broker, 5)
    disk.flip_bit(path, offset + 100)
    assert found_by_time(broker, NOW_US + 5) <= 5
    assert found_by_time(broker, NOW_US + 2) == 2


def test_a_read_shows_the_messages_at_a_position_and_changes_nothing() -> None:
    broker = open_broker(FakeDisk())
    for first in (1, 4, 7):
        broker.deliver(messages(first, 3), False, NOW_US)
    look = look_at(broker, SUBJECT, 2, 4, 1 << 20)
    assert (look.status, look.first, look.end, look.next) == ("found", 0, 9, 6)
    assert look.found is not None
    assert look.found.batch.sequence.tolist() == [3, 4, 5, 6]
    assert look.found.batch.position.tolist() == [2, 3, 4, 5]
    for position, status, following in ((9, "nothing_yet", 9), (10, "too_large", 9), (-1, "too_small", 0)):
        look = look_at(broker, SUBJECT, position, 4, 1 << 20)
        assert (look.status, look.next, look.found) == (status, following, None)
    assert broker.group_rows.keys((0, 0), 0, 10) == []
    assert broker.retries.next_deadline_us() is None
    assert drain(broker) == list(range(1, 10))
    one = look_at(broker, SUBJECT, 0, 100, 1).found
    assert one is not None and len(one) == 1, "the first message comes, however few bytes are asked for"
    empty = look_at(broker, SUBJECT + 1, 0, 4, 1 << 20)
    assert (empty.status, empty.first, empty.end) == ("nothing_yet", 0, 0)


def test_a_read_goes_around_a_damaged_record_and_says_which_positions_are_retired(disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, retention_ms=0, cache_bytes_max=0))
    for first in range(1, 400, 10):
        broker.deliver(messages(first, 10), False, NOW_US)
    drain(broker)
    broker.arrivals.window_complete(7, [60_000])
    broker.durability.sync()
    assert broker.retention.retire(NOW_US + 1000)
    first, end = broker.positions.bounds(SUBJECT)
    assert look_at(broker, SUBJECT, first - 1, 1, 1 << 20).status == "retired"
    run, path, offset = record_place(broker, first)
    disk.flip_bit(path, offset + 100)
    look = look_at(broker, SUBJECT, first, 25, 1 << 20)
    assert look.found is not None
    assert look.found.batch.position.tolist() == list(range(first + run.row_count, first + run.row_count + 25))
    assert look.next == first + run.row_count + 25 < end


def lagging(disk: FakeDisk, limits: BrokerLimits, count: int = 600) -> DirectBroker:
    """A group that has taken nothing yet of `count` messages, whose window is complete."""
    broker = open_broker(disk, limits)
    pull(broker, 1)
    for first in range(1, count, 10):
        broker.deliver(messages(first, 10), False, NOW_US)
    broker.arrivals.window_complete(7, [60_000])
    broker.durability.sync()
    return broker


def test_a_group_that_lags_past_the_bound_loses_messages_and_gets_one_error(disk: FakeDisk) -> None:
    limits = replace(LIMITS, retention_ms=0, lag_bytes_max=3 * 4096)
    broker = lagging(disk, limits)
    assert broker.positions.take_passed(KEY) is None
    assert broker.retention.retire(NOW_US + 1000)
    first, end = broker.positions.bounds(SUBJECT)
    assert 0 < first < end
    disk.crash(Random(5))
    broker = open_broker(disk, limits)
    assert broker.positions.take_passed(KEY) == (first, end), "a restart forgets nothing"
    assert broker.positions.take_passed(KEY) is None
    assert drain(broker) == list(range(first + 1, 601))
    broker.durability.sync()
    disk.crash(Random(6))
    broker = open_broker(disk, limits)
    assert broker.positions.take_passed(KEY) is None, "a consumer got the error before the crash"
    broker.check_invariants()


def test_a_snapshot_of_the_progress_log_still_reports_the_losses_of_a_group(disk: FakeDisk) -> None:
    limits = replace(LIMITS, retention_ms=0, lag_bytes_max=3 * 4096, progress_bytes_max=1)
    broker = lagging(disk, limits)
    leased = np.concatenate([pull(broker)[1] for _ in range(60)])
    assert len(leased) == 600
    assert broker.retention.retire(NOW_US + 1000)
    first, end = broker.positions.bounds(SUBJECT)
    assert broker.consuming.ack((SUBJECT, GROUP), leased[first : first + 1]).acked == 1, (
        "the first message that is kept"
    )
    for _ in range(20):  # the log becomes twice as long as its snapshot
        pulled = broker.pull(SUBJECT, GROUP + 1, 1, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        broker.consuming.ack((SUBJECT, GROUP + 1), pulled.delivery)
        broker.durability.sync()
    disk.crash(Random(5))
    broker = open_broker(disk, limits)
    assert broker.positions.take_passed(KEY) == (first + 1, end), "the group goes on behind what it acked"
    assert drain(broker)[0] == first + 2, "an acked message does not come again"


def fall_behind(broker: DirectBroker, acked: int) -> None:
    """Store 180 messages, of which the group acks so many."""
    for first in range(1, 180, 3):
        broker.deliver(messages(first, 3), False, NOW_US)
    left = acked
    while left:
        pulled = broker.pull(SUBJECT, GROUP, left, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        broker.consuming.ack((SUBJECT, GROUP), pulled.delivery)
        left -= len(pulled)
    broker.arrivals.window_complete(7, [60_000])
    broker.durability.sync()


@pytest.mark.parametrize("runs_max", [6, 20, 40])
@pytest.mark.parametrize("acked", [2, 94])
def test_a_group_is_told_of_messages_that_it_lost_in_the_middle_of_a_block_of_index_rows(
    runs_max: int, acked: int, disk: FakeDisk
) -> None:
    limits = replace(LIMITS, retention_ms=0, lag_bytes_max=2 * 4096, queue_runs_max=runs_max)
    broker = open_broker(disk, limits)
    fall_behind(broker, acked)
    assert broker.retention.retire(NOW_US + 1000)
    kept = [
        record.columns["position"][0] for record in broker.state.files.store.columns(0, broker.state.files.store.end)
    ]
    for restart in (False, True):
        if restart:
            broker.durability.sync()
            broker.durability.checkpoint()
            disk.crash(Random(5))
            broker = open_broker(disk, limits)
        for cuts in broker.retention.block_cuts():
            cuts.load()
            cuts.finish()
        assert not broker.retention.block_cuts()
        assert broker.positions.bounds(SUBJECT) == (kept[0], 180)
        assert broker.positions.take_passed(KEY) == (None if restart else (kept[0], 180))
        broker.check_invariants()
    assert drain(broker) == list(range(kept[0] + 1, 181))
    assert not broker.state.damages.texts


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("acked", [2, 94])
def test_a_pull_before_the_cut_of_a_block_passes_over_nothing_without_saying_so(acked: int, restart: bool) -> None:
    disk = FakeDisk()
    limits = replace(LIMITS, retention_ms=0, lag_bytes_max=2 * 4096, queue_runs_max=20)
    broker = open_broker(disk, limits)
    fall_behind(broker, acked)
    broker.durability.checkpoint()
    assert broker.retention.retire(NOW_US + 1000)
    if restart:
        broker.durability.sync()
        disk.crash(Random(5))
        broker = open_broker(disk, limits)
    assert broker.retention.block_cuts()
    broker.positions.take_passed(KEY)
    kept = int(
        next(broker.state.files.store.columns(broker.state.files.store.first, broker.state.files.store.end)).columns[
            "position"
        ][0]
    )
    looked = look_at(broker, SUBJECT, kept - 1, 10, 1 << 20) if restart else None
    assert looked is None or (looked.status, looked.first, looked.next) == ("retired", kept, kept)
    pulled = broker.pull(SUBJECT, GROUP, 5, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None and int(pulled.batch.sequence[0]) == kept + 1
    assert broker.positions.take_passed(KEY) == (kept, 180)
    assert not broker.retention.block_cuts()
    broker.check_invariants()


def test_a_row_of_a_group_before_the_cut_of_a_block_reports_no_damage() -> None:
    limits = replace(LIMITS, retention_ms=0, lag_bytes_max=2 * 4096, queue_runs_max=20)
    broker = open_broker(FakeDisk(), limits)
    fall_behind(broker, 2)
    assert broker.retention.retire(NOW_US + 1000) and broker.retention.block_cuts()
    row = broker.group_row(KEY)
    assert row is not None and row.oldest_ms is None
    assert broker.state.damages.texts == []


def test_a_group_that_lags_by_time_still_keeps_younger_messages() -> None:
    broker = lagging(FakeDisk(), replace(LIMITS, retention_ms=0, lag_ms_max=5000), 300)
    assert broker.retention.retire(NOW_US + 4_000_000) == []
    assert broker.retention.retire(NOW_US + 6_000_000) != []
    assert broker.positions.take_passed(KEY) is not None


def test_without_a_bound_a_group_that_lags_holds_back_everything() -> None:
    broker = lagging(FakeDisk(), replace(LIMITS, retention_ms=0), 300)
    assert broker.retention.retire(NOW_US + 400 * 86_400_000_000) == []
    assert broker.positions.bounds(SUBJECT)[0] == 0


def test_a_seek_ahead_of_a_store_that_lost_its_end_stops_at_the_end(disk: FakeDisk) -> None:
    broker = open_broker(disk, replace(LIMITS, segment_bytes=1 << 20))
    broker.deliver(messages(1, 3), False, NOW_US)
    broker.durability.sync()
    kept = broker.state.files.store.end
    broker.deliver(messages(4, 3), False, NOW_US)
    pull(broker, 1)
    broker.positions.seek(KEY, 6)
    broker.durability.sync()
    disk.kill()
    (path,) = disk.files("/data/broker/store/")
    file = disk.open(path)
    file.write_at(kept, bytes(file.size() - kept)) if hasattr(file, "write_at") else file.truncate(kept)
    file.datasync()
    file.close()
    assert kept > FILE_HEADER_BYTES
    broker = open_broker(disk)
    assert pull(broker)[0] == []
    assert broker.state.damages.texts
    broker.deliver(messages(7, 2), False, NOW_US)
    assert pull(broker)[0] == [7, 8], "positions that the store lost are given to new messages"
