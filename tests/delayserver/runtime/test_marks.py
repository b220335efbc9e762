"""Marks only grow, and each part that waits for one is woken when it is reached, not before."""

from __future__ import annotations

import trio
import trio.testing

from delayserver.runtime.marks import Bell, Mark


async def test_a_part_that_waits_for_a_mark_is_woken_when_it_is_reached_and_not_before() -> None:
    mark, reached = Mark(5), list[int]()

    async def wait(value: int) -> None:
        await mark.reached(value)
        reached.append(value)

    async with trio.open_nursery() as nursery:
        for value in (3, 5, 6, 9, 9, 12):
            nursery.start_soon(wait, value)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(reached) == [3, 5]
        mark.advance(9)
        mark.check_invariants()
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(reached) == [3, 5, 6, 9, 9]
        assert mark.awaited
        mark.advance(20)
    assert reached[-1] == 12
    assert not mark.awaited


async def test_a_mark_never_goes_back() -> None:
    mark = Mark(7)
    mark.advance(3)
    assert mark.value == 7


async def test_a_part_that_is_cancelled_waits_no_more() -> None:
    mark = Mark(0)
    with trio.move_on_after(0.01):
        await mark.reached(1)
    assert not mark.awaited
    mark.check_invariants()


async def test_a_mark_rings_for_its_writer_when_a_part_begins_to_wait() -> None:
    wanted = Bell()
    mark = Mark(0, wanted)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(mark.reached, 1)
        await wanted.rung()
        mark.advance(1)


async def test_a_bell_that_was_rung_since_it_was_hushed_ends_the_wait_at_once() -> None:
    bell = Bell()
    bell.ring()
    await bell.rung()
    bell.hush()
    with trio.move_on_after(0.01) as scope:
        await bell.rung()
    assert scope.cancelled_caught
    bell.hush()
    bell.ring()
    await bell.rung()


def test_a_mark_rings_a_bell_once_when_it_reaches_a_value_and_not_before() -> None:
    mark, bell, rung = Mark(3), Bell(), list[bool]()
    for value in (3, 5, 5):  # the first is reached already, the last was noted before
        mark.ring_at(value, bell)
    for value in (4, 6, 9):
        mark.advance(value)
        rung.append(bell.is_rung)
        bell.hush()
    assert rung == [False, True, False]
    assert not mark.awaited
