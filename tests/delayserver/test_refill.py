"""Rows that left the memory of a broker group: each is read back and delivered, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from tests.delayserver.test_broker_group import QUICK, put_many
from tests.fakes.host import Host, faked_settings

Boot = Callable[..., Host]


async def test_rows_that_leave_memory_while_their_window_is_read_back_are_read_back_too(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = boot(faked_settings(dispatch=QUICK | {"queue_rows_max": 20, "batch_messages_max": 5, "workers": 1}))
    server = await host.start()
    client = await host.client()
    reading, go_on = trio.Event(), trio.Event()

    async def slow_thread(work: Callable[..., Any], *arguments: Any) -> Any:
        done = work(*arguments)
        reading.set()
        await go_on.wait()
        return done

    monkeypatch.setattr(trio.to_thread, "run_sync", slow_thread)
    monkeypatch.setattr(server.dispatcher, "_inline", False)
    host.fake().up = False
    await put_many(client, 30, host.now_ms, "s")
    (group,) = server.groups.values()
    await host.until(lambda: group.failing and bool(group.spilled))
    host.fake().up = True
    await reading.wait()
    host.fake().up, dropped = False, group.counters.dropped_from_memory
    await put_many(client, 10, host.now_ms, "s", first=30)
    await host.until(lambda: group.failing)
    await put_many(client, 30, host.now_ms, "s", first=40)
    await host.sleep_ms(100)
    assert group.counters.dropped_from_memory > dropped, "no row behind what is read has left memory"
    host.fake().up = True
    await host.until(lambda: not len(group.queue))
    go_on.set()
    await host.until(lambda: len(host.fake().stored) == 70, within_ms=30_000)
    await host.settled()
    assert len(set(host.fake().stored)) == 70
    host.check_balance(pending=0)
