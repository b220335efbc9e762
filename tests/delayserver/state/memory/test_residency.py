"""A row in memory is in exactly one place: in the wheel, in a queue, or in flight."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.residency import Residency
from tests.fakes.host import Host, faked_settings
from wheel.due_rows import DueRows

Boot = Callable[..., Host]


async def with_a_queue(boot: Boot) -> tuple[Residency, GroupRows, DueRows]:
    """Memory with some rows that wait in a queue, and two of them."""
    host = boot(faked_settings())
    server = await host.start()
    client = await host.client()
    host.fake().up = False
    await client.send(*[{"subject": "s", "body": "m", "due_ms": host.now_ms} for _ in range(20)])
    group = server.parts.groups.first.rows
    await host.until(lambda: len(group.queue) == 20)
    rows = group.queue.take(2, 1 << 30)
    assert rows is not None
    return server.parts.residency, group, rows


async def test_a_row_that_leaves_the_queue_for_an_attempt_and_comes_back_is_in_one_place_all_the_time(
    boot: Boot,
) -> None:
    residency, group, rows = await with_a_queue(boot)
    attempt = group.begin(rows.sequence)
    residency.check_invariants()
    assert residency.in_flight(rows.sequence).all() and residency.was_released(rows.due_ms, rows.sequence).all()
    assert (residency.rows_held, residency.rows_queued) == (20, 18)
    group.end(attempt)
    residency.push_front(group, rows)
    residency.check_invariants()
    assert not residency.in_flight(rows.sequence).any() and residency.rows_queued == 20


async def test_the_check_finds_a_row_that_is_in_flight_and_waits(boot: Boot) -> None:
    residency, group, rows = await with_a_queue(boot)
    group.begin(rows.sequence)
    residency.push_front(group, rows)
    with pytest.raises(AssertionError):
        residency.check_invariants()


async def test_the_check_finds_a_row_that_waits_and_lies_in_the_wheel(boot: Boot) -> None:
    residency, group, rows = await with_a_queue(boot)
    residency.push_front(group, rows)
    residency.wheel.add(rows.due_ms, rows.sequence, rows.payload)
    with pytest.raises(AssertionError):
        residency.check_invariants()


async def test_a_cancelled_row_leaves_every_place_but_an_attempt(boot: Boot) -> None:
    residency, group, rows = await with_a_queue(boot)
    group.begin(rows.sequence)
    due_ms, sequence = group.queue.keys()
    residency.withdraw(due_ms[:5], sequence[:5])
    assert residency.rows_queued == 13 and residency.in_flight(rows.sequence).all()
    residency.check_invariants()
