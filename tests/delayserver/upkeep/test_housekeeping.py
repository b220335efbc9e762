"""Nodes hear of complete windows once their minute is over; steps of the clock are counted."""

from __future__ import annotations

import numpy as np
import pytest
import trio

from delayserver.config.settings import RouteSettings
from delayserver.state.windows.window_book import WindowBook
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.records.batches import OutcomeBatch
from store.tables.days import DayTable
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, fake_group, faked_settings, small_settings
from tests.fakes.rows import messages
from tests.fakes.schedule_files import KEY, MINUTE, opened


async def test_a_node_hears_of_complete_windows_after_their_minute_and_not_of_others(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    window_ms = host.now_ms // 60_000 * 60_000
    await client.put("done", window_ms + 100)
    host.fake().refuse = lambda batch: batch.sequence == 2
    await client.put("stuck", window_ms + 60_100)
    await host.sleep_ms(30_000)
    assert not host.fake().complete
    await host.sleep_ms(100_000)
    assert host.fake().complete == [window_ms]
    host.fake().refuse = None
    await host.until(lambda: host.fake().complete == [window_ms, window_ms + 60_000], within_ms=60_000)


async def test_a_node_does_not_hear_of_a_window_that_a_late_message_opened_again(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    window_ms = host.now_ms // 60_000 * 60_000
    await client.put("done", window_ms + 100)
    await host.settled()
    host.fake().refuse = lambda batch: batch.sequence == 2
    await client.put("late", window_ms + 200)
    await host.sleep_ms(100_000)
    assert not host.fake().complete, "an attempt of it may have an unknown result"
    host.fake().refuse = None
    await host.until(lambda: host.fake().complete == [window_ms], within_ms=60_000)


def test_a_window_is_settled_when_its_last_outcome_is_durable(disk: FakeDisk) -> None:
    schedule, dispatch = opened(disk), DispatchLog(disk, "/data/dispatch_log", 1, 60_000)
    book = WindowBook(schedule, dispatch, DayTable(disk, "/days", 0, {}), 60_000)
    schedule.append(KEY, messages(1, 2))
    schedule.sync()
    assert not book.is_settled(MINUTE)
    dispatch.append(DispatchKey(MINUTE, False), OutcomeBatch.filled(2, sequence=np.arange(1, 3), due_ms=MINUTE))
    assert book.is_complete(MINUTE)
    assert not book.is_settled(MINUTE), "a crash would take it back, and the rows would come again"
    dispatch.sync()
    assert book.is_settled(MINUTE)
    schedule.append(KEY, messages(5, 1))
    assert not book.is_settled(MINUTE), "of a message that is only written an attempt may be made soon"


async def test_a_node_does_not_hear_of_a_window_while_its_day_drains(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    window_ms = host.now_ms // 60_000 * 60_000
    await client.put("done", window_ms + 100)
    draining = True
    host.server.parts.files.days.is_draining = lambda due_ms: draining  # type: ignore[method-assign]
    await host.sleep_ms(130_000)
    assert host.fake().texts == ["done"]
    assert not host.fake().complete, "more of it is on its way from the day's file"
    draining = False
    await host.until(lambda: host.fake().complete == [window_ms])


async def test_complete_windows_are_chosen_node_by_node(boot: Boot) -> None:
    settings = small_settings(groups=(fake_group("fake", "fake1", "fake2"),), routes=(RouteSettings("*", ("fake",)),))
    host, client = await boot.connected(settings)
    window_ms = host.now_ms // 60_000 * 60_000
    await client.put("done", window_ms + 100)
    first, second = host.fake("fake1"), host.fake("fake2")
    first.slow_to_hear = trio.Event()
    await host.until(lambda: first.asked_to_hear, within_ms=200_000)
    for fake in (first, second):
        fake.refuse = lambda batch: batch.sequence == 2
    await client.put("late", window_ms + 200)
    await host.sleep_ms(500)
    assert first.attempts and second.attempts
    first.slow_to_hear.set()
    await host.sleep_ms(2_000)
    assert first.complete == second.complete == []


@pytest.mark.parametrize("how", ["stop", "kill"])
async def test_windows_that_were_complete_before_a_restart_do_not_hold_the_store(boot: Boot, how: str) -> None:
    host, client = await boot.connected(small_settings(broker={"segment_bytes": 4096}))
    for _ in range(5):
        await client.put("x" * 1000, host.now_ms)
    await host.sleep_ms(500)
    await (host.stop() if how == "stop" else host.kill())
    client = await host.start_connected()
    await host.sleep_ms(70_000)
    for message in await client.pull():
        await client.request("ack", {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"]})
    await client.put("x" * 4000, host.now_ms)
    await host.sleep_ms(70_000)
    assert host.server.parts.broker.core.status()["open_windows"] == 0
    host.server.parts.broker.core.retention.retire(host.clock.now_us() + 7_200_000_000)
    assert len(host.disk.files("/data/broker/store/")) <= 2


async def test_a_node_that_was_not_reachable_hears_of_complete_windows_later(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    node = host.fake()
    await (await host.client()).put("m", host.now_ms)
    await host.until(lambda: node.texts == ["m"])
    node.up = False
    await host.sleep_ms(130_000)
    assert not node.complete
    node.up = True
    await host.until(lambda: bool(node.complete), within_ms=15_000)


async def test_complete_windows_that_a_node_has_not_heard_of_are_bounded(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.dispatch.complete_windows.UNDECLARED_MAX", 2)
    host = await boot.started(faked_settings())
    client, node = await host.client(), host.fake()
    first_ms = host.now_ms // 60_000 * 60_000
    for window in range(4):
        await client.put(str(window), first_ms + window * 60_000 + 50_000)
    node.slow_to_hear = trio.Event()
    await host.until(lambda: len(node.stored) == 4, within_ms=300_000)
    await host.sleep_ms(130_000)
    node.slow_to_hear = None
    await host.until(lambda: bool(node.complete), within_ms=15_000)
    assert node.complete == [first_ms + 2 * 60_000, first_ms + 3 * 60_000], "the newest"


async def test_slewing_is_no_step(boot: Boot) -> None:
    host = await boot.started()
    for _ in range(100):
        host.clock.step(1)
        await host.sleep_ms(50)
    assert host.status()["clock"]["steps"] == 0
    host.clock.step(-5_000)
    await host.sleep_ms(600)
    clock = host.status()["clock"]
    assert clock["steps"] == 1
    assert abs(clock["step_last_ms"] + 5_000) <= 20


async def test_after_a_step_of_the_clock_due_rows_on_disk_are_loaded_at_once(boot: Boot) -> None:
    """Rule 2: within a second. So it is not left to the loader's own look, which comes once in a second."""
    host, client = await boot.connected(
        small_settings(groups=(fake_group("g", "fake"),), routes=(RouteSettings("*", ("g",)),))
    )
    await client.send(
        *[{"subject": "s", "body": f"{hour}", "due_ms": host.now_ms + hour * 3_600_000} for hour in (1, 2, 3)]
    )
    await host.settled()
    for offset_ms in (100, 450, 800):
        await host.sleep_ms(1_000 - host.clock.monotonic_us() // 1000 % 1_000 + offset_ms)
        stored = len(host.fake("fake").stored)
        host.clock.step(3_600_000)
        await host.until(lambda stored=stored: len(host.fake("fake").stored) == stored + 1, within_ms=500)  # type: ignore[misc]
