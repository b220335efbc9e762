"""A primary keeps its lease by beats that came back. A standby claims only where the primary is silent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from delayserver.config.cluster_settings import ClusterSettings
from store.disk.memory_filesystem import MemoryFileSystem
from store.shared.payload import EndNote
from tests.delayserver.follow.members import Member, Records

TIMES = ClusterSettings()


def two_members() -> tuple[Member, Member]:
    records = Records()
    first, second = (
        Member(name, number, records, MemoryFileSystem(1 << 24), number + 10) for number, name in enumerate("ab")
    )
    return first, second


async def led(member: Member) -> None:
    while not member.standing.leads:
        await member.standing.epoch.reached(member.standing.epoch.value + 1)


def lease_left_ms(member: Member) -> int:
    return (member.standing.lease.value - member.clock.boot_us()) // 1000


async def test_the_lease_runs_from_the_time_at_which_the_beat_was_sent(autojump_clock: trio.testing.MockClock) -> None:
    first, second = two_members()
    async with first.following(), second.following():
        await led(first)
        await trio.sleep(5)
        assert 0 < TIMES.lease_ms - lease_left_ms(first) <= TIMES.beat_ms + 1
        first.shared.delay_s = 1.0  # what it appends is read a second later
        await trio.sleep(5)
        assert 1_000 <= TIMES.lease_ms - lease_left_ms(first) <= 1_000 + 1_000 + TIMES.beat_ms
        assert second.standing.lease.value == 0, "a standby has none"


async def test_the_lease_has_ended_when_a_standby_claims(autojump_clock: trio.testing.MockClock) -> None:
    first, second = two_members()
    async with first.following(), second.following():
        await led(first)
        await trio.sleep(5)
        first.shared.connect(False)
        await led(second)
        assert lease_left_ms(first) < 0


async def test_a_primary_whose_disk_hangs_beats_no_more(autojump_clock: trio.testing.MockClock) -> None:
    records = Records()
    first = Member("a", 0, records, MemoryFileSystem(1 << 24), 10, inline_bytes_max=0)
    second = Member("b", 1, records, MemoryFileSystem(1 << 24), 11)
    async with first.following() as nursery, second.following():
        await led(first)
        await first.send(1)
        hangs = trio.Event()

        async def hang(_name: str, work: Callable[[], Any]) -> Any:
            await hangs.wait()
            return work()

        first.workers.around = hang
        nursery.start_soon(first.send, 1)
        await led(second)
        assert second.standing.epoch.value == 2
        hangs.set()
        await trio.testing.wait_all_tasks_blocked()
        assert not first.standing.leads


async def test_a_standby_that_has_not_read_what_the_log_has_does_not_claim(
    autojump_clock: trio.testing.MockClock,
) -> None:
    first, second = two_members()
    async with first.following(), second.following():
        await led(first)
        await trio.sleep(5)
        second.shared.delay_s = 10.0  # the log answers it, and gives it records late
        await trio.sleep(60)
        assert first.standing.leads and second.standing.epoch.value == 1


@pytest.mark.parametrize("kind", ["foreign", "void"])
async def test_a_standby_claims_also_where_the_last_record_does_not_count(
    kind: str, autojump_clock: trio.testing.MockClock
) -> None:
    first, second = two_members()
    async with first.following(), second.following():
        await led(first)
        await first.send(1)
        await trio.sleep(5)
        first.shared.connect(False)
        second.shared.append(b"of another program" if kind == "foreign" else first.records.data[0])
        with trio.fail_after(60):
            await led(second)
        assert second.standing.epoch.value == 2


async def test_the_heir_of_a_hand_over_claims_at_once(autojump_clock: trio.testing.MockClock) -> None:
    first, second = two_members()
    async with first.following(), second.following():
        await led(first)
        await first.send(1)
        begun = trio.current_time()
        first.proposals.note(EndNote(heir="b", horizon_ms=0), lambda _: None, lambda _: None)
        await led(second)
        assert trio.current_time() - begun < 0.1
        assert (await second.send(1)).first_sequence == 2


async def test_of_two_claims_of_an_epoch_the_first_in_the_log_counts(autojump_clock: trio.testing.MockClock) -> None:
    records = Records()
    members = [Member(name, 0, records, MemoryFileSystem(1 << 24), number) for number, name in enumerate("abc", 1)]
    async with members[0].following(), members[1].following(), members[2].following():
        await trio.sleep(30)
        assert [member.standing.epoch.value for member in members] == [1, 1, 1]
        assert sum(member.standing.leads for member in members) == 1
        assert len({member.standing.leader for member in members}) == 1
