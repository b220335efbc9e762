"""A row in memory is in exactly one place: in the wheel, in a queue, or in flight."""

from __future__ import annotations

import pytest

from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.residency import Residency
from tests.fakes.host import Boot, faked_settings
from wheel.due_rows import DueRows
from wheel.hashed_wheel import HashedWheel
from wheel.keys import KEY_LOWEST, Key


async def with_a_queue(boot: Boot) -> tuple[Residency, GroupRows, DueRows]:
    """Memory with some rows that wait in a queue, and two of them."""
    host, client = await boot.connected(faked_settings())
    server = host.server
    host.fake().up = False
    await client.send(*[{"subject": "s", "body": "m", "due_ms": host.now_ms} for _ in range(20)])
    group = server.parts.dispatch.groups.first.rows
    await host.until(lambda: len(group.queue) == 20)
    rows = group.queue.take(2, 1 << 30)
    assert rows is not None
    return server.parts.state.residency, group, rows


async def test_a_row_that_leaves_the_queue_for_an_attempt_and_comes_back_is_in_one_place_all_the_time(
    boot: Boot,
) -> None:
    residency, group, rows = await with_a_queue(boot)
    attempt = group.begin(rows.sequence)
    residency.check_invariants()
    assert residency.in_flight(rows.sequence).all() and residency.was_released(rows.due_ms, rows.sequence).all()
    assert (residency.rows_held, residency.rows_queued) == (20, 18)
    group.end(attempt)
    group.queue.push_front(rows)
    residency.check_invariants()
    assert not residency.in_flight(rows.sequence).any() and residency.rows_queued == 20


async def test_the_check_finds_a_row_that_is_in_flight_and_waits(boot: Boot) -> None:
    residency, group, rows = await with_a_queue(boot)
    group.begin(rows.sequence)
    group.queue.push_front(rows)
    with pytest.raises(AssertionError):
        residency.check_invariants()


async def test_the_check_finds_a_row_that_waits_and_lies_in_the_wheel(boot: Boot) -> None:
    residency, group, rows = await with_a_queue(boot)
    group.queue.push_front(rows)
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


async def test_rows_of_a_millisecond_that_wait_for_one_that_left_memory_are_not_moved_at_each_look(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred thousand may be due at one moment, and they are looked at every few milliseconds."""
    host = boot(faked_settings())
    server = await host.start()
    client, wheel, due_ms = await host.client(), server.parts.state.residency.wheel, host.now_ms + 20_000
    sent = await client.send(*[{"subject": "s", "body": "m", "due_ms": due_ms, "order_key": "k"} for _ in range(20)])
    first = min(int(row["sequence"]) for row in sent)
    await host.until(lambda: len(wheel) == 20)
    (code,) = wheel.keyed_codes
    moved, advance = list[DueRows](), HashedWheel.advance

    def advancing(keyed: HashedWheel, now_ms: int, rows_max: int) -> DueRows:
        moved.append(advance(keyed, now_ms, rows_max))
        return moved[-1]

    monkeypatch.setattr(HashedWheel, "advance", advancing)
    for before in (Key(due_ms - 1, first + 5), Key(due_ms, KEY_LOWEST.sequence), Key(due_ms, first)):
        assert not len(wheel.advance_keyed(code, due_ms, 10, before))
    assert not any(map(len, moved))
    assert wheel.advance_keyed(code, due_ms, 10, Key(due_ms, first + 3)).sequence.tolist() == [*range(first, first + 3)]
    assert len(wheel) == 17
    wheel.check_invariants()
