"""From a send to the wheel: orders of events, and years, that the simulation does not draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio

from delayserver.load.window_reader import WindowRows
from store.tables.days import DayTable, SealedDay
from tests.delayserver.replay.test_day_tier import DAY_MS, HOUR_MS, coarse_settings
from tests.delayserver.server.test_rare_interleavings import day_after_next
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, faked_settings


async def test_messages_of_a_coarse_day_leave_within_a_second_of_a_resume(boot: Boot) -> None:
    host = await boot.started(coarse_settings())
    due_ms = day_after_next(host) + HOUR_MS
    await (await host.client()).put("m", due_ms)
    await host.settled()
    host.clock.step(due_ms + 1_000 - host.now_ms)  # a laptop that slept over the week-end
    await host.until(lambda: host.fake().texts == ["m"], within_ms=3_000)


async def test_message_log_is_retired_after_the_clock_was_set_back(boot: Boot) -> None:
    host, client = await boot.connected(
        faked_settings(storage={"message_log_segment_bytes": 1 << 14, "message_log_retention_ms": 10_000})
    )
    server = host.server
    for number in range(16):
        await client.put("x" * 4_000 + str(number), host.now_ms)
    await host.settled()
    await host.sleep_ms(7_000)  # the sealed segments were seen
    assert len(server.parts.files.log.segments()) > 2
    host.clock.step(-365 * 24 * HOUR_MS)  # the clock of the board was a year ahead
    await host.sleep_ms(30_000)
    assert len(server.parts.files.log.segments()) == 1


async def test_cursors_of_windows_without_messages_do_not_stay_for_ever(boot: Boot) -> None:
    host = boot(faked_settings(storage={"window_ms": 1_000, "retention_ms": 10_000}))
    server = await host.start()
    await host.sleep_ms(60_000)
    few = len(server.parts.state.windows.cursors.windows())
    await host.sleep_ms(600_000)
    assert len(server.parts.state.windows.cursors.windows()) <= few + 10


@pytest.mark.parametrize("durability", ["sync", "os"])
async def test_a_send_behind_the_deletion_of_the_data_directory_is_not_acknowledged(
    boot: Boot, durability: str
) -> None:
    host, client = await boot.connected(faked_settings(storage={"durability": durability}))
    server = host.server
    await client.put("before", host.now_ms + HOUR_MS)
    await host.settled()
    for path in host.disk.files("/data/"):
        host.disk.remove(path)
    await host.sleep_ms(1)  # for so long the name counts as seen
    message = {"subject": "s", "body": "after", "due_ms": host.now_ms + HOUR_MS}
    assert await client.refused("send", {"messages": [message]}) == "storage_failed"
    await host.wait_down()
    assert "deleted while the server ran" in repr(host.died_of)
    assert server.parts.state.balance.accepted == 1


async def test_a_send_that_may_be_on_disk_is_not_refused_as_if_it_were_gone(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"message_log_segment_bytes": 1 << 14}))
    for _ in range(3):
        await client.put("x" * 5_000, host.now_ms + HOUR_MS)
    await host.settled()
    rows = [{"subject": "s", "due_ms": host.now_ms + HOUR_MS, "body": text * 3_000} for text in "ab"]
    host.disk.capacity_bytes = host.disk.used_bytes + 4096
    host.disk.fail_next_sync("message_log")
    names = [await client.refused("send", {"messages": rows})]
    assert names == ["storage_failed"]


@pytest.mark.parametrize("seed", range(8))
async def test_without_syncs_messages_that_only_schedule_log_kept_are_counted(boot: Boot, seed: int) -> None:
    host, client = await boot.connected(faked_settings(storage={"durability": "os"}))
    server = host.server
    for number in range(4):
        await client.put(str(number), host.now_ms + 600_000 + number * 60_000)
    await host.settled()
    server.parts.files.schedule.sync()  # as the kernel does after some seconds, or a checkpoint beside a round of replay
    server = await host.restart_unpowered(seed)
    rows = sum([server.parts.state.book.rows(start) for start in server.parts.state.book.starts()])
    assert host.check_balance()["accepted"] == rows


async def test_the_reserve_is_taken_again_when_there_is_room_for_it(boot: Boot) -> None:
    host = boot(faked_settings(storage={"dispatch_reserve_bytes": 1 << 20, "free_bytes_min": 1 << 16}))
    server = await host.start()
    reserve = server.parts.files.dispatch.reserve
    assert reserve.held
    reserve.release()  # the disk was full
    host.disk.capacity_bytes = host.disk.used_bytes + (1 << 15)
    await host.sleep_ms(1_000)
    assert server.parts.upkeep.housekeeping.disk_low
    host.disk.capacity_bytes = host.disk.used_bytes + (1 << 17)
    await host.sleep_ms(1_000)
    assert not server.parts.files.dispatch.reserve.held
    host.disk.capacity_bytes = host.disk.used_bytes + (10 << 20)
    await host.sleep_ms(10_000)
    assert reserve.held


async def test_accepted_messages_have_their_room_in_schedule_log_before_more_are_accepted(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"free_bytes_min": 1 << 20}))
    server = host.server
    go_on = trio.Event()
    server.parts.replay.tier.step, server.parts.replay.tier.is_due = go_on.wait, True  # type: ignore[method-assign]
    # As behind by one more of a hundred files.
    server.parts.state.log_queue.arrived.ring()
    await client.put("first", host.now_ms + 60_000)
    host.disk.capacity_bytes = host.disk.used_bytes + (1 << 20) + (1 << 16)
    for _ in range(4):
        await client.put("x" * 20_000, host.now_ms + 60_000)
    await host.sleep_ms(300)
    assert host.disk.free_bytes("/data") >= 1 << 20
    assert server.parts.state.positions.lag_bytes > 1 << 16
    message = {"subject": "s", "body": "x", "due_ms": host.now_ms + 60_000}
    assert await client.refused("send", {"messages": [message]}) == "disk_full"
    host.disk.capacity_bytes += 1 << 20
    await host.sleep_ms(300)
    await client.put("last", host.now_ms + 60_000)
    server.parts.replay.tier.is_due = False
    go_on.set()
    await host.balanced(pending=6)


async def test_a_schedule_file_that_is_gone_does_not_end_the_server(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"open_files_max": 16}))
    server = host.server
    gone_ms = host.now_ms // 60_000 * 60_000 + 600_000
    await client.put("gone", gone_ms)
    for minute in range(1, 30):
        await client.put(str(minute), gone_ms + minute * 60_000)
        await host.settled()
    await host.sleep_ms(2_000)
    path = next(path for path in host.disk.files("/data/schedule_log"))
    host.disk.remove(path)
    host.clock.step(gone_ms + 60_000 - host.now_ms)
    await host.sleep_ms(5_000)
    assert host.died_of is None
    assert any(path in text for text in server.damage.corruption)
    assert host.fake().texts == ["1"]


async def test_a_search_beside_the_removal_of_its_file_ends_without_an_error(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    receipt = (await client.put("m", host.now_ms))["receipt"]
    await client.put("n", host.now_ms)
    await host.sleep_ms(1_000)
    schedule = server.parts.files.schedule
    (key,) = schedule.keys()
    stretches = schedule._finder._stretches

    def removed_meanwhile(*arguments: Any) -> Any:  # on the event loop, while a thread looks
        if key in schedule:
            schedule.remove(key)
        return stretches(*arguments)

    schedule._finder._stretches = removed_meanwhile  # type: ignore[method-assign, assignment]
    assert await client.lookup(receipt) == ["unknown"]


def test_days_that_were_sealed_long_ago_cost_new_messages_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    sealed = {day * DAY_MS: SealedDay(day * DAY_MS, day, True) for day in range(20_000, 20_365)}
    table = DayTable(FakeDisk(), "/days", 20_370 * DAY_MS, sealed)
    due_ms, old = np.full(2, 20_364 * DAY_MS + 5), np.array([20_364, 20_365])
    assert table.coarse_rows(due_ms, old).tolist() == [True, False]  # type: ignore[union-attr]
    monkeypatch.setattr("store.tables.days.day_starts", lambda _due_ms: pytest.fail("a year of days is looked through"))
    assert table.coarse_rows(due_ms, old + 1_000_000) is None


async def test_a_hot_minute_is_not_read_into_memory_at_once(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.logs.schedule_log.INDEX_PART_BYTES", 1 << 12)
    host, client = await boot.connected(faked_settings(wheel={"rows_max": 100}))
    server = host.server
    start_ms = host.now_ms // 60_000 * 60_000 + 300_000
    for part in range(20):
        rows = [{"subject": "s", "due_ms": start_ms + i * 37 % 40_000, "body": f"{part}.{i}"} for i in range(100)]
        await client.send(*rows)
        await host.settled()
    most, read = [0], server.parts.load.window_reader.read

    def measured(*arguments: Any) -> WindowRows:
        found = read(*arguments)
        most[0] = max(most[0], len(found.loaded))
        return found

    server.parts.load.window_reader.read = measured  # type: ignore[method-assign, assignment]
    host.clock.step(start_ms - 20_000 - host.now_ms)
    await host.until(lambda: len(host.fake().texts) == 2_000, within_ms=120_000)
    assert len(set(host.fake().texts)) == 2_000
    await host.balanced(pending=0)
    assert most[0] <= 300
