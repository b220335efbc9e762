"""Orders of events that hardly ever come together, each with what must hold all the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from delayserver.server.delay_server import DelayServer
from delayserver.state.replay_round import Round
from store.errors import DiskFullError
from store.logs.schedule_log import FoundRows, ScheduleKey, ScheduleSource
from store.records.batches import I64, MessageBatch
from store.records.record import HEADER_BYTES, BadRecordError, decode_header
from store.records.segment import FILE_HEADER_BYTES, Appended
from tests.delayserver.replay.test_day_tier import DAY_MS, HOUR_MS, coarse_settings, drain_slowly, put_far, sources
from tests.fakes.host import Boot, Host, faked_settings

NO_CHECKPOINTS: dict[str, object] = {"checkpoint_interval_ms": 1 << 40}


def day_after_next(host: Host) -> int:
    """Its start, in milliseconds: a day that is coarse for now."""
    return (host.now_ms // DAY_MS + 2) * DAY_MS


async def stopped_with_far_message(host: Host) -> int:
    """A life in which a message for a coarse day was taken; its due time."""
    await host.start()
    due_ms = day_after_next(host) + HOUR_MS + 30_000
    await (await host.client()).put("m", due_ms)
    await host.settled()
    await host.sleep_ms(20_000)
    await host.stop()
    return due_ms


def never_finish(host: Host) -> Callable[[DelayServer], None]:
    """Days are drained slowly, and none is given up when its minutes have all of it."""

    def prepare(server: DelayServer) -> None:
        step = server.parts.replay.tier.step

        async def slow() -> None:
            await host.sleep_ms(2_000)
            rows = sources(host)
            if not rows[ScheduleSource.DAY] or rows[ScheduleSource.FROM_DAY] < rows[ScheduleSource.DAY]:
                await step()

        server.parts.replay.tier.step = slow  # type: ignore[method-assign]

    return prepare


async def test_a_message_cancelled_while_its_day_drains_into_a_loaded_window_is_not_delivered(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("delayserver.replay.day_drain.DRAIN_ROWS", 1)
    host, client = await boot.connected(coarse_settings())
    due_ms = day_after_next(host) + HOUR_MS + 30_000
    for text in ("first", "other0", "other1", "other2"):  # a record each
        await client.put(text, due_ms)
        await host.settled()
    last = (await client.put("last", due_ms))["receipt"]
    await host.settled()
    await host.sleep_ms(2_000)
    await host.stop()
    host.clock.step(due_ms - 25_000 - host.now_ms)
    drain_slowly(host, 2_000)
    await host.start()
    await host.until(lambda: sources(host)[ScheduleSource.FROM_DAY] == 2, within_ms=40_000)
    assert await (await host.client()).cancel(last) == ["cancelled"]
    await host.settled()
    await host.sleep_ms(60_000)
    await host.settled()
    assert sorted(host.fake().texts) == ["first", "other0", "other1", "other2"]
    host.check_balance(pending=0)


@pytest.mark.parametrize("seed", range(6))
async def test_messages_delivered_from_a_minute_that_a_crash_lost_do_not_come_again_with_its_day(
    boot: Boot, seed: int
) -> None:
    host = boot(coarse_settings(storage=NO_CHECKPOINTS))
    due_ms = await stopped_with_far_message(host)
    host.clock.step(due_ms - 10_000 - host.now_ms)
    host.before_run = never_finish(host)
    await host.start()
    await host.until(lambda: host.fake().texts == ["m"], within_ms=60_000)
    await host.settled()
    await host.sleep_ms(50)
    await host.restart_unpowered(seed)
    await host.sleep_ms(20_000)
    await host.settled()
    assert host.fake().texts == ["m"]
    assert host.check_balance(pending=0)["delivered"] == 1


async def test_two_cancels_across_the_sealing_of_a_day_are_not_both_answered_cancelled(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings())
    start_ms = day_after_next(host)
    due_ms = start_ms + 20 * HOUR_MS
    receipt = (await client.put("m", due_ms))["receipt"]
    await client.put("n", due_ms)
    assert await client.cancel((await client.put("gone", due_ms))["receipt"]) == ["cancelled"]  # the day has outcomes
    await host.settled()
    await host.stop()
    server = await host.start()  # what memory knows of open messages is gone
    first, second = await host.client(), await host.client()

    async def slow(name: str, work: Any) -> Any:
        if name == "index" and work.args[0].coarse:
            await host.sleep_ms(40_000)  # a large file, a slow disk
        return work()

    host.workers.around = slow
    number = await first.ask("cancel", {"receipts": [receipt]})
    await host.sleep_ms(100)
    host.clock.step(start_ms - HOUR_MS // 2 - host.now_ms)
    days = server.parts.files.days
    await host.until(lambda: days.is_draining(due_ms) or days.is_drained(start_ms), within_ms=35_000)
    assert await second.cancel(receipt) == ["cancelled"]
    await host.settled()
    assert (await first.reply(number))["results"][0]["outcome"] == "already_cancelled"
    assert (await host.balanced(pending=1))["cancelled"] == 2


async def test_a_search_in_a_thread_beside_the_end_of_a_day_finds_its_messages(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings())
    start_ms = await put_far(host, client)
    receipts = [(await client.put(f"n{i}", start_ms + HOUR_MS + i))["receipt"] for i in range(40)]
    await host.settled()
    server = await host.restart()
    client = await host.client()
    server.parts.replay.tier.step = partial(host.sleep_ms, 1_000)  # type: ignore[method-assign]  # the day is drained here
    schedule, until = server.parts.files.schedule, server.parts.files.days.fine_until_ms + 5 * DAY_MS
    find = schedule.find
    ended: list[int] = []

    def held_up(key: ScheduleKey, sequences: I64) -> FoundRows:
        """The worker thread stands still here, while the event loop and the replayer go on."""
        if not ended and key.source == ScheduleSource.DAY:
            ended.append(key.start_ms)
            server.parts.files.days.seal(until, server.parts.state.positions.replayed_sequence.value, [key.start_ms])
            for _, batch in schedule.batches(key):
                assert isinstance(batch, MessageBatch)
                server.parts.replay.placing.place_batch(batch, Round(0, 0), ScheduleSource.FROM_DAY)
            server.parts.files.days.mark_drained(key.start_ms)
            schedule.remove(key)
        return find(key, sequences)

    schedule.find = held_up  # type: ignore[method-assign]
    assert "unknown" not in await client.cancel(*receipts)
    assert ended


async def test_a_clean_stop_remembers_attempts_of_messages_that_only_a_draining_day_holds(boot: Boot) -> None:
    host = boot(coarse_settings(storage=NO_CHECKPOINTS))
    due_ms = await stopped_with_far_message(host)
    host.clock.step(due_ms + 300_000 - host.now_ms)
    fake = host.fake()
    fake.stores_before_failing, fake.up, fake.known_failures = True, False, False

    async def never_sync(name: str, work: Callable[[], Any]) -> Any:
        """The power fails behind the attempt, and before the minute that the message was drained into is durable."""
        if name == "sync":
            await host.sleep_ms(60_000)
        return work()

    host.before_run, host.workers.around = never_finish(host), never_sync
    await host.start()
    await host.until(lambda: len(fake.stored) == 1, within_ms=60_000)
    await host.lose_power(2)
    fake.up, host.workers.around = True, None

    def hold_drain(server: DelayServer) -> None:
        server.parts.replay.tier.step = partial(host.sleep_ms, 1_000)  # type: ignore[method-assign]

    host.before_run = hold_drain
    await host.start()
    await host.sleep_ms(100)
    await host.stop()
    host.before_run = lambda _server: None
    fake.uncertain.clear()
    await host.start()
    await host.until(lambda: host.status()["pending"] == 0, within_ms=60_000)
    assert fake.uncertain == {1}, "the node was asked whether it has it"


@pytest.mark.parametrize("seed", range(6))
async def test_without_syncs_an_outcome_whose_message_is_lost_does_not_stand_for_another(boot: Boot, seed: int) -> None:
    host, client = await boot.connected(faked_settings(storage={"durability": "os"}))
    start_ms = host.now_ms // 60_000 * 60_000 + 60_000
    host.clock.step(start_ms - host.now_ms)
    await client.put("safe", start_ms + 50_000)
    await host.settled()
    await host.sleep_ms(20_000)  # checkpoints know it
    await client.put("x" * 20_000, host.now_ms)
    await host.until(lambda: len(host.fake().texts) == 1)
    await host.settled()
    await host.lose_power(seed)
    host.clock.step(10 * 60_000)
    await host.start()
    await host.until(lambda: "safe" in host.fake().texts, within_ms=10_000)


async def test_a_message_delivered_while_its_round_waited_for_room_cannot_be_cancelled(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    near_ms = (host.now_ms // 60_000 + 3) * 60_000 + 1_000  # its window is loaded soon, and not yet
    far_ms = near_ms + HOUR_MS
    append, full = server.parts.files.schedule.append, [True]

    def append_if_room(key: ScheduleKey, batch: MessageBatch) -> Appended:
        if full and key.start_ms > near_ms:
            raise DiskFullError("no room for another page")
        return append(key, batch)

    server.parts.files.schedule.append = append_if_room  # type: ignore[method-assign]
    results = await client.send(*[{"subject": "s", "due_ms": due, "body": str(due)} for due in (near_ms, far_ms)])
    await host.until(lambda: bool(host.fake().stored), within_ms=240_000)
    await host.sleep_ms(1_000)
    full.clear()
    await host.settled()
    assert await client.cancel(results[0]["receipt"]) == ["delivered"]
    await host.settled()
    assert host.fake().texts == [str(near_ms)]
    host.check_balance(pending=1)


async def test_entries_that_replay_read_before_their_commit_came_back_are_replayed_once(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(faked_settings(storage={"inline_sync_bytes_max": 0}))
    server = host.server
    await client.put("a", host.now_ms + 600_000)
    await host.settled()

    async def late(name: str, work: Callable[[], Any]) -> Any:
        result = work()
        if name == "_append":
            await host.sleep_ms(20)  # the thread is done, and the task that waits for it has not run yet
        return result

    host.workers.around = late
    server.parts.state.log_queue.overflowed = True  # as after more than it may hold in memory
    number = await client.ask("send", {"messages": [{"subject": "s", "due_ms": host.now_ms + 600_000, "body": "b"}]})
    await host.sleep_ms(5)
    server.parts.state.log_queue.arrived.ring()
    await client.reply(number)
    await host.settled()
    await host.sleep_ms(1_000)
    assert host.check_balance(pending=2)["accepted"] == 2


async def test_damage_on_both_sides_of_a_segments_end_does_not_keep_the_server_from_starting(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"message_log_segment_bytes": 1 << 14} | NO_CHECKPOINTS))
    for number in range(12):
        await client.put("x" * 4_000 + str(number), host.now_ms + 600_000)
    await host.settled()
    await host.kill()
    host.disk.remove("/data/checkpoint")
    first, second, *_ = host.disk.files("/data/message_log")
    host.disk.flip_bit(first, records(host, first)[-1] + HEADER_BYTES + 20)
    host.disk.flip_bit(second, records(host, second)[0] + HEADER_BYTES + 20)
    await host.start()
    assert host.died_of is None
    corruption = (await (await host.client()).status())["corruption"]
    assert any(first in text for text in corruption) and any(second in text for text in corruption)


def records(host: Host, path: str) -> list[int]:
    """Where the records of a file begin."""
    data, position, found = host.disk.content(path), FILE_HEADER_BYTES, []
    while position < len(data):
        try:
            header = decode_header(data, position, position)
        except BadRecordError:
            break
        found.append(position)
        position = header.end
    return found


@pytest.mark.parametrize("seed", range(4))
async def test_the_outcome_of_a_late_message_survives_the_crash_that_takes_its_schedule_file(
    boot: Boot, seed: int
) -> None:
    host, client = await boot.connected(faked_settings(storage={"retention_ms": 120_000}))
    server = host.server
    start_ms = host.now_ms
    await client.put("a", start_ms)
    await host.sleep_ms(500)
    host.clock.step(30 * 60_000)
    await host.sleep_ms(12_000)
    assert not server.parts.files.schedule.keys(), "its window is retired"
    other_ms = host.now_ms
    await client.put("b", other_ms)
    await host.settled()
    await host.sleep_ms(1_500)
    host.clock.step(start_ms + 100 - host.now_ms)
    await host.until(lambda: host.now_ms - start_ms > 1_000)
    span = {"from_ms": other_ms - 60_000, "to_ms": other_ms + 60_000, "dry_run": False}
    await client.request("redispatch", span)
    await host.until(lambda: len(host.fake().stored) == 3, within_ms=400)
    await host.settled()
    await host.restart_unpowered(seed)
    await host.sleep_ms(3_000)
    await host.settled()
    assert host.fake().stored == [1, 2, 3]


async def test_a_lookup_across_the_whole_end_of_a_day_knows_what_became_of_its_messages(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings())
    server = host.server
    due_ms = day_after_next(host) + HOUR_MS
    receipt = (await client.put("m", due_ms))["receipt"]
    assert await client.cancel(receipt) == ["cancelled"]
    await host.settled()
    held: list[str] = []

    async def around(name: str, work: Callable[[], Any]) -> Any:
        if name == "index" and not held:  # all threads are busy while the day moves to its minutes
            held.append(name)
            host.clock.step(due_ms - HOUR_MS - host.now_ms)
            await host.until(lambda: server.parts.files.days.is_drained(due_ms - HOUR_MS))
        return work()

    host.workers.around = around
    assert await client.lookup(receipt) == ["cancelled"]
    assert held
