"""Rule 2: never early, by the server's clock at the moment of hand-off, whatever the clock does; overdue at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import trio

from delayserver.config.units import format_utc
from delayserver.protocol.columns import pack_column
from delayserver.runtime.turns import STEP_US
from delayserver.state.replay_round import Round
from store.errors import CorruptionError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import ScheduleSource
from store.records.batches import MessageBatch
from tests.fakes.host import Boot, faked_settings
from wheel.keys import Key


async def test_nothing_is_handed_over_before_it_is_due_and_all_within_a_millisecond_or_two(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    start_ms = host.now_ms
    for delay_ms in (1, 7, 9, 10, 11, 99, 250, 1_000, 1_001, 59_999, 60_000, 61_003):
        await client.put(f"{delay_ms}", start_ms + delay_ms)
    await host.until(lambda: len(host.fake().stored) == 12, within_ms=70_000)
    fake = host.fake()
    for sequence in fake.stored:
        late_us = fake.at_us[sequence] - fake.due_ms[sequence] * 1_000
        assert 0 <= late_us <= 3_000, fake.bodies[sequence]
    assert fake.texts == sorted(fake.texts, key=int)


async def test_rows_that_become_due_one_after_the_other_are_handed_over_each_at_its_own_moment(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    for _ in range(10):
        # Of these the wheel gives out more than one at once.
        await client.send(
            *[{"subject": "s", "body": str(due), "due_ms": due} for due in range(host.now_ms, host.now_ms + 4)]
        )
        await host.sleep_ms(50)
    await host.until(lambda: len(host.fake().stored) == 40, within_ms=3_000)
    fake = host.fake()
    late_us = [fake.at_us[sequence] - fake.due_ms[sequence] * 1_000 for sequence in fake.stored]
    # They are taken from the wheel a moment before; none of them may wait for the one behind it.
    assert min(late_us) >= 0 and max(late_us) < 1_000, late_us
    assert fake.texts == sorted(fake.texts, key=int)


async def test_a_large_step_does_not_begin_just_before_a_small_batch_is_due(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 1_000
    await client.put("m", due_ms)
    await host.settled()
    await host.sleep_ms(due_ms - host.clock.now_us() / 1_000 - STEP_US / 2_000)
    assert next(iter(host.server.parts.dispatch.groups)).rows.running and not host.fake().attempts
    await host.server.turns.take()
    (attempt_us,) = host.fake().attempts
    assert attempt_us >= due_ms * 1_000


async def test_a_step_back_while_a_batch_waits_for_its_moment_hands_nothing_over_early(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 1_000
    receipt = (await client.put("m", due_ms))["receipt"]
    await host.settled()
    group = next(iter(host.server.parts.dispatch.groups))
    while not group.rows.running:
        await host.sleep_ms(0.1)
        assert host.clock.now_us() < due_ms * 1_000, "it must be ready before it is due"
    assert await client.lookup(receipt) == ["pending"], "no attempt runs before the due time"
    host.clock.step(-5_000)
    await host.sleep_ms(4_000)
    assert host.fake().stored == []
    await host.until(lambda: host.fake().texts == ["m"], within_ms=3_000)
    assert host.fake().at_us[host.fake().stored[0]] >= due_ms * 1_000


async def test_a_message_due_in_the_past_leaves_at_once_and_its_lateness_counts_from_acceptance(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    await client.put("old", host.now_ms - 3_600_000)
    await host.until(lambda: host.fake().texts == ["old"], within_ms=1_000)
    assert (await client.status())["lateness_ms"]["max"] < 10


@pytest.mark.parametrize("step_ms", [3_600_000, 30_000, 2_000])
async def test_after_a_step_forward_overdue_messages_leave_within_a_second(boot: Boot, step_ms: int) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = [host.now_ms + step_ms * part // 4 for part in range(1, 5)]
    for due in due_ms:
        await client.put(str(due), due)
    await host.settled()
    host.clock.step(step_ms)
    await host.until(lambda: len(host.fake().stored) == 4, within_ms=1_000)
    await host.sleep_ms(500)
    status = await client.status()
    assert status["clock"]["steps"] == 1
    assert abs(status["clock"]["step_last_ms"] - step_ms) < 2
    assert status["early"] == 0


async def test_nothing_is_attempted_that_no_durable_checkpoint_covers(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    await (await host.client()).put("m", host.now_ms + 600_000)
    await host.settled()

    async def busy_disk(name: str, work: Callable[[], Any]) -> Any:
        if name in ("_save", "move_horizon"):  # of a checkpoint
            await host.sleep_ms(6_000)
        return work()

    host.workers.around = busy_disk
    host.clock.step(600_000)
    await host.sleep_ms(5_000)
    assert host.fake().attempts == []
    await host.until(lambda: host.fake().texts == ["m"], within_ms=2_000)


@pytest.mark.parametrize("unwritten", [False, True], ids=["alone", "behind-an-unwritten-outcome"])
async def test_a_full_disk_holds_no_delivery_back(boot: Boot, unwritten: bool) -> None:
    host, client = await boot.connected(faked_settings())
    start_ms = host.now_ms // 60_000 * 60_000 + 60_000
    if unwritten:
        await client.put("early", start_ms)
    await client.put("late", start_ms + 50_000)
    await host.settled()
    await host.sleep_ms(start_ms - 1_000 - host.now_ms)
    host.disk.capacity_bytes = 0
    await host.sleep_ms(60_000)
    assert host.fake().texts[-1] == "late"


@pytest.mark.parametrize("step_ms", [-1_500, -60_000, -7_200_000])
async def test_after_a_step_back_nothing_is_early_by_the_new_time(boot: Boot, step_ms: int) -> None:
    host, client = await boot.connected(faked_settings())
    start_ms = host.now_ms
    for delay_ms in (500, 1_000, 1_600):
        await client.put(str(delay_ms), start_ms + delay_ms)
    await host.sleep_ms(900)
    assert host.fake().texts == ["500"]
    host.clock.step(step_ms)
    await client.put("soon", host.now_ms + 100)
    await host.until(lambda: "soon" in host.fake().texts, within_ms=1_000)
    assert "1000" not in host.fake().texts
    await host.sleep_ms(400)
    host.clock.step(-step_ms)
    await host.until(lambda: len(host.fake().stored) == 4, within_ms=2_000)
    fake = host.fake()
    assert len(set(fake.stored)) == 4
    assert all(fake.at_us[sequence] >= fake.due_ms[sequence] * 1_000 for sequence in fake.stored)
    await host.balanced(pending=0)


async def test_rows_released_before_a_step_back_return_to_the_wheel_and_wait(boot: Boot) -> None:
    """The group holds them while its node pauses; the clock goes back before the next attempt."""
    host, client = await boot.connected(
        faked_settings(dispatch={"backoff_ms_min": 1_000, "backoff_ms_max": 1_000, "breaker_failures": 50})
    )
    fake = host.fake()
    fake.up = False
    due_ms = host.now_ms + 100
    for number in range(3):
        await client.put(str(number), due_ms)
    await host.until(lambda: bool(fake.attempts), within_ms=1_000)
    fake.up = True
    host.clock.step(-10_000)
    await host.sleep_ms(3_000)
    assert not fake.stored
    await host.until(lambda: len(fake.stored) == 3, within_ms=10_000)
    assert all(at_us >= due_ms * 1_000 for at_us in fake.at_us.values())
    await host.balanced(pending=0)


async def test_a_delay_is_resolved_by_the_server_on_arrival_rounded_up(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    await host.sleep_ms(0.4)
    before_us = host.clock.now_us()
    (result,) = await client.send({"subject": "s", "body": "m", "delay_ms": 50})
    assert before_us + 50_000 <= result["due_ms"] * 1_000 <= before_us + 52_000
    columns = {"count": 2, "subject": "s", "delay_ms": 50, "bodies": b"ab", "body_length": 1}
    await client.request("send", columns)
    await host.until(lambda: len(host.fake().stored) == 3, within_ms=100)
    assert all(at_us >= before_us + 50_000 for at_us in host.fake().at_us.values())


async def test_too_old_and_too_far_are_refused_by_name_at_their_exact_bounds(boot: Boot) -> None:
    host, client = await boot.connected(
        faked_settings(storage={"retention_ms": 3_600_000}, message={"delay_ms_max": 86_400_000})
    )
    oldest_ms = (host.now_ms - 3_600_000) // 60_000 * 60_000
    results = await client.send(
        *[
            {"subject": "s", "body": "m", "due_ms": due_ms}
            for due_ms in (oldest_ms - 1, oldest_ms, host.now_ms + 86_400_000, host.now_ms + 86_400_001, -1, 2**62)
        ]
    )
    names = [result.get("error", "ok") for result in results]
    assert names == ["too_old", "ok", "ok", "too_far", "too_old", "too_far"]
    latest = f"the latest due time now is {format_utc(host.now_ms + 86_400_000)} ({host.now_ms + 86_400_000})"
    beyond = f"is {format_utc(host.now_ms + 86_400_001)}, beyond the maximum delay of 1 d; {latest}"
    assert results[3]["message"] == f"due_ms {host.now_ms + 86_400_001} {beyond}"
    oldest = f"before the oldest window kept, which starts at {format_utc(oldest_ms)} ({oldest_ms})"
    assert results[0]["message"] == f"due_ms {oldest_ms - 1} is {format_utc(oldest_ms - 1)}, {oldest}"
    assert "a time beyond the calendar" in results[5]["message"]
    due_ms = pack_column(np.array([oldest_ms - 1, host.now_ms + 86_400_001], np.int64))
    columns = {"count": 2, "subject": "s", "due_ms": due_ms, "bodies": b"ab", "body_length": 1}
    rejected = (await client.request("send", columns))["rejected"]
    assert [message for _, _, message, _ in rejected] == [results[0]["message"], results[3]["message"]]


async def test_lateness_is_recorded_in_microseconds_from_due_to_hand_off(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    receipt = (await client.put("m", host.now_ms + 100))["receipt"]
    host.fake().delay_ms = 40  # the node's slowness is not the server's lateness
    await host.sleep_ms(1_000)
    found = await client.find(receipt)
    assert found["outcome"] == "delivered"
    assert 0 <= found["dispatched_us"] - found["due_ms"] * 1_000 < 5_000
    assert found["attempts"] == 1
    assert found["broker_group"] == "fake"


async def test_a_refill_leaves_unpublished_rows_to_their_publication(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    due_ms = host.now_ms
    await client.put("before", due_ms)
    await host.settled()
    await host.sleep_ms(1_000)
    server.parts.replay.tier.step, server.parts.replay.tier.is_due = trio.Event().wait, True  # type: ignore[method-assign]
    server.parts.state.log_queue.arrived.ring()
    await host.sleep_ms(100)
    await client.put("placed", due_ms)
    log = server.parts.files.log
    (entry,) = log.read(server.parts.state.positions.replayed.value, log.synced, 1 << 20)
    assert isinstance(entry.batch, MessageBatch)
    server.parts.replay.placing.place_batch(entry.batch, Round(entry.end, 0), ScheduleSource.DIRECT)
    (group,) = server.parts.dispatch.groups
    group.rows.spilled.add(due_ms // 60_000 * 60_000)
    await server.parts.load.refill.read_back(group.rows, None)
    await host.sleep_ms(1_000)
    assert not group.rows.spilled
    assert host.fake().texts == ["before"]


@pytest.mark.parametrize("evicted", [False, True])
async def test_a_message_that_is_not_due_any_more_goes_back_into_memory_that_has_its_window(
    boot: Boot, evicted: bool
) -> None:
    host = await boot.started(faked_settings(dispatch={"backoff_ms_min": 20_000, "backoff_ms_max": 20_000}))
    due_ms = host.now_ms + 60_000
    host.fake().up = False
    await (await host.client()).put("m", due_ms)
    await host.until(lambda: bool(host.fake().attempts), within_ms=70_000)
    host.clock.step(-300_000)
    host.fake().up = True
    await host.sleep_ms(5_000)
    if evicted:
        host.server.parts.state.residency.evict_after(Key(host.now_ms, 0))
    await host.sleep_ms(320_000)
    assert host.fake().stored == [1]
    assert host.fake().at_us[1] >= due_ms * 1_000
    await host.balanced(pending=0)


@pytest.mark.parametrize("load", ["runs", "failed"])
async def test_a_row_that_no_load_will_bring_is_put_back_into_memory(boot: Boot, load: str) -> None:
    """It was added behind the ends that a load captured, so it is in the wheel and nowhere else."""
    host = await boot.started(faked_settings(dispatch={"backoff_ms_min": 3_000, "backoff_ms_max": 3_000}))
    server, client = host.server, await host.client()
    window_ms = host.now_ms // 60_000 * 60_000
    await client.put("first", host.now_ms)
    await host.until(lambda: host.fake().texts == ["first"])
    await host.settled()
    pinned, free, blocked = server.parts.state.decided.pinned, trio.Event(), trio.Event()

    @asynccontextmanager
    async def pin(key: DispatchKey) -> AsyncIterator[OutcomeIndex]:
        if key.start_ms == window_ms and not free.is_set():
            blocked.set()
            if load == "failed":
                raise CorruptionError("/data/dispatch_log", 0, "the outcomes cannot be read")
            await free.wait()
        async with pinned(key) as index:
            yield index

    server.parts.state.decided.pinned = pin  # type: ignore[method-assign]
    server.parts.state.residency.evict_after(Key(window_ms - 1, 1 << 62))
    server.parts.state.residency.loadable.ring()
    await blocked.wait()
    host.fake().up = False
    due_ms = host.now_ms + 1_000
    await client.put("m", due_ms)
    await host.until(lambda: bool(host.fake().attempts) and host.now_ms > due_ms + 200, within_ms=20_000)
    host.clock.step(-10_000)
    host.fake().up = True
    await host.sleep_ms(4_500)
    free.set()
    await host.sleep_ms(20_000)
    assert host.fake().texts == ["first", "m"]
    assert host.fake().at_us[2] >= due_ms * 1_000
