"""The queue between group commit and replay keeps its bound and its order; past the bound the log is the queue."""

from __future__ import annotations

import random

import pytest
import trio
import trio.testing

from delayserver.state.positions.log_queue import LINGER_MS, LogQueue
from delayserver.state.positions.positions import Positions
from store.logs.message_log import LogEntry
from store.shared.followed import FollowedTo, marker
from tests.fakes.clock import SimulatedClock
from tests.fakes.rows import messages


def fresh(bytes_max: int = 1_000, clock: SimulatedClock | None = None) -> tuple[Positions, LogQueue]:
    positions = Positions(durable=0, accepted_sequence=0, replayed=0, replayed_sequence=0)
    queue = LogQueue(positions, clock or SimulatedClock(), bytes_max)
    queue.catch_up()
    return positions, queue


@pytest.mark.parametrize("seed", range(20))
async def test_every_entry_is_taken_once_and_in_order_from_the_queue_or_from_the_log(seed: int) -> None:
    chance = random.Random(seed)
    positions, queue = fresh()
    log: list[LogEntry] = []
    replayed: list[LogEntry] = []
    for _ in range(300):
        if chance.random() < 0.5:
            entries, start = list[LogEntry](), positions.durable.value
            for _ in range(chance.randint(1, 4)):
                rows, end = chance.randint(1, 3), start + chance.randint(1, 400)
                entries.append(LogEntry(start, end, messages(1, rows)))
                start = end
            log += entries
            positions.durable.advance(start)
            queue.put(entries)
        else:
            taken = queue.take(chance.randint(1, 2_000), chance.randint(1, 10))
            if not taken and queue.overflowed:
                taken = [entry for entry in log if entry.start >= positions.replayed.value][:3]
                if not taken:
                    queue.catch_up()
            replayed += taken
            if taken:
                positions.replayed.advance(taken[-1].end)
        queue.check_invariants()
        positions.check_invariants()
    assert replayed == log[: len(replayed)]
    assert len(replayed) > 50


async def test_the_replay_lingers_unless_a_part_waits_for_it_or_a_row_is_due_soon(
    autojump_clock: trio.testing.MockClock,
) -> None:
    clock = SimulatedClock()
    positions, queue = fresh(bytes_max=1 << 20, clock=clock)
    far_ms, soon_ms = clock.now_ms() + 600_000, clock.now_ms() + 100

    async def lingered_ms() -> float:
        began = trio.current_time()
        await queue.linger()
        return round((trio.current_time() - began) * 1_000)

    assert await lingered_ms() == 0, "nothing is here"
    positions.durable.advance(10)
    queue.put([LogEntry(0, 10, messages(1, 1, due_ms=far_ms, span_ms=1))])
    assert await lingered_ms() == LINGER_MS
    async with trio.open_nursery() as nursery:
        nursery.start_soon(positions.replayed_sequence.reached, 1)
        await trio.testing.wait_all_tasks_blocked()
        assert await lingered_ms() == 0, "a part waits"
        nursery.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:

        async def put_soon() -> None:
            await trio.sleep(0.010)
            positions.durable.advance(20)
            queue.put([LogEntry(10, 20, messages(2, 1, due_ms=soon_ms, span_ms=1))])

        nursery.start_soon(put_soon)
        assert await lingered_ms() == 10, "a row that is due soon came"
    assert await lingered_ms() == 0, "a row that is due soon is here"


async def test_the_places_of_a_members_writes_linger_with_its_rows(autojump_clock: trio.testing.MockClock) -> None:
    clock = SimulatedClock()
    positions, queue = fresh(bytes_max=1 << 20, clock=clock)
    far_ms = clock.now_ms() + 600_000

    def write(position: int) -> None:
        start, place = positions.durable.value, FollowedTo(position)
        rows = LogEntry(start, start + 10, messages(position, 1, due_ms=far_ms, span_ms=1))
        entries = [rows, LogEntry(start + 10, start + 20, marker([(place, 1)], place))]
        positions.durable.advance(start + 20)
        queue.put(entries)

    async with trio.open_nursery() as nursery:
        write(1)
        began = trio.current_time()
        nursery.start_soon(queue.linger)
        await trio.sleep(LINGER_MS / 2_000)
        write(2)
    assert round((trio.current_time() - began) * 1_000) == LINGER_MS
    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(queue.linger)
        await trio.sleep(0.010)
        nursery.start_soon(positions.replayed.reached, 40)
        await trio.testing.wait_all_tasks_blocked()
        assert round((trio.current_time() - began) * 1_000) == 10, "a part waits for the replay"
        await queue.linger()
        assert round((trio.current_time() - began) * 1_000) == 10, "a part waits already"
        nursery.cancel_scope.cancel()
