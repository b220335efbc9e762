"""What the stores of a shard's members give up stands in its log: they have the same, whatever their segments are."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from delayserver.broker.actions.given_up import first_of_segment
from store.records.batches import KeptBatch
from store.records.column_batch import ColumnBatch
from store.records.segment import FILE_HEADER_BYTES
from tests.delayserver.broker.brokers import NOW_US, messages
from tests.delayserver.broker.service.test_shared_broker import SMALL, Member, Script

DAY_US = 86_400_000_000
LATER_US = NOW_US + 30 * DAY_US
# Segments of some records, and one of all.
LARGE = replace(SMALL, segment_bytes=1 << 20, queue_runs_max=1 << 20)


async def propose(leader: Member) -> bool:
    """As the upkeep of a primary does. Whether the log has it."""
    core = leader.core
    leader.over.add(60_000)
    leader.shared.forget_windows()
    base = core.retention.to_give_up(LATER_US, LATER_US)
    found = first_of_segment(core.state.files.store, base) if base else None
    await leader.shared.sync()
    before = len(leader.log)
    if found is not None:
        await leader.shared.give_up(*found)
    return len(leader.log) > before


async def upkeep(member: Member) -> None:
    """As that of any member: cut index rows, and remove segments behind a checkpoint."""
    core = member.core
    core.retention.give_up()
    if core.retention.needs_checkpoint(LATER_US, LATER_US, by_log=True):
        await member.shared.mark()
        core.durability.checkpoint()
    core.retention.retire(LATER_US, LATER_US, alone=False, by_log=True)
    cut(member)


def cut(member: Member) -> None:
    for cuts in member.core.retention.block_cuts():
        cuts.load()
        cuts.finish()


@pytest.mark.parametrize("seed", range(8))
async def test_all_members_keep_the_same_messages(seed: int) -> None:
    random = Random(seed)
    log: list[ColumnBatch] = []
    leader, steady, dying = Member(log), Member(log, limits=LARGE), Member(log)
    leader.lead(1)
    script = Script(leader, random)
    proposed = 0
    for _ in range(200):
        for _ in range(random.randrange(6)):
            script.act()
        await leader.shared.sync()
        if random.random() < 0.1:
            proposed += await propose(leader)
        steady.follow()
        if random.random() < 0.5:
            dying.follow()
        for member in (leader, steady, dying):
            if random.random() < 0.1:
                await member.shared.mark()
            if random.random() < 0.1:
                await upkeep(member)
        if random.random() < 0.05:
            dying = dying.next_life(random)
    assert proposed == sum([isinstance(each, KeptBatch) for each in log]) > 0
    cut(leader)
    kept = leader.core.state.queues.bounds((1, 0))
    again = leader.next_life(random)
    for member in (steady, dying, again):
        member.lead(2)
        cut(member)
    assert steady.known() == dying.known() == again.known()
    assert steady.core.state.queues.bounds((1, 0)) == kept
    assert steady.core.state.files.store.first == FILE_HEADER_BYTES < again.core.state.files.store.first


async def fill(leader: Member, records: int, first: int = 1) -> None:
    """Records that group 9 has acked, some of them in each segment."""
    for number in range(records):
        leader.core.arrivals.deliver(messages(first + 8 * number, 8), NOW_US)
        pulled = leader.core.pull(1, 9, 8, 1 << 20, NOW_US, NOW_US)
        assert pulled is not None
        leader.core.consuming.ack((1, 9), pulled.delivery)
    await leader.shared.sync()


async def test_the_clock_of_a_standby_gives_nothing_up() -> None:
    leader, standby = Member([]), Member([])
    standby.log = leader.log
    leader.lead(1)
    await fill(leader, 30)
    standby.follow()
    for member in (leader, standby):
        member.over.add(60_000)
        member.shared.forget_windows()
    await standby.shared.mark()
    standby.core.durability.checkpoint()
    assert standby.core.retention.to_give_up(LATER_US, LATER_US)
    await upkeep(standby)
    assert standby.core.state.queues.bounds((1, 0)) == (0, 240)
    assert await propose(leader)
    standby.follow()
    first, _ = standby.core.state.queues.bounds((1, 0)) or (0, 0)
    assert first and standby.core.state.queues.bounds((1, 0)) == leader.core.state.queues.bounds((1, 0))
    await upkeep(standby)
    assert standby.core.state.files.store.first > FILE_HEADER_BYTES


async def test_what_was_given_up_stays_so_where_no_segment_could_go() -> None:
    """The file that says it is replaced by a snapshot meanwhile."""
    log: list[ColumnBatch] = []
    leader, standby = Member(log), Member(log, limits=LARGE)
    leader.lead(1)
    await fill(leader, 30)
    standby.follow()
    await standby.shared.mark()
    standby.core.durability.checkpoint()
    assert await propose(leader)
    standby.follow()
    given_up = standby.core.state.queues.bounds((1, 0))
    while not standby.core.durability.progress_is_long:
        leader.core.positions.seek((1, 9), 240)
        await leader.shared.sync()
        standby.follow()
        await standby.shared.mark()
    await standby.shared.mark()
    again = standby.next_life(Random(0))
    assert again.core.state.files.store.first == FILE_HEADER_BYTES
    assert again.core.state.queues.bounds((1, 0)) == given_up != (0, 240)


async def test_nothing_is_given_up_in_front_of_a_record_that_the_log_lacks() -> None:
    leader = Member([])
    leader.lead(1)
    await fill(leader, 10)
    base = leader.core.state.files.store.log.segments()[-1][0]
    found = first_of_segment(leader.core.state.files.store, base)
    assert found is not None
    first, _ = found
    leader.core.arrivals.deliver(messages(900, 1), NOW_US)
    await leader.shared.give_up(first, leader.core.state.files.store.end)
    assert not any(isinstance(each, KeptBatch) for each in leader.log)


async def test_while_a_checkpoint_copies_the_queues_they_stay() -> None:
    leader, standby = Member([]), Member([])
    standby.log = leader.log
    leader.lead(1)
    await fill(leader, 30)
    assert await propose(leader)
    with standby.core.durability.checkpoint_capture() as capture:
        standby.follow()
        while capture.step():
            pass
        assert standby.core.state.queues.bounds((1, 0)) == (0, 240)
        capture.plan()
    standby.core.retention.give_up()
    assert standby.core.state.queues.bounds((1, 0)) == leader.core.state.queues.bounds((1, 0))
