"""The brokers of several members over one log: whatever a follower goes through, it knows what the primary decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.files.progress_log import ACKED, ProgressRows
from delayserver.broker.service import shared_broker
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.durability import SharedSync
from delayserver.broker.service.publishing import _folded, _Part
from delayserver.broker.service.shared_broker import ENVELOPE_BYTES, SharedBroker, _envelopes
from delayserver.protocol.errors import InDoubt, NotPrimary
from delayserver.runtime.believable_clock import BelievableClock
from delayserver.runtime.clock import SystemClock
from delayserver.runtime.marks import Mark
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import RECORD_BYTES_MAX
from store.errors import CorruptionError, FormatError
from store.logs.message_log import LogEntry
from store.records.column_batch import ColumnBatch
from store.records.segment import Appendable
from store.shared.payload import decode_records, encode_records
from tests.delayserver.broker.brokers import LIMITS, NOW_US, SERVER, DirectBroker, messages, open_broker
from tests.fakes.clock import SimulatedClock
from tests.fakes.disk import FakeDisk
from tests.fakes.workers import FakeWorkers

# So small that the progress log is compacted all the time.
SMALL = replace(LIMITS, progress_bytes_max=1500, outstanding_max=60)
# All rows of the script take four times as much.
LONGEST_BYTES = 24_000
GROUPS = (9, 10)
KEYS = [(1, group) for group in GROUPS]


class Member:
    """One life of the broker of a member. All members share `log`, in which each record takes 8 bytes."""

    def __init__(self, log: list[ColumnBatch], disk: FakeDisk | None = None, limits: BrokerLimits = SMALL) -> None:
        self.log = log
        self.disk = disk or FakeDisk()
        self.limits = limits
        self.core = DirectBroker.open(self.disk, "/data/broker", SERVER, NOW_US, limits, shared=True)
        runtime = Runtime.on(clock=SimulatedClock(), workers=FakeWorkers())
        self.replayed, self.durable = Mark(0), Mark(0)
        self.superseded = False
        # Windows that have passed and are settled.
        self.over: set[int] = set()
        # So many more envelopes are proposed before another member leads.
        self.takes = 1 << 30
        is_over = self.over.__contains__
        self.shared = SharedBroker(self.core, self._write, self.replayed, self.durable, lambda: True, is_over, runtime)

    async def _write(self, records: Sequence[Appendable]) -> int:
        if not self.takes:
            raise NotPrimary("another member leads since")
        self.takes -= 1
        payload = b"".join([bytes(part) for part in encode_records(records)])
        self.log += [image.to_batch() for image in decode_records(payload, 0)]
        self.durable.advance(8 * len(self.log))
        if self.superseded:
            raise InDoubt("another member leads since")
        return self.durable.value

    def follow(self) -> None:
        for place in range(self.replayed.value // 8, len(self.log)):
            self.shared.follow(LogEntry(8 * place, 8 * place + 8, self.log[place]))
            self.replayed.advance(8 * place + 8)

    def lead(self, epoch: int) -> None:
        self.follow()
        self.durable.advance(8 * len(self.log))
        self.shared.take_over(epoch)

    def next_life(self, random: Random) -> Member:
        if random.random() < 0.5:
            self.disk.crash(random)
        else:
            self.disk.kill()
        return Member(self.log, self.disk, self.limits)

    def known(self) -> list[object]:
        """What is decided about each message, by group and queue."""
        state = self.core.state
        found: list[object] = [(key, state.queues.bounds(key)) for key in [(1, 0), *KEYS]]
        for key in KEYS:
            group = state.groups.get(key)
            if group is not None:
                cursors = (group.main, group.retry)
                found.append((key, group.expired, [(c.acked_to_log(), c.moves, c.counts()) for c in cursors]))
        return found


class Script:
    """What consumers and operators do at a primary, by chance."""

    def __init__(self, leader: Member, random: Random) -> None:
        self.leader = leader
        self.random = random
        self.sequence = 1
        self.leases: dict[tuple[int, int], list[int]] = {key: [] for key in KEYS}

    def act(self) -> None:
        core, random = self.leader.core, self.random
        key = random.choice(KEYS)
        choice = random.random()
        if choice < 0.3:
            count = random.randrange(1, 8)
            core.arrivals.deliver(messages(self.sequence, count), NOW_US)
            self.sequence += count
        elif choice < 0.6:
            pulled = core.pull(*key, random.randrange(1, 9), 1 << 20, NOW_US, NOW_US)
            self.leases[key] += [] if pulled is None else pulled.delivery.tolist()
        elif choice < 0.95:
            acked = [each for each in self.leases[key] if random.random() < 0.5]
            self.leases[key] = [each for each in self.leases[key] if each not in acked]
            core.consuming.ack(key, np.array(acked, np.int64))
        elif choice < 0.98:
            first, end = core.positions.bounds(1)
            core.positions.seek(key, random.randrange(first, end + 1))
        elif key in core.state.groups:
            core.state.groups.remove(key)


@pytest.mark.parametrize("seed", range(6))
async def test_a_follower_that_dies_now_and_then_knows_what_one_does_that_never_died(seed: int) -> None:
    random = Random(seed)
    log: list[ColumnBatch] = []
    leader, steady, dying = Member(log), Member(log), Member(log)
    leader.lead(1)
    script = Script(leader, random)
    for _ in range(150):
        for _ in range(random.randrange(6)):
            script.act()
        await leader.shared.sync()
        steady.follow()
        if random.random() < 0.5:
            dying.follow()
        if random.random() < 0.1:
            await dying.shared.mark()
        if random.random() < 0.1:
            await leader.shared.mark()
        if random.random() < 0.05:
            dying = dying.next_life(random)
    for member in (leader, steady, dying):
        for _ in range(2):  # the first one may write many rows that waited
            await member.shared.mark()
        assert member.core.state.files.progress.length_bytes < LONGEST_BYTES
    again = leader.next_life(random)
    for member in (steady, dying, again):
        member.lead(2)
    assert steady.known() == dying.known() == again.known()
    for member in (steady, dying, again):
        for key in KEYS:
            old, new = [each.core.state.groups.get(key) for each in (leader, member)]
            assert (old is None) == (new is None)
            if old is not None and new is not None:
                assert old.main.acked_to_log() == new.main.acked_to_log()
                assert old.main.moves == new.main.moves


async def test_what_never_came_into_the_log_is_cut_off_at_the_next_start() -> None:
    log: list[ColumnBatch] = []
    leader, other = Member(log), Member(log)
    leader.lead(1)
    leader.core.arrivals.deliver(messages(1, 3), NOW_US)
    await leader.shared.sync()
    leader.core.arrivals.deliver(messages(4, 5), NOW_US)
    leader.core.pull(1, 9, 8, 1 << 20, NOW_US, NOW_US)
    await leader.shared.mark()
    other.lead(2)
    other.core.arrivals.deliver(messages(10, 1), NOW_US)
    await other.shared.sync()
    again = leader.next_life(Random(0))
    again.lead(3)
    pulled = again.core.pull(1, 9, 8, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    assert pulled.batch.sequence.tolist() == [1, 2, 3, 10]


async def test_what_came_back_of_a_sync_that_ended_in_doubt_is_applied_by_the_next_life() -> None:
    log: list[ColumnBatch] = []
    leader = Member(log)
    leader.lead(1)
    leader.core.arrivals.deliver(messages(1, 3), NOW_US)
    await leader.shared.sync()
    leader.core.arrivals.deliver(messages(4, 5), NOW_US)
    leader.superseded = True
    with pytest.raises(InDoubt):
        await leader.shared.sync()
    await leader.shared.mark()
    again = leader.next_life(Random(0))
    again.lead(2)
    assert again.known()[0] == ((1, 0), (0, 8))


async def test_a_mark_before_the_replay_has_come_to_the_last_one_takes_nothing_back() -> None:
    log: list[ColumnBatch] = []
    leader, other = Member(log), Member(log)
    leader.lead(1)
    leader.core.arrivals.deliver(messages(1, 3), NOW_US)
    await leader.shared.sync()
    other.follow()
    await other.shared.mark()
    again = other.next_life(Random(0))
    await again.shared.mark()
    last = again.next_life(Random(0))
    last.lead(2)
    assert last.known()[0] == ((1, 0), (0, 3))


async def test_a_mark_within_a_round_stands_behind_the_records_of_it_that_were_followed() -> None:
    log: list[ColumnBatch] = []
    leader, steady, standby = Member(log), Member(log), Member(log)
    leader.lead(1)
    leader.core.arrivals.deliver(messages(1, 3), NOW_US)
    pulled = leader.core.pull(1, 9, 2, 1 << 20, NOW_US, NOW_US)
    assert pulled is not None
    leader.core.consuming.ack((1, 9), pulled.delivery[:1])
    await leader.shared.sync()
    leader.core.arrivals.deliver(messages(4, 2), NOW_US)
    await leader.shared.sync()
    for place in (0, 1):  # the third record of the round waits for room
        standby.shared.follow(LogEntry(8 * place, 8 * place + 8, log[place]))
    await standby.shared.mark()
    again = standby.next_life(Random(0))
    for member in (steady, again):
        member.lead(2)
    assert again.known() == steady.known()


async def test_a_record_at_positions_that_a_queue_has_already_is_refused() -> None:
    leader, other = Member([]), Member([])
    for member in (leader, other):
        member.lead(1)
        member.core.arrivals.deliver(messages(1, 3), NOW_US)
        await member.shared.sync()
    with pytest.raises(CorruptionError, match="position 0 of a queue that ends at 3"):
        other.core.follow(leader.log[0], NOW_US)  # type: ignore[arg-type]


async def test_positions_that_never_came_are_told() -> None:
    leader, other = Member([]), Member([])
    leader.lead(1)
    for first in (1, 4, 9):
        leader.core.arrivals.deliver(messages(first, 2), NOW_US)
        await leader.shared.sync()
    for place in (0, 2):
        other.shared.follow(LogEntry(8 * place, 8 * place + 8, leader.log[place]))
    assert other.core.state.damages.texts == ["positions 2 to 4 of a queue never came: messages are missing"]


def test_the_files_of_a_server_that_was_no_member_are_not_cut() -> None:
    disk = FakeDisk()
    broker = open_broker(disk)
    broker.arrivals.deliver(messages(1, 3), NOW_US)
    broker.close()
    with pytest.raises(FormatError, match="no member"):
        Member([], disk)
    assert len(open_broker(disk).pull(1, 9, 8, 1 << 20, NOW_US, NOW_US) or ()) == 3


async def test_a_removed_group_stays_removed_where_a_snapshot_takes_the_place_of_its_rows() -> None:
    log: list[ColumnBatch] = []
    leader, standby = Member(log), Member(log)
    leader.lead(1)
    again = messages(1, 3).with_columns(target_group=np.full(3, 9, np.uint32))
    leader.core.arrivals.deliver(again, NOW_US)
    leader.core.pull(1, 9, 1, 1 << 20, NOW_US, NOW_US)
    await leader.shared.sync()
    standby.follow()
    await standby.shared.mark()
    standby.core.durability.checkpoint()
    leader.core.state.groups.remove((1, 9))
    leader.core.positions.begin((1, 10), 0)
    await leader.shared.sync()
    while not standby.core.durability.progress_is_long:
        leader.core.positions.seek((1, 10), 0)
        await leader.shared.sync()
        standby.follow()
        await standby.shared.mark()
    await standby.shared.mark()
    after = standby.next_life(Random(0))
    after.lead(2)
    assert after.core.state.groups.moves == leader.core.state.groups.moves
    assert after.core.pull(1, 9, 8, 1 << 20, NOW_US, NOW_US) is None


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_sync_that_the_log_took_in_part_or_not_at_all_is_in_doubt(
    monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    leader = Member([])
    leader.lead(1)
    monkeypatch.setattr(shared_broker, "ENVELOPE_BYTES", 100)
    for first in (1, 4):
        leader.core.arrivals.deliver(messages(first, 3), NOW_US)
    leader.takes = taken
    with pytest.raises(InDoubt):
        await leader.shared.sync()
    assert len(leader.log) == taken


async def test_each_publish_hears_once_that_its_sync_is_in_doubt(autojump_clock: MockClock) -> None:
    leader = Member([])
    leader.lead(1)
    runtime = Runtime.on(workers=FakeWorkers())
    commit = BrokerCommit(leader.core, BelievableClock(SystemClock(), 0, 0), runtime, leader.shared)
    leader.core.arrivals.deliver(messages(1, 3), NOW_US)
    leader.takes = 0
    heard: list[Exception | None] = []
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(commit.run)
            commit.when_stored(leader.core.state.files.store.end, heard.append)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert [type(each) for each in heard] == [InDoubt]


async def test_a_follower_forgets_the_windows_that_are_over() -> None:
    leader, standby = Member([]), Member([])
    leader.lead(1)
    standby.log = leader.log
    leader.core.arrivals.deliver(messages(1, 3, window_ms=60_000), NOW_US)
    leader.core.arrivals.deliver(messages(4, 3, window_ms=120_000), NOW_US)
    await leader.shared.sync()
    standby.follow()
    standby.over.add(60_000)
    standby.shared.forget_windows()
    assert list(standby.core.state.windows.extents) == [(SERVER, 120_000)]


async def test_a_long_progress_log_costs_one_snapshot_until_the_next_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    leader = Member([])
    leader.lead(1)
    leader.core.arrivals.deliver(messages(1, 3), NOW_US)
    for _ in range(60):
        leader.core.positions.begin((1, 9), 0)
    await leader.shared.sync()
    await leader.shared.mark()
    assert leader.core.durability.progress_is_long
    made: list[int] = []
    snapshot = leader.core.durability.snapshot

    def counted() -> ProgressRows:
        made.append(1)
        return snapshot()

    monkeypatch.setattr(leader.core.durability, "snapshot", counted)
    for place in range(8):
        leader.core.positions.seek((1, 9), place % 3)
        await leader.shared.sync()
    assert len(made) == 1
    await leader.shared.mark()
    again = leader.next_life(Random(0))
    again.lead(2)
    assert again.known() == leader.known()


def test_publishes_of_one_step_become_records_that_the_log_takes() -> None:
    parts = [_Part([], None, lambda _: None, size << 20) for size in (3, 5, 1, 16, 1, 2)]
    assert _folded(parts) == [parts[:2], parts[2:3], parts[3:4], parts[4:]]


def test_more_rows_than_one_envelope_takes_become_several() -> None:
    rows = ProgressRows()
    rows.add_all(ACKED, 1, 9, False, [(2 * place, 2 * place + 1) for place in range(900_000)])
    made = list(_envelopes(SharedSync([], rows, None, 0)))
    assert sum([len(batch) for records in made for batch in records]) == 900_000
    sizes = [sum(map(len, encode_records(records))) for records in made]
    assert len(made) > 1 and max(sizes) < RECORD_BYTES_MAX and max(sizes) <= ENVELOPE_BYTES
