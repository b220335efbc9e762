"""Rules 7, 8, 11: no record between loader and replayer, bounded memory, and damage that stays where it is."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
import trio
import trio.testing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from delayserver.load import window_loads
from delayserver.protocol.columns import pack_column
from delayserver.state.memory.loaded_rows import LoadedRows
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.segment import FILE_DISPATCH, FileHeader
from tests.fakes.host import Boot, Client, Host, faked_settings
from wheel.keys import Key


async def put_columns(client: Client, due_ms: list[int]) -> None:
    due = np.array(due_ms, "<i8")
    bodies = b"x" * len(due)
    arguments = {"count": len(due), "subject": "s", "due_ms": pack_column(due), "bodies": bodies, "body_length": 1}
    assert (await client.request("send", arguments))["accepted"] == len(due)


async def test_more_rows_than_memory_may_hold_are_loaded_in_slices_and_delivered_once(boot: Boot) -> None:
    host, client = await boot.connected(
        faked_settings(wheel={"rows_max": 50, "slice_rows": 16}, dispatch={"batch_messages_max": 8})
    )
    chance = Random(5)
    held = 0
    for _ in range(10):
        start_ms = host.now_ms
        await put_columns(client, [start_ms + chance.randrange(90_000) for _ in range(75)])
        await host.sleep_ms(1_000)
        held = max(held, len(host.server.parts.state.wheel) + host.server.parts.state.residency.rows_held)
    for _ in range(1_000):
        await host.sleep_ms(100)
        held = max(held, len(host.server.parts.state.wheel) + host.server.parts.state.residency.rows_held)
    assert host.server.parts.state.residency.evictions > 3
    assert held <= 125, "rows in memory, with one batch that has just come"
    fake = host.fake()
    assert len(fake.stored) == len(set(fake.stored)) == 750
    assert all(fake.at_us[sequence] >= fake.due_ms[sequence] * 1_000 for sequence in fake.stored)
    await host.balanced(pending=0)


@pytest.mark.parametrize("late_rows", [1, 60])
async def test_a_window_that_comes_late_does_not_wait_behind_later_ones(boot: Boot, late_rows: int) -> None:
    host, client = await boot.connected(faked_settings(wheel={"rows_max": 100, "load_ahead_ms": 180_000}))
    start_ms = host.now_ms // 60_000 * 60_000
    later = [start_ms + 60_000 * minute + 30_000 + row for minute in (2, 3) for row in range(45)]
    await put_columns(client, later)
    await host.until(lambda: len(host.server.parts.state.wheel) == len(later), within_ms=10_000)
    await put_columns(client, [host.now_ms - 600_000] * late_rows)
    await host.until(lambda: len(host.fake().stored) == late_rows, within_ms=5_000)
    await host.sleep_ms(240_000)
    fake = host.fake()
    assert len(fake.stored) == len(set(fake.stored)) == len(later) + late_rows
    assert all(
        fake.at_us[one] <= (fake.due_ms[one] + 100) * 1_000 for one in fake.stored if fake.due_ms[one] > start_ms
    )
    await host.balanced(pending=0)


@pytest.mark.parametrize("late_rows", [1, 60])
async def test_overdue_messages_do_not_wait_behind_the_rest_of_this_minute(boot: Boot, late_rows: int) -> None:
    host, client = await boot.connected(faked_settings(wheel={"rows_max": 100}))
    await host.sleep_ms(60_000 - host.now_ms % 60_000)
    this_minute = [host.now_ms + 20_000 + 200 * row for row in range(150)]
    await put_columns(client, this_minute)
    await host.until(lambda: len(host.server.parts.state.wheel) >= 75, within_ms=5_000)
    await put_columns(client, [host.now_ms - 600_000] * late_rows)
    await host.until(lambda: len(host.fake().stored) == late_rows, within_ms=2_000)
    await host.sleep_ms(120_000)
    fake = host.fake()
    assert len(fake.stored) == len(set(fake.stored)) == len(this_minute) + late_rows
    assert all(
        fake.at_us[one] <= (fake.due_ms[one] + 100) * 1_000 for one in fake.stored if fake.due_ms[one] in this_minute
    )
    await host.balanced(pending=0)


async def test_a_window_that_cannot_be_read_takes_no_memory_from_later_ones(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(wheel={"rows_max": 100, "load_ahead_ms": 900_000}))
    start_ms = host.now_ms // 60_000 * 60_000
    receipt = (await client.put("cancelled", start_ms + 60_000))["receipt"]
    await client.put("pending", start_ms + 60_000)
    assert await client.cancel(receipt) == ["cancelled"]
    await host.settled()
    await host.stop()
    (path,) = [path for path in host.disk.files("/data/dispatch_log") if path.endswith(".log")]
    host.disk.overwrite(path, 0, FileHeader(FILE_DISPATCH, host.server.parts.opened.directory.server_id, 0).encode())
    await host.start()
    await host.sleep_ms(5_000)
    later = [start_ms + 60_000 * minute + row for minute in (10, 11) for row in range(45)]
    await put_columns(await host.client(), later)
    await host.sleep_ms(200_000)  # it is looked at again every minute
    assert len(host.server.parts.state.wheel) == len(later)
    assert host.server.parts.state.residency.evictions == 0
    await host.sleep_ms(600_000)
    assert len(host.fake().stored) == len(later)


async def test_far_messages_cost_no_row_in_memory(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    for hour in range(1, 11):
        await put_columns(client, [host.now_ms + hour * 3_600_000 + i for i in range(1_000)])
    await host.settled()
    await host.sleep_ms(2_000)
    assert len(host.server.parts.state.wheel) == 0
    host.check_balance(pending=10_000)


async def test_a_hot_millisecond_larger_than_memory_is_delivered_once(boot: Boot) -> None:
    host, client = await boot.connected(
        faked_settings(wheel={"rows_max": 100, "slice_rows": 30}, dispatch={"batch_messages_max": 30})
    )
    due_ms = host.now_ms + 30_000
    for _ in range(4):
        await put_columns(client, [due_ms] * 250)
        await host.sleep_ms(50)
    await host.until(lambda: len(host.fake().stored) >= 1_000, within_ms=60_000)
    await host.settled()
    assert len(set(host.fake().stored)) == len(host.fake().stored) == 1_000
    host.check_balance(pending=0)


async def test_damage_in_one_window_is_reported_and_the_others_go_on(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    first_ms = host.now_ms // 60_000 * 60_000 + 120_000
    for window in range(3):
        await client.put(f"w{window}" + "x" * 200, first_ms + window * 60_000 + 5_000)
    await host.settled()
    await host.stop()
    path = host.server.parts.files.schedule.path(ScheduleKey(first_ms, ScheduleSource.DIRECT))
    host.disk.flip_bit(path, 64 + 90)
    host.clock.step(first_ms - 60_000 - host.now_ms)
    await host.start()
    fake = host.fake()
    await host.until(lambda: len(fake.stored) == 2, within_ms=200_000)
    assert [text[:2] for text in fake.texts] == ["w1", "w2"]
    for sequence in fake.stored:
        assert fake.at_us[sequence] - fake.due_ms[sequence] * 1_000 < 1_000_000
    status = await (await host.client()).status()
    assert any(path in text for text in status["corruption"])
    host.check_balance(pending=1)


def deliver_everything(seed: int, steps: list[tuple[str, int]]) -> None:
    """Sends, loads, evictions, ticks and clock steps in any order: each message is delivered once, none early."""

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            host = Host(
                nursery,
                faked_settings(
                    storage={"window_ms": 1_000},
                    wheel={"rows_max": 60, "slice_rows": 16, "load_ahead_ms": 3_000},
                    dispatch={
                        "batch_messages_max": 16,
                        "queue_rows_max": 40,
                        "backoff_ms_min": 5,
                        "backoff_ms_max": 20,
                    },
                ),
            )
            await host.start()
            chance = Random(seed)
            client = await host.client()
            fake = host.fake()
            sent, sequences = 0, []
            for action, amount in steps:
                match action:
                    case "send":
                        due_ms = [host.now_ms + chance.randrange(-2_000, 9_000) for _ in range(amount)]
                        await put_columns(client, due_ms)
                        sent += amount
                    case "one":
                        receipt = await client.put("x", host.now_ms + amount * 50)
                        sequences.append(receipt["receipt"])
                        sent += 1
                    case "tick":
                        await host.sleep_ms(amount * 20)
                    case "evict":
                        if len(host.server.parts.state.wheel):
                            host.server.parts.state.residency.evict_after(Key(host.now_ms + amount * 20, 1 << 62))
                            host.server.parts.state.residency.loadable.ring()
                    case "step":
                        host.clock.step((amount - 20) * 100)
                    case "down":
                        fake.up = not fake.up
                host.server.parts.state.windows.cursors.check_invariants()
                host.server.parts.state.wheel.check_invariants()
            fake.up = True
            await host.until(lambda: len(fake.stored) >= sent, within_ms=40_000)
            await host.sleep_ms(200)
            await host.settled()
            assert len(fake.stored) == len(set(fake.stored)) == sent
            assert host.server.parts.dispatch.lateness.early == 0
            host.check_balance(pending=0)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


ACTIONS = st.tuples(
    st.sampled_from(["send", "send", "one", "one", "tick", "tick", "evict", "step", "down"]), st.integers(1, 40)
)


@settings(max_examples=15, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(seed=st.integers(0, 1 << 16), steps=st.lists(ACTIONS, min_size=5, max_size=25))
def test_any_interleaving_of_sends_loads_evictions_and_ticks_delivers_each_message_once(
    seed: int, steps: list[tuple[str, int]]
) -> None:
    deliver_everything(seed, steps)


@pytest.mark.parametrize("seed", range(3))
def test_longer_interleavings_deliver_each_message_once(seed: int) -> None:
    """Longer runs than the property test draws."""
    chance = Random(seed)
    steps = [("send", 30), ("tick", 30)]
    steps += [(chance.choice(["send", "one", "tick", "evict"]), chance.randrange(1, 40)) for _ in range(12)]
    deliver_everything(seed, steps)


async def test_a_large_window_enters_memory_in_small_steps_and_a_cancel_between_them_holds(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window_loads, "STEP_ROWS", 10, raising=False)
    host, client = await boot.connected(faked_settings())
    server = host.server
    due_ms = host.now_ms + 3 * 60_000
    results = await client.send(*[{"subject": "s", "body": "x", "due_ms": due_ms + row} for row in range(100)])
    await host.settled()
    sizes: list[int] = []
    add = server.parts.state.residency.add
    between = trio.Event()

    def counting(loaded: LoadedRows) -> None:
        sizes.append(len(loaded))
        between.set()
        add(loaded)

    monkeypatch.setattr(server.parts.state.residency, "add", counting)
    with trio.fail_after(300):
        await between.wait()
    assert max(sizes) <= 10
    cancelled = await client.cancel(results[99]["receipt"], results[0]["receipt"])
    assert cancelled == ["cancelled", "cancelled"]
    await host.until(lambda: len(host.fake().stored) == 98, within_ms=4 * 60_000)
    await host.settled()
    assert len(sizes) >= 10 and max(sizes) <= 10
    assert len(set(host.fake().stored)) == 98
    host.check_balance(pending=0)


async def test_a_row_that_a_load_in_steps_passed_over_goes_back_to_the_wheel(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was in flight when its step came, and before the last step the clock goes back."""
    monkeypatch.setattr(window_loads, "STEP_ROWS", 8)
    host = boot(faked_settings())
    server = await host.start()
    await put_columns(await host.client(), [host.now_ms + 3_000 + place for place in range(20)])
    await host.settled()
    residency = server.parts.state.residency
    await host.until(lambda: len(residency.wheel) == 20)
    (group,) = server.parts.dispatch.groups
    ((_code, first),) = residency.wheel.advance(host.now_ms + 3_000, 1)
    group.rows.advance_released(Key(int(first.due_ms[0]), int(first.sequence[0])))
    attempt = group.rows.begin(first.sequence)
    steps, add = [], residency.add

    def adding(loaded: LoadedRows) -> None:
        steps.append(len(loaded))
        if len(steps) == 2:
            group.rows.end(attempt)
            residency.put_back(first)
        add(loaded)

    monkeypatch.setattr(residency, "add", adding)
    residency.evict_after(Key(host.now_ms, 0))
    residency.loadable.ring()
    await host.until(lambda: len(host.fake().stored) == 20)
    assert steps == [7, 8, 4]
    await host.balanced(pending=0)
