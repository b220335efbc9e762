"""Rule 5 on coarse days: sealed and drained by durable state, never by the clock; nothing lost, doubled or miscounted."""

from __future__ import annotations

import errno
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
import trio

from delayserver.config.settings import Settings
from delayserver.replay.day_outcomes import DayOutcomes
from delayserver.server.delay_server import DelayServer
from delayserver.state.replay_round import Round
from store.failed_reads import PATIENCE_MS
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.schedule_log import ScheduleSource
from store.records.batches import I64, MessageBatch, OutcomeBatch
from store.records.file_header import FILE_DISPATCH, FILE_HEADER_BYTES, FILE_SCHEDULE, FileHeader
from store.records.record import HEADER_BYTES, decode_header
from store.tables.days import DayTable
from tests.fakes.disk import SimulatedCrash
from tests.fakes.host import Boot, Client, Host, faked_settings
from tests.fakes.workers import PlacesOfReads
from wheel.keys import Key

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


def coarse_settings(**parts: dict[str, object]) -> Settings:
    """Days are fine from an hour before they start."""
    storage = {"fine_horizon_ms": HOUR_MS} | parts.pop("storage", {})
    return faked_settings(storage=storage, **parts)


def drain_slowly(host: Host, pause_ms: int) -> None:
    """From the next start on, a pause after each slice of a day, so that other things happen in between."""

    def slow(server: DelayServer) -> None:
        step = server.parts.replay.tier.step

        async def slowly() -> None:
            await step()
            await host.sleep_ms(pause_ms)

        server.parts.replay.tier.step = slowly  # type: ignore[method-assign]

    host.before_run = slow


def sources(host: Host) -> dict[ScheduleSource, int]:
    """Rows by source of their file."""
    schedule = host.server.parts.files.schedule
    rows = dict.fromkeys(ScheduleSource, 0)
    for key in schedule.keys():
        rows[key.source] += schedule.rows(key)
    return rows


async def put_far(host: Host, client: Client, count: int = 20) -> int:
    """Messages of one day, two days from now, some of them copies and cancelled; returns the day's start."""
    start_ms = (host.now_ms // DAY_MS + 2) * DAY_MS
    receipts = []
    for i in range(count):
        receipts.append((await client.put(str(i), start_ms + HOUR_MS + i * 4_000, message_id=f"id{i}"))["receipt"])
        await host.sleep_ms(5)  # a record each
    await client.put("copy", start_ms + HOUR_MS + 4_000, message_id="id1")
    assert await client.cancel(receipts[2], receipts[3]) == ["cancelled"] * 2
    await host.settled()
    return start_ms


def check_done(host: Host, count: int = 20) -> None:
    """Everything but the cancelled and the copy was delivered once."""
    texts = host.fake().texts
    assert sorted(texts, key=int) == [str(i) for i in range(count) if i not in (2, 3)]
    status = host.check_balance(pending=0)
    assert (status["accepted"], status["cancelled"], status["deduplicated"]) == (count + 1, 2, 1)


async def test_far_messages_rest_in_one_file_a_day_and_reach_their_minutes_in_time(boot: Boot) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    assert sources(host) == {ScheduleSource.DIRECT: 0, ScheduleSource.FROM_DAY: 0, ScheduleSource.DAY: 21}
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(40_000)
    assert sources(host) == {ScheduleSource.DIRECT: 0, ScheduleSource.FROM_DAY: 21, ScheduleSource.DAY: 0}
    host.check_balance(pending=18)
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=120_000)
    await host.settled()
    check_done(host)


async def test_a_day_that_comes_near_while_the_server_is_down_is_drained_late_and_balances(boot: Boot) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    await host.stop()
    host.clock.step(start_ms + 3 * HOUR_MS - host.now_ms)
    await host.start()
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=60_000)
    await host.sleep_ms(1_000)
    await host.settled()
    check_done(host)
    await host.restart()
    check_done(host)


async def test_while_a_day_drains_its_windows_can_be_loaded_already(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slice of the day at a time: windows are loaded, delivered and complete while others still lie in the day."""
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 1)
    host = boot(coarse_settings())
    drain_slowly(host, 100)
    await host.start()
    start_ms = await put_far(host, await host.client())
    await host.stop()
    host.clock.step(start_ms + HOUR_MS + 40_000 - host.now_ms)
    await host.start()
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=400_000)
    await host.sleep_ms(2_000)
    await host.settled()
    check_done(host)
    await host.restart_killed()
    check_done(host)


async def test_a_refill_leaves_unpublished_rows_of_a_drained_day_to_their_publication(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 5)
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    await host.stop()
    host.clock.step(start_ms + 3 * HOUR_MS - host.now_ms)
    server = await host.start()
    place, refills = server.parts.replay.placing.place_drained, 0

    async def place_and_refill(batch: MessageBatch) -> Round:
        nonlocal refills
        done = await place(batch)
        (group,) = server.parts.dispatch.groups
        group.rows.advance_released(Key(host.now_ms, 0))
        for placed in done.placed:
            group.rows.spilled.add(placed.key.start_ms)
            await server.parts.load.refill.read_back(group.rows, None)
            refills += 1
        return done

    monkeypatch.setattr(server.parts.replay.placing, "place_drained", place_and_refill)
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=60_000)
    await host.sleep_ms(1_000)
    await host.settled()
    check_done(host)
    assert refills


async def test_a_record_after_the_seal_goes_to_its_minute_while_the_day_drains(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 1)
    host = boot(coarse_settings())
    drain_slowly(host, 100)
    client = await host.start_connected()
    start_ms = await put_far(host, client)
    due_ms = start_ms + 23 * HOUR_MS
    assert (await client.put("early", due_ms, message_id="x"))["sequence"]
    await host.settled()
    await host.sleep_ms(2_000)
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.until(lambda: sources(host)[ScheduleSource.FROM_DAY] > 5, within_ms=40_000)
    assert host.server.parts.files.days.draining(), "the day was drained before the test could send"
    await client.put("late", due_ms, message_id="y")
    await client.put("copy of early", due_ms, message_id="x")
    await host.until(lambda: not host.server.parts.files.days.draining(), within_ms=40_000)
    await host.settled()
    rows = sources(host)
    assert rows[ScheduleSource.DIRECT] == 2
    assert rows[ScheduleSource.FROM_DAY] == 22
    assert host.check_balance()["deduplicated"] == 2


async def test_messages_cancelled_in_a_day_stay_cancelled_when_their_rows_leave_memory_while_it_drains(
    boot: Boot,
) -> None:
    host = await boot.started(
        coarse_settings(dispatch={"queue_rows_max": 2, "backoff_ms_min": 10, "backoff_ms_max": 50})
    )
    start_ms = await put_far(host, await host.client())
    await host.stop()
    host.clock.step(start_ms + 3 * HOUR_MS - host.now_ms)
    drain_slowly(host, 30_000)
    host.fake().up = False
    await host.start()
    await host.sleep_ms(3_000)
    assert host.server.parts.files.days.draining()
    host.fake().up = True
    await host.until(lambda: len(host.fake().stored) >= 18, within_ms=20_000)
    assert host.server.parts.files.days.draining()
    await host.sleep_ms(60_000)
    await host.settled()
    check_done(host)


async def test_the_copy_of_a_coarse_message_is_suppressed_after_the_day_was_drained(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings())
    start_ms = await put_far(host, client)
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(40_000)
    again = await client.find((await client.put("again", start_ms + HOUR_MS, message_id="id0"))["receipt"])
    cancelled_id = await client.find(
        (await client.put("again", start_ms + HOUR_MS + 8_000, message_id="id2"))["receipt"]
    )
    assert again["outcome"] == cancelled_id["outcome"] == "deduplicated"
    assert (await host.balanced(pending=18))["deduplicated"] == 3


@pytest.mark.parametrize("power", [False, True])
async def test_a_crash_at_any_operation_of_sealing_and_draining_changes_nothing(boot: Boot, power: bool) -> None:
    crashed = 0
    for operations in range(2, 110, 6):
        host = await boot.started(coarse_settings(), name=f"host{operations}")
        start_ms = await put_far(host, await host.client(), 6)
        await host.sleep_ms(1_100)
        await host.kill()
        host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
        host.disk.crash_after(operations)
        await host.start()  # it seals and drains at once
        await host.sleep_ms(500)
        crashed += host.disk.dead
        await (host.lose_power(operations) if power else host.kill())
        await host.start()
        await host.sleep_ms(500)
        assert sources(host)[ScheduleSource.DAY] == 0, operations
        assert not host.server.damage.corruption, operations
        host.check_balance(pending=4)
        host.clock.step(start_ms + 2 * HOUR_MS - host.now_ms)
        await host.until(lambda host=host: len(host.fake().stored) == 4, within_ms=2_000)  # type: ignore[misc]
        await host.settled()
        check_done(host, 6)
        await host.kill()
    assert crashed > 5


async def test_a_checkpoint_lost_while_a_day_drains_gives_the_same_balance(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 1)
    host = boot(coarse_settings())
    drain_slowly(host, 100)
    await host.start()
    start_ms = await put_far(host, await host.client())
    await host.sleep_ms(1_500)
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.until(lambda: sources(host)[ScheduleSource.FROM_DAY] > 5, within_ms=40_000)
    await host.kill()
    host.disk.remove("/data/checkpoint")
    await host.start()
    assert host.server.parts.opened.found.lost
    host.check_balance(pending=18)
    await host.sleep_ms(40_000)
    host.check_balance(pending=18)
    await host.kill()
    host.disk.remove("/data/checkpoint")
    await host.start()
    assert host.check_balance(pending=18)["accepted"] == 21


async def test_after_a_crash_messages_that_a_drained_day_may_have_attempted_are_uncertain(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The day drains late, its rows are handed over at once, and power is lost before its minutes are synced."""
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 1)
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    await host.stop()
    host.clock.step(start_ms + 3 * HOUR_MS - host.now_ms)
    fake = host.fake()
    fake.stores_before_failing, fake.up, fake.known_failures = True, False, False
    drain_slowly(host, 50)
    await host.start()
    await host.until(lambda: len(fake.stored) >= 8, within_ms=60_000)
    seen = set(fake.stored)
    await host.lose_power(4)
    fake.stored.clear()
    fake.uncertain.clear()
    await host.start()
    await host.until(lambda: set(fake.stored) >= seen, within_ms=60_000)
    assert seen <= fake.uncertain


async def test_a_minute_is_not_retired_while_its_day_drains(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule 10: the day's later slices still have messages of it."""
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 1)
    host, client = await boot.connected(coarse_settings(storage={"retention_ms": 60_000}))
    start_ms = (host.now_ms // DAY_MS + 2) * DAY_MS
    for number in range(6):  # all in one minute
        await client.put(str(number), start_ms + HOUR_MS + number)
        await host.sleep_ms(5)  # a record each
    await host.settled()
    await host.stop()
    host.clock.step(start_ms + 6 * HOUR_MS - host.now_ms)
    drain_slowly(host, 7_000)  # longer than between two looks of retention
    await host.start()
    await host.until(lambda: len(host.fake().stored) == 6, within_ms=120_000)
    await host.sleep_ms(60_000)
    assert host.fake().texts == [str(number) for number in range(6)]
    assert host.check_balance(pending=0)["delivered"] == 6
    await host.restart_killed()
    assert host.check_balance(pending=0)["delivered"] == 6


def damage_record(host: Host, log: str, place: int) -> str:
    """Flip a bit in the columns of a record of a day's file; its path."""
    (path,) = [path for path in host.disk.files(f"/data/{log}") if path.endswith("/day.log")]
    found, position, data = [], 64, host.disk.content(path)
    while position < len(data):
        found.append(position)
        position = decode_header(data[position : position + HEADER_BYTES], position).end
    host.disk.flip_bit(path, found[place] + HEADER_BYTES + 20)
    return path


@pytest.mark.parametrize("restart", [False, True])
async def test_a_damaged_record_of_a_day_holds_back_its_own_rows_only_and_the_file_is_kept(
    boot: Boot, restart: bool
) -> None:
    host, client = await boot.connected(coarse_settings())
    start_ms = await put_far(host, client)
    for body in ("damaged", "98"):
        await client.put(body, start_ms + HOUR_MS)
        await host.settled()
    following = (await client.put("next day", start_ms + DAY_MS + HOUR_MS))["receipt"]
    await host.settled()
    await host.sleep_ms(2_000)
    path = damage_record(host, f"schedule_log/{path_of_day(start_ms)}", -2)
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(70_000)
    assert sources(host)[ScheduleSource.FROM_DAY] == 22
    if restart:
        await host.restart_killed()
        await host.sleep_ms(70_000)
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.until(lambda: len(host.fake().stored) == 19, within_ms=120_000)
    status = await host.balanced(pending=2)
    assert "damaged" not in host.fake().texts
    assert any(path in text for text in status["corruption"])
    assert host.disk.exists(path)
    host.clock.step(start_ms + DAY_MS + HOUR_MS - 2_000 - host.now_ms)
    await host.until(lambda: "next day" in host.fake().texts, within_ms=120_000)
    assert await (await host.client()).lookup(following) == ["delivered"]


def path_of_day(start_ms: int) -> str:
    return datetime.fromtimestamp(start_ms / 1000, UTC).strftime("%Y-%m-%d")


async def test_where_outcomes_of_a_day_are_damaged_nothing_of_it_is_delivered_and_all_else_is(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings())
    start_ms = await put_far(host, client)
    other = (await client.put("other", start_ms + HOUR_MS))["receipt"]
    await host.settled()
    await host.sleep_ms(2_000)
    path = damage_record(host, f"dispatch_log/{path_of_day(start_ms)}", 0)
    await host.restart_killed()
    client = await host.client()
    assert await client.cancel(other) == ["too_late"]
    assert await client.lookup(other) == ["pending"]
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(70_000)
    await client.put("fresh", start_ms + HOUR_MS)
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.sleep_ms(120_000)
    assert host.fake().texts == ["fresh"]
    assert await client.cancel(other) == ["too_late"]
    assert any(path in text for text in host.status()["corruption"])


@pytest.mark.parametrize("restarts", ["before the seal", "behind the seal"])
async def test_outcomes_of_a_day_that_belong_to_another_server_hold_back_the_day_and_end_no_server(
    boot: Boot, restarts: str
) -> None:
    host, client = await boot.connected(coarse_settings())
    start_ms = await put_far(host, client)
    if restarts == "behind the seal":
        drain_slowly(host, 1 << 40)
        await host.restart()
        host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
        await host.until(lambda: host.server.parts.files.days.is_draining(start_ms), within_ms=20_000)
        host.before_run = lambda server: None
    await host.stop()
    (path,) = host.disk.files(f"/data/dispatch_log/{path_of_day(start_ms)}/day.log")
    host.disk.overwrite(path, 0, FileHeader(FILE_DISPATCH, 99, start_ms, DAY_MS).encode())
    await host.start()
    assert host.died_of is None, host.died_of
    client = await host.client()
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(70_000)
    await client.put("fresh", start_ms + HOUR_MS)
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.sleep_ms(120_000)
    assert host.died_of is None, host.died_of
    assert host.fake().texts == ["fresh"]
    assert any(path in text for text in host.status()["corruption"])


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOMEM])
async def test_rows_of_a_day_are_delivered_also_where_the_disk_refused_the_outcomes_of_their_minute(
    boot: Boot, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 1)
    host = await boot.started(coarse_settings())
    client, server = await host.client(), host.server
    due_ms = (host.now_ms // DAY_MS + 2) * DAY_MS + HOUR_MS + 20_000
    await client.put("first", due_ms, message_id="first")
    await host.settled()
    await client.put("second", due_ms + 1, message_id="second")
    await client.put("copy", due_ms + 1, message_id="second")
    await host.settled()
    step, calls, free = server.parts.replay.tier.step, [], trio.Event()

    async def wait() -> None:
        calls.append(host.now_ms)
        if len(calls) > 1:
            await free.wait()
        await step()

    server.parts.replay.tier.step = wait  # type: ignore[method-assign]
    host.clock.step(due_ms - 10_000 - host.now_ms)
    await host.sleep_ms(15_000)
    assert host.fake().texts == ["first"]
    path = server.parts.files.dispatch.path(DispatchKey(due_ms // 60_000 * 60_000, False))
    left = [code] * 2

    def refuse(operation: str, asked: str) -> int:
        return left.pop() if left and operation == "pread" and asked == path else 0

    host.disk.refuse = refuse
    free.set()
    await host.sleep_ms(75_000)
    assert host.died_of is None and not left
    assert host.fake().texts == ["first", "second"]
    status = host.check_balance(pending=0)
    assert (status["accepted"], status["deduplicated"]) == (3, 1)


async def test_outcomes_of_a_day_are_read_beside_the_event_loop(boot: Boot) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    await host.restart()
    (path,) = [path for path in host.disk.files("/data/dispatch_log") if path.endswith("day.log")]
    reads = PlacesOfReads(host.workers, host.disk, path)
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(40_000)
    assert sources(host)[ScheduleSource.DAY] == 0
    assert reads.beside and not reads.on_loop
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=120_000)
    await host.settled()
    check_done(host)


async def test_a_cancel_while_the_outcomes_of_a_day_are_read_for_its_sealing_counts(boot: Boot) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    client = await host.client()
    receipt = (await client.put("last", start_ms + 2 * HOUR_MS))["receipt"]
    await host.settled()
    await host.restart()
    client, begun, go = await host.client(), trio.Event(), trio.Event()

    async def slowly(name: str, work: Callable[[], Any]) -> Any:
        if name == "_index_up_to" and not begun.is_set():
            begun.set()
            result = work()
            await go.wait()
            return result
        return work()

    host.workers.around = slowly
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    with trio.fail_after(60):
        await begun.wait()
    number = await client.ask("cancel", {"receipts": [receipt]})
    await host.sleep_ms(200)
    go.set()
    assert (await client.reply(number))["results"][0]["outcome"] == "cancelled"
    await host.sleep_ms(40_000)
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=120_000)
    host.clock.step(HOUR_MS)
    await host.sleep_ms(60_000)
    assert "last" not in host.fake().texts
    assert host.check_balance(pending=0)["cancelled"] == 3


@pytest.mark.parametrize("log", ["schedule_log", "dispatch_log"])
async def test_a_day_that_the_disk_cannot_read_for_a_moment_is_drained_when_it_can(boot: Boot, log: str) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    (path,) = [name for name in host.disk.files(f"/data/{log}") if name.endswith("/day.log")]
    host.disk.unreadable[path] = [(FILE_HEADER_BYTES, FILE_HEADER_BYTES + HEADER_BYTES)]
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(5_000)
    assert sources(host)[ScheduleSource.DAY] == 21
    del host.disk.unreadable[path]
    await host.sleep_ms(40_000)
    assert sources(host) == {ScheduleSource.DIRECT: 0, ScheduleSource.FROM_DAY: 21, ScheduleSource.DAY: 0}
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=120_000)
    await host.settled()
    check_done(host)


async def test_a_day_of_now_that_the_disk_cannot_read_for_long_loses_no_message(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings())
    start_ms = (host.now_ms // DAY_MS + 2) * DAY_MS
    for number in range(2):  # of one minute: a row that is passed over has no way into it
        await client.put(f"{number}" + "x" * 5_000, start_ms + HOUR_MS + number)
        await host.settled()
    (path,) = [name for name in host.disk.files("/data/schedule_log") if name.endswith("/day.log")]
    await host.stop()
    host.disk.unreadable[path] = [(1_024, 1_032)]
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.start()
    await host.sleep_ms(PATIENCE_MS - 5_000)
    del host.disk.unreadable[path]
    await host.until(lambda: len(host.fake().stored) == 2, within_ms=120_000)
    await host.balanced(pending=0)


async def test_outcomes_that_the_disk_cannot_read_at_the_end_of_a_day_move_to_its_minutes_later(boot: Boot) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    (path,) = [name for name in host.disk.files("/data/dispatch_log") if name.endswith("/day.log")]
    failed: list[str] = []

    async def fail_at_first(name: str, work: Callable[[], Any]) -> Any:
        if name != "_outcomes_by_file" or failed:
            return work()
        failed.append(name)
        host.disk.unreadable[path] = [(FILE_HEADER_BYTES, FILE_HEADER_BYTES + HEADER_BYTES)]
        try:
            return work()
        finally:
            del host.disk.unreadable[path]

    host.workers.around = fail_at_first
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(40_000)
    assert failed
    assert sources(host) == {ScheduleSource.DIRECT: 0, ScheduleSource.FROM_DAY: 21, ScheduleSource.DAY: 0}
    host.clock.step(start_ms + HOUR_MS - 2_000 - host.now_ms)
    await host.until(lambda: len(host.fake().stored) == 18, within_ms=120_000)
    await host.settled()
    check_done(host)


@pytest.mark.parametrize("file", ["day.log", "0100.log"])
async def test_moved_outcomes_count_once_where_the_disk_cannot_read_them_for_a_moment_at_a_start(
    boot: Boot, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())

    def crash(_self: DayTable, _start_ms: int) -> None:
        host.disk.dead = True
        raise SimulatedCrash("between the outcomes of the minutes and the end of the day")

    with monkeypatch.context() as patched:
        patched.setattr(DayTable, "mark_drained", crash)
        host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
        await host.wait_down()
    host.disk.kill()
    opened, until_ms = DayOutcomes.open, host.now_ms + 500

    def refuse(operation: str, path: str) -> int:
        unread = operation == "pread" and path.endswith(f"/{file}") and host.now_ms < until_ms
        return errno.EIO if unread else 0

    def open_outcomes(outcomes: DayOutcomes, *, patient: bool) -> I64:
        host.disk.refuse = refuse
        return opened(outcomes, patient=patient)

    monkeypatch.setattr(DayOutcomes, "open", open_outcomes)
    await host.start()
    assert host.died_of is None
    status = host.check_balance()
    assert (status["cancelled"], status["deduplicated"]) == (2, 1)


async def test_an_outcome_that_is_not_written_yet_makes_no_long_read_on_the_event_loop_when_a_day_is_sealed(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    client = await host.client()
    receipt = (await client.put("last", start_ms + 2 * HOUR_MS))["receipt"]
    await host.settled()
    sealing = trio.Event()
    beside: list[str] = []
    rows_on_loop: list[int] = []
    outcomes = DispatchLog.outcomes

    async def slowly(name: str, work: Callable[[], Any]) -> Any:
        if name == "write":
            with trio.move_on_after(1):
                await sealing.wait()
        beside.append(name)
        try:
            return work()
        finally:
            beside.pop()
            if name == "_index_up_to":
                sealing.set()
                await host.sleep_ms(100)

    def read(log: DispatchLog, key: DispatchKey, *arguments: Any, **rest: Any) -> OutcomeBatch:
        found = outcomes(log, key, *arguments, **rest)
        if key.coarse and not beside:
            rows_on_loop.append(len(found))
        return found

    monkeypatch.setattr(DispatchLog, "outcomes", read)
    host.workers.around = slowly
    assert await client.cancel(receipt) == ["cancelled"]
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(40_000)
    assert sealing.is_set() and not rows_on_loop
    assert host.check_balance()["cancelled"] == 3


async def test_a_day_whose_file_belongs_to_another_server_is_held_back_and_ends_no_server(boot: Boot) -> None:
    host = await boot.started(coarse_settings())
    start_ms = await put_far(host, await host.client())
    await host.stop()
    (path,) = [name for name in host.disk.files("/data/schedule_log") if name.endswith("/day.log")]
    host.disk.overwrite(path, 0, FileHeader(FILE_SCHEDULE, 99, start_ms, DAY_MS).encode())
    await host.start()
    assert host.died_of is None, host.died_of
    client = await host.client()
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    await host.sleep_ms(70_000)
    assert host.died_of is None, host.died_of
    await client.put("fresh", host.now_ms + 1_000)
    await host.sleep_ms(5_000)
    assert host.fake().texts == ["fresh"]
    assert any(path in text for text in host.status()["corruption"])
