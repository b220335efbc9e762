"""Rows that left the memory of a broker group: each is read back and delivered, whatever happens meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import trio

from store.schedule_log import ScheduleKey
from store.segment import Segment
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


async def test_a_window_that_is_decided_and_retired_before_it_is_read_back_is_done(boot: Boot) -> None:
    storage = {"window_ms": 1_000, "retention_ms": 10_000}
    dispatch = QUICK | {"queue_rows_max": 10, "batch_messages_max": 5, "workers": 1}
    host = boot(faked_settings(storage=storage, dispatch=dispatch))
    server = await host.start()
    client = await host.client()
    host.fake().up = False
    await put_many(client, 12, host.now_ms, "s")
    (group,) = server.groups.values()
    await host.until(lambda: group.failing and bool(group.spilled))
    await host.sleep_ms(3_000)
    due_ms = host.now_ms
    receipts = [(await client.put(str(number), due_ms))["receipt"] for number in range(5)]
    await host.sleep_ms(1_000)
    assert set(await client.cancel(*receipts)) == {"cancelled"}
    await host.sleep_ms(60_000)
    assert not any(server.loader.ends(due_ms // 1_000 * 1_000).values()), "retention took the window"
    host.fake().up = True
    await host.until(lambda: len(host.fake().stored) == 12 and not group.spilled, within_ms=30_000)
    await host.settled()
    assert host.died_of is None
    host.check_balance(pending=0)


async def test_a_window_that_retention_takes_while_it_is_read_back_is_done(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = boot(faked_settings())
    server = await host.start()
    client = await host.client()
    due_ms = host.now_ms
    await client.put("m", due_ms)
    await host.until(lambda: host.fake().texts == ["m"])
    await host.settled()
    files = server.opened.schedule._files
    reading = files.reading

    def retired_first(key: ScheduleKey) -> AbstractContextManager[Segment]:
        files.remove(key)
        return reading(key)

    monkeypatch.setattr(files, "reading", retired_first)
    (group,) = server.groups.values()
    group.spilled.add(due_ms // 60_000 * 60_000)
    await host.sleep_ms(3_000)
    assert host.died_of is None
    assert not group.spilled
    assert host.fake().texts == ["m"]
