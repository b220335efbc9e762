"""Memory stays within its bound: rows leave it, and give way to the loads that others wait for."""

from __future__ import annotations

from delayserver.load.load_turn import overdue_room
from tests.fakes.host import Boot, faked_settings, with_settings
from wheel.keys import Key


async def test_rows_of_keys_give_way_to_the_load_they_wait_for_before_memory_is_short(boot: Boot) -> None:
    """They fill so much that an overdue window has no room, and so little that memory is not short."""
    settings, rows_max = faked_settings(), 24
    host = boot(with_settings(settings, wheel={"rows_max": rows_max}))
    server = await host.start()
    client, overflow, due_ms = await host.client(), server.parts.state.overflow, host.now_ms + 20_000
    await client.send(*[{"subject": "s", "body": "m", "due_ms": due_ms, "order_key": "k"} for _ in range(16)])
    await host.until(lambda: len(server.parts.state.wheel) == 16)
    group = server.parts.dispatch.groups.first.rows
    group.spilled.add(due_ms - due_ms % settings.storage.window_ms, 0, Key(due_ms - 1, 0))
    host.clock.step(21_000)  # no task has run since
    assert not overflow.is_short and overflow.room <= overdue_room(rows_max)
    assert not overflow.lacks(overdue_room(rows_max))
    assert group.spilled.first_waiting == Key(due_ms - 1, 0) and overflow.room == overdue_room(rows_max) + 1
