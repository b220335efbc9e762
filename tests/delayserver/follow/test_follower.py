"""Members of a shard follow one log: the same records stand in the same order in each message_log."""

from __future__ import annotations

from contextlib import AsyncExitStack

import pytest
import trio
import trio.testing

from delayserver.follow.follower import GATHER_MS
from delayserver.follow.shard_writer import GROUPS_MAX
from delayserver.protocol.errors import DelayServerError, InDoubt, NotPrimary
from delayserver.state.positions.gathering import Committed
from store.disk.memory_filesystem import MemoryFileSystem
from store.logs.log_scan import LogScan
from store.records.batches import FollowedBatch, MessageBatch
from store.shared.envelope import unwrap
from store.shared.followed import places_in
from store.shared.payload import LOG_VERSION, BarrierNote, ClaimNote, EndNote
from tests.delayserver.follow.members import IDENTITY, Member, Records, fresh_messages


def disk() -> MemoryFileSystem:
    return MemoryFileSystem(1 << 24)


def sequences(member: Member) -> list[int]:
    """The sequences of all messages of message_log, in its order."""
    return [row for batch in member.contents() if isinstance(batch, MessageBatch) for row in batch.sequence.tolist()]


async def settled() -> None:
    """Standbys have written what they had gathered."""
    await trio.sleep(GATHER_MS / 1000)
    await trio.testing.wait_all_tasks_blocked()


def times(member: Member) -> dict[tuple[int, int], int]:
    """When each record was written of which message_log knows the place, by its epoch and index."""
    scan = LogScan(member.log, member.log.first, member.log.end)
    marks = [entry.batch for entry in scan if isinstance(entry.batch, FollowedBatch)]
    return {(place.epoch, place.index): place.wall_us for mark in marks for place, _ in places_in(mark)}


async def led(member: Member) -> None:
    while not member.standing.leads:
        await member.standing.epoch.reached(member.standing.epoch.value + 1)


async def test_a_send_is_answered_when_it_came_back_and_all_members_have_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    records = Records()
    members = [Member(name, number, records, disk(), number + 10) for number, name in enumerate("abc")]
    async with AsyncExitStack() as stack:
        for member in members:
            await stack.enter_async_context(member.following())
        await led(members[0])
        first = await members[0].send(3)
        second = await members[0].send(2)
        assert (first.first_sequence, second.first_sequence) == (1, 4)
        await settled()
        for member in members:
            assert sequences(member) == [1, 2, 3, 4, 5]
            assert member.standing.leader == members[0].standing.seat.me
            assert member.positions.accepted_sequence.value == 5
        await trio.sleep(60)
        assert [member.standing.epoch.value for member in members] == [1, 1, 1], "beats are enough to lead"


async def test_a_standby_goes_on_where_the_log_of_a_silent_primary_ends(autojump_clock: trio.testing.MockClock) -> None:
    records = Records()
    first, second = (Member(name, number, records, disk(), number + 10) for number, name in enumerate("ab"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(first.following())
        await stack.enter_async_context(second.following())
        await led(first)
        await first.send(3)
        first.shared.connect(False)
        told: list[Committed | DelayServerError] = []
        first.commit.submit(fresh_messages(1), told.append)
        await led(second)
        assert first.standing.epoch.value == 1, "it has not read the claim"
        assert (await second.send(2)).first_sequence == 4
        first.shared.connect(True)
        await settled()
        assert not first.standing.leads
        assert [type(answer) for answer in told] == [InDoubt]
        assert sequences(first) == sequences(second) == [1, 2, 3, 4, 5]
        assert sum(second.follower.void.values()) >= 1, "what it sent behind the claim does not count"


async def test_members_keep_where_the_version_of_the_log_rose(autojump_clock: trio.testing.MockClock) -> None:
    """Also where records came in the same write: what a healed log has before it is known to be readable by all."""
    records = Records()
    first, second = (Member(name, number, records, disk(), number + 10) for number, name in enumerate("ab"))
    async with AsyncExitStack() as stack:
        for member in (first, second):
            await stack.enter_async_context(member.following())
        await led(first)
        second.shared.connect(False)
        await first.send(1)
        first.proposals.note(BarrierNote(LOG_VERSION, "1.2.3"), lambda _: None, lambda _: None)
        barrier = len(records.data) - 1
        await first.send(2)
        second.shared.connect(True)
        await settled()
    scan = LogScan(second.log, second.log.first, second.log.end)
    (mark,) = [entry.batch for entry in scan if isinstance(entry.batch, FollowedBatch) and len(entry.batch) > 3]
    assert [(place.position - barrier, place.barrier, count) for place, count in places_in(mark)][-4:-1] == [
        (0, 0, 1), (1, LOG_VERSION, 0), (2, LOG_VERSION, 1),
    ]  # fmt: skip


async def test_members_keep_when_the_last_primary_ended_and_the_next_one_began(
    autojump_clock: trio.testing.MockClock,
) -> None:
    records = Records()
    first, second = (Member(name, number, records, disk(), number + 10) for number, name in enumerate("ab"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(first.following())
        await stack.enter_async_context(second.following())
        await led(first)
        await trio.sleep(5)
        first.shared.connect(False)
        await led(second)
        await second.send(1)
        first.shared.connect(True)
        await settled()
    written = [unwrap(data, IDENTITY, position).envelope for position, data in enumerate(records.data)]
    claim = next(place for place, each in enumerate(written) if (each.epoch, each.index) == (2, 0))
    last = max((each for each in written[:claim] if each.epoch == 1), key=lambda each: each.index)
    for member in (first, second):
        kept = times(member)
        for record in (last, written[claim]):
            assert kept[record.epoch, record.index] == record.wall_us > 0


async def test_a_primary_that_was_superseded_takes_nothing_behind_the_claim(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """What it knows ran ahead of the log, so its next life reads on from there."""
    records = Records()
    first, second = (Member(name, number, records, disk(), number + 10) for number, name in enumerate("ab"))
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(first.following())
        await stack.enter_async_context(second.following())
        await led(first)
        first.standing.acts.set()
        await first.send(3)
        first.shared.connect(False)
        await led(second)
        claimed = second.standing.read.value
        await second.send(2)
        first.shared.connect(True)
        await settled()
        assert not first.standing.leads
        assert sequences(first) == [1, 2, 3]
        assert first.follower.place.position == claimed
    again = Member("a", 0, records, first.fs, 20)
    async with again.following():
        await settled()
        assert sequences(again) == [1, 2, 3, 4, 5]


async def test_five_groups_are_on_their_way_at_most(autojump_clock: trio.testing.MockClock) -> None:
    member, told = Member("a", 0, Records(), disk(), 10), list[Committed | DelayServerError]()
    async with member.following():
        await led(member)
        member.shared.connect(False)
        await trio.testing.wait_all_tasks_blocked()
        for _ in range(GROUPS_MAX + 3):
            member.commit.submit(fresh_messages(1), told.append)
            await trio.testing.wait_all_tasks_blocked()
        assert member.positions.commits_begun.value == GROUPS_MAX, "the others gather"
        member.shared.connect(True)
        await trio.testing.wait_all_tasks_blocked()
        assert len(told) == GROUPS_MAX + 3 and sequences(member) == list(range(1, GROUPS_MAX + 4))
        assert member.positions.commits_begun.value == GROUPS_MAX + 1, "what gathered is one group"


async def test_a_standby_writes_at_once_what_came_within_a_moment(autojump_clock: trio.testing.MockClock) -> None:
    records = Records()
    first, second = (Member(name, number, records, disk(), number + 10) for number, name in enumerate("ab"))
    async with first.following(), second.following():
        await led(first)
        await settled()
        before = second.marks()
        begin = trio.current_time()
        for _ in range(8):
            await first.send(1)
        assert trio.current_time() == begin, "a primary writes at once what its clients wait for"
        await settled()
        assert sequences(second) == sequences(first) == list(range(1, 9))
        assert second.marks() == before + 1


async def test_a_log_that_does_not_answer_is_no_silence(autojump_clock: trio.testing.MockClock) -> None:
    records = Records()
    first, second = (Member(name, number, records, disk(), number + 10) for number, name in enumerate("ab"))
    async with first.following(), second.following():
        await led(first)
        await first.send(1)
        for member in (first, second):
            member.shared.connect(False)
        await trio.sleep(30)
        assert second.standing.epoch.value == 1
        for member in (first, second):
            member.shared.connect(True)
        await trio.sleep(30)
        assert first.standing.leads and second.standing.epoch.value == 1


async def test_a_member_goes_on_where_its_own_log_was_left(autojump_clock: trio.testing.MockClock) -> None:
    records = Records()
    first, files = Member("a", 0, records, disk(), 10), disk()
    async with first.following():
        await led(first)
        second = Member("b", 1, records, files, 11)
        async with second.following():
            await first.send(2)
            await settled()
        await first.send(2)
        again = Member("b", 1, records, files, 12)
        assert again.follower.place.position == second.follower.place.position
        async with again.following():
            await settled()
            assert sequences(again) == [1, 2, 3, 4]
            assert again.standing.epoch.value == 1


@pytest.mark.parametrize("kept", [1, 2, 3])
async def test_records_that_a_crash_kept_without_their_place_come_once(
    kept: int, autojump_clock: trio.testing.MockClock
) -> None:
    records = Records()
    first = Member("a", 0, records, disk(), 10)
    async with first.following():
        await led(first)
        second = Member("b", 1, records, files := disk(), 11)
        second.log.append(first.contents())
        for count in (1, 2, 3):
            await first.send(count)
        batches = first.contents()
        second.log.append_durably(batches[:kept])
        again = Member("b", 1, records, files, 12)
        assert again.follower.place.ahead == kept
        async with again.following():
            await settled()
            assert sequences(again) == sequences(first) == [1, 2, 3, 4, 5, 6]


async def test_a_member_that_was_superseded_before_it_saw_that_it_led_applies_what_others_decide(
    autojump_clock: trio.testing.MockClock,
) -> None:
    records = Records()
    first, second = (Member(name, number, records, disk(), number + 10) for number, name in enumerate("ab"))
    for member, epoch in ((first, 1), (second, 2)):
        note = ClaimNote(member.standing.seat.name, "", "test", 0, "")
        member.proposals.claim(epoch, note)
    first.shared.delay_s = 0.1  # both claims come at once
    async with first.following():
        await first.standing.epoch.reached(2)
        await trio.testing.wait_all_tasks_blocked()
        assert first.positions.led_from > first.positions.durable.value, "the primary decided what comes next"


async def test_who_was_superseded_is_told_that_nothing_was_proposed(autojump_clock: trio.testing.MockClock) -> None:
    member, told = Member("a", 0, Records(), disk(), 10), list[DelayServerError]()
    member.proposals.propose([fresh_messages(1)], lambda _: None, told.append)
    member.proposals.note(EndNote("", 0), lambda _: None, told.append)
    assert [type(error) for error in told] == [NotPrimary, NotPrimary]
    assert not member.records.data
