"""After a downtime: overdue windows leave together, and fresh messages take turns with them."""

from __future__ import annotations

import errno
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.dispatch.delivery import by_file, shipments
from delayserver.replay import day_drain
from delayserver.replay.day_drain import by_windows
from delayserver.server.delay_server import DelayServer
from delayserver.state.memory.rows import ROW
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import MessageBatch
from tests.delayserver.replay.test_day_tier import drain_slowly
from tests.fakes.host import Boot, Client, Host, faked_settings
from wheel.due_rows import DueRows

MINUTE_MS = 60_000
DAY_MS = 86_400_000


async def put_over_minutes(client: Client, first_ms: int, minutes: int, each: int = 1) -> None:
    for minute in range(minutes):
        await client.send(
            *[
                {"subject": "s", "body": f"old {minute} {row}", "due_ms": first_ms + minute * MINUTE_MS + row}
                for row in range(each)
            ]
        )


async def down_for(host: Host, duration_ms: int) -> DelayServer:
    """Stop cleanly, and start when the time has passed."""
    await host.settled()
    await host.stop()
    host.clock.step(duration_ms)
    return await host.start()


async def test_rows_of_many_overdue_minutes_are_read_together_and_leave_in_few_hand_overs(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    await put_over_minutes(await host.client(), host.now_ms + 5 * MINUTE_MS, 80)
    runs: list[int] = []

    async def counting(name: str, work: Any) -> Any:
        if name == "_read_many":
            runs.append(len(work.args[0]))
        return work()

    host.workers.around = counting
    await down_for(host, 2 * 3_600_000)
    before = len(host.fake().attempts)
    await host.until(lambda: len(host.fake().stored) == 80, within_ms=10_000)
    assert len(host.fake().attempts) - before <= 4
    assert runs and max(runs) == 80
    assert sorted(set(host.fake().stored)) == sorted(host.fake().stored)
    await host.balanced(pending=0)


@pytest.mark.parametrize("workers", [1, 2, 8])
async def test_fresh_messages_take_turns_with_the_backlog_from_the_first_moment(boot: Boot, workers: int) -> None:
    host = await boot.started(faked_settings(dispatch={"batch_messages_max": 10, "workers": workers}))
    await put_over_minutes(await host.client(), host.now_ms + 5 * MINUTE_MS, 60, 20)
    host.fake().delay_ms = 20  # so that the backlog takes a while
    await down_for(host, 2 * 3_600_000)
    client = await host.client()
    due: dict[str, int] = {}
    while len(host.fake().stored) < 600:
        body = f"fresh {len(due)}"
        due[body] = host.now_ms + 5
        await client.put(body, due[body])
        await host.sleep_ms(30)
    await host.until(lambda: len(host.fake().stored) == 1_200 + len(due), within_ms=60_000)
    fake = host.fake()
    late_ms = [
        fake.at_us[sequence] / 1_000 - due[fake.bodies[sequence].decode()]
        for sequence in fake.stored
        if fake.bodies[sequence].decode() in due
    ]
    assert len(late_ms) == len(due) >= 5
    assert max(late_ms) < 100 + 20 * 2
    assert len(set(fake.stored)) == len(fake.stored)


async def test_a_backlog_and_a_minute_larger_than_memory_take_turns(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(
        faked_settings(wheel={"rows_max": 50}, dispatch={"batch_messages_max": 10, "workers": 3})
    )
    host.clock.step(MINUTE_MS - host.now_ms % MINUTE_MS)
    await put_over_minutes(client, host.now_ms + 5 * MINUTE_MS, 40, 12)
    fresh = [host.now_ms + 60 * MINUTE_MS + 2_000 + 100 * row for row in range(500)]
    await client.send(*[{"subject": "s", "body": "fresh", "due_ms": due_ms} for due_ms in fresh])
    host.fake().delay_ms = 20
    fresh_from_ms = fresh[0] // MINUTE_MS * MINUTE_MS
    turns: list[bool] = []

    async def counting(name: str, work: Any) -> Any:
        if name in ("read", "_read_many"):
            window_ms = work.args[0] if name == "read" else max(work.args[0])
            turns.append(window_ms >= fresh_from_ms)
        return work()

    host.workers.around = counting
    await down_for(host, fresh[0] - 1_000 - host.now_ms)
    fake = host.fake()
    await host.until(lambda: fake.texts.count("fresh") == 500, within_ms=90_000)
    late_ms = [fake.at_us[one] / 1_000 - fake.due_ms[one] for one in fake.stored if fake.bodies[one] == b"fresh"]
    assert max(late_ms) < 500
    assert len(fake.stored) == len(set(fake.stored)) == 980, "the backlog left meanwhile"
    assert turns.count(True) < 500 / 5 and turns.count(False) < 480 / 5, "each load brings many rows that stay"
    await host.balanced(pending=0)


async def test_a_stop_in_the_middle_of_a_backlog_is_clean_and_the_next_start_delivers_the_rest_once(boot: Boot) -> None:
    host = await boot.started(faked_settings(dispatch={"batch_messages_max": 10, "workers": 2}))
    await put_over_minutes(await host.client(), host.now_ms + 5 * MINUTE_MS, 60, 5)
    host.fake().delay_ms = 50
    await down_for(host, 2 * 3_600_000)
    await host.until(lambda: 50 <= len(host.fake().stored) < 200, within_ms=20_000)
    begin_us = host.clock.monotonic_us()
    await host.stop()
    assert host.clock.monotonic_us() - begin_us < 2_000_000
    await host.start()
    await host.until(lambda: len(host.fake().stored) >= 300, within_ms=60_000)
    await host.settled()
    assert sorted(host.fake().stored) == sorted(set(host.fake().stored))
    assert not host.fake().uncertain
    host.check_balance(pending=0)


async def test_in_a_hand_over_of_many_files_only_unreadable_rows_wait(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = await boot.started(faked_settings())
    await put_over_minutes(await host.client(), host.now_ms + 5 * MINUTE_MS, 20)
    server = await down_for(host, 2 * 3_600_000)
    gather = server.parts.files.schedule.gather
    lost: set[ScheduleKey] = set()

    def failing(key: ScheduleKey, *places: Any) -> memoryview:
        lost.add(key) if not lost else None
        if key in lost:
            raise KeyError(key)
        return gather(key, *places)

    monkeypatch.setattr(server.parts.files.schedule, "gather", failing)
    await host.until(lambda: len(host.fake().stored) == 19, within_ms=10_000)
    monkeypatch.setattr(server.parts.files.schedule, "gather", gather)
    await host.until(lambda: len(host.fake().stored) == 20, within_ms=3 * MINUTE_MS)
    assert len(set(host.fake().stored)) == 20


async def test_a_cancel_while_overdue_windows_are_read_holds(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    host, client = await boot.connected(faked_settings())
    first_ms = host.now_ms + 5 * MINUTE_MS
    results = [await client.put(str(minute), first_ms + minute * MINUTE_MS) for minute in range(30)]
    await host.settled()
    await host.stop()
    reading, go_on = trio.Event(), trio.Event()

    async def slow(name: str, work: Callable[[], Any]) -> Any:
        done = work()
        if name == "_read_many":
            reading.set()
            await go_on.wait()
        return done

    host.workers.around = slow
    host.clock.step(2 * 3_600_000)
    await host.start()
    with trio.fail_after(60):
        await reading.wait()
    client = await host.client()
    outcomes = await client.cancel(*[result["receipt"] for result in results[10:20]])
    assert outcomes == ["cancelled"] * 10
    go_on.set()
    await host.until(lambda: len(host.fake().stored) == 20, within_ms=10_000)
    await host.settled()
    assert len(set(host.fake().stored)) == 20
    host.check_balance(pending=0)


async def test_a_day_of_many_minutes_is_drained_in_steps_between_which_fresh_messages_are_replayed(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(day_drain, "DRAIN_FILES", 4, raising=False)
    host = await boot.started(faked_settings())
    far_ms = (host.now_ms // DAY_MS + 4) * DAY_MS + 3_600_000
    await put_over_minutes(await host.client(), far_ms, 40)
    server = await down_for(host, far_ms + 2 * 3_600_000 - host.now_ms)
    files: list[int] = []
    place = server.parts.replay.placing.place_drained

    async def counting(batch: MessageBatch) -> Any:
        done = await place(batch)
        files.append(len(done.placed))
        return done

    monkeypatch.setattr(server.parts.replay.placing, "place_drained", counting)
    await host.until(lambda: len(host.fake().stored) == 40, within_ms=30_000)
    assert max(files) <= 4 and sum(files) == 40
    await host.until(lambda: not server.parts.files.days.draining(), within_ms=30_000)
    assert len(set(host.fake().stored)) == 40
    await host.balanced(pending=0)


@pytest.mark.parametrize("seed", range(10))
def test_a_batch_cut_by_windows_keeps_every_row_in_sequence_order(seed: int) -> None:
    chance = np.random.default_rng(seed)
    count = int(chance.integers(1, 60))
    due_ms = chance.integers(0, 30, count) * MINUTE_MS + chance.integers(0, MINUTE_MS, count)
    batch = MessageBatch.filled(count, sequence=np.arange(1, count + 1), due_ms=due_ms)
    windows_max = int(chance.integers(1, 9))
    parts = by_windows(batch, MINUTE_MS, windows_max)
    windows = [set((part.due_ms // MINUTE_MS).tolist()) for part in parts]
    assert all(len(some) <= windows_max for some in windows)
    assert all(max(before) < min(after) for before, after in pairwise(windows))
    assert all(bool((np.diff(part.sequence) > 0).all()) for part in parts)
    assert sorted(value for part in parts for value in part.sequence.tolist()) == list(range(1, count + 1))


def due_rows(chance: Random, count: int) -> DueRows:
    payload = np.zeros(count, dtype=ROW)
    payload["window_ms"] = [chance.randrange(4) * MINUTE_MS for _ in range(count)]
    payload["source"] = [chance.choice([ScheduleSource.DIRECT, ScheduleSource.FROM_DAY]) for _ in range(count)]
    payload["uncertain"] = [chance.random() < 0.3 for _ in range(count)]
    payload["subject"] = [chance.randrange(3) for _ in range(count)]
    return DueRows(payload["window_ms"] + 5, np.arange(count, dtype=np.int64), payload)


def files_of(rows: DueRows) -> Iterator[tuple[int, int]]:
    yield from zip(rows.payload["window_ms"].tolist(), rows.payload["source"].tolist(), strict=True)


@pytest.mark.parametrize("seed", range(30))
def test_certain_rows_go_together_and_so_do_uncertain_ones(seed: int) -> None:
    chance = Random(seed)
    rows = due_rows(chance, chance.randrange(1, 40))
    parts = shipments(rows)
    assert sorted(value for part in parts for value in part.rows.sequence.tolist()) == list(range(len(rows)))
    assert [part.uncertain for part in parts] in ([False], [True], [False, True])
    for part in parts:
        assert set((part.rows.payload["uncertain"] != 0).tolist()) == {part.uncertain}
        files: Collection[tuple[int, int]] = set(files_of(part.rows))
        assert part.mixed == (len(files) > 1)
        single = by_file(part)
        assert len(single) == len(files) and not any(one.mixed for one in single)
        assert {(one.window_ms, int(one.source)) for one in single} == files


async def test_a_day_without_outcomes_is_finished_while_outcomes_of_others_wait_for_room(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A round of replay would wait until thousands of dispatch files are written."""
    monkeypatch.setattr(day_drain, "DRAIN_FILES", 1)
    monkeypatch.setattr(day_drain, "PIECES_MAX", 1)
    host = await boot.started(faked_settings())
    far_ms = (host.now_ms // DAY_MS + 4) * DAY_MS
    await put_over_minutes(await host.client(), far_ms + 3_600_000, 3)
    await host.settled()
    await host.stop()
    drain_slowly(host, 2_000)
    host.clock.step(3 * DAY_MS)
    server = await host.start()
    days = server.parts.files.days
    await host.until(lambda: days.is_draining(far_ms), within_ms=60_000)
    host.disk.refuse = lambda operation, path: errno.ENOSPC * (operation == "pwrite" and "/dispatch_log/" in path)
    await (await host.client()).put("m", host.now_ms)
    await host.until(lambda: server.parts.state.decided.rows_waiting == 1)
    assert days.is_draining(far_ms)
    await host.until(lambda: days.is_drained(far_ms), within_ms=60_000)
    assert server.parts.state.decided.rows_waiting == 1
    host.disk.refuse = None
