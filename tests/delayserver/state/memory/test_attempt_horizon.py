"""What may have been attempted before a crash is known after it, also where the disk was full and the clock was set back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio

from delayserver.outcomes.dispatch_log_writer import DispatchLogWriter
from store.tables import checkpoint as checkpoint_file
from tests.fakes.host import Boot, Host, faked_settings


@pytest.mark.parametrize("outcomes_wait", [False, True], ids=["nothing to write", "outcomes wait for room"])
@pytest.mark.parametrize("lives", [1, 2])
async def test_on_a_full_disk_attempts_stay_behind_a_durable_horizon(
    boot: Boot, outcomes_wait: bool, lives: int
) -> None:
    host, client = await boot.connected(faked_settings())
    due_ms = host.now_ms + 100_000
    sent = await client.put("late", due_ms)
    if outcomes_wait:
        await client.put("soon", host.now_ms + 20_000)
    await host.settled()
    await host.sleep_ms(1_000)
    for _ in range(1, lives):
        await host.restart_killed()
    host.disk.capacity_bytes = host.disk.used_bytes
    fake = host.fake()
    await host.until(lambda: sent["sequence"] in fake.stored, within_ms=101_000)
    host.clock.step(-60_000)
    await host.sleep_ms(500)
    writer = host.server.parts.outcomes.outcome_writer
    assert isinstance(writer, DispatchLogWriter)
    assert writer.disk_full, "the outcome cannot be on the disk"
    await host.lose_power()
    host.disk.capacity_bytes = None
    fake.uncertain.clear()
    await host.start()
    assert host.now_ms < due_ms - 50_000
    assert await (await host.client()).cancel(sent["receipt"]) == ["too_late"]
    await host.until(lambda: sent["sequence"] in fake.uncertain, within_ms=61_000)
    await host.balanced(pending=0)


async def move_horizon(host: Host) -> None:
    """One look at the horizon, which is moved if it is near."""
    with trio.move_on_after(0.01):
        await host.server.parts.upkeep.checkpointing.run_horizon()


async def test_the_horizon_is_written_over_the_last_checkpoint_and_changes_nothing_else(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    await (await host.client()).put("late", host.now_ms + 3_600_000)
    await host.settled()
    await host.sleep_ms(16_000)
    before = checkpoint_file.decode(host.disk.content("/data/checkpoint"), "")
    used = host.disk.used_bytes
    host.disk.capacity_bytes = used
    await move_horizon(host)
    assert host.disk.content("/data/checkpoint") == checkpoint_file.encode(before), "there is time left"
    host.clock.step(25_000)
    now_ms = host.now_ms
    await move_horizon(host)
    after = checkpoint_file.decode(host.disk.content("/data/checkpoint"), "")
    assert after.written_us // 1000 == now_ms
    assert checkpoint_file.encode(replace(before, written_us=after.written_us)) == checkpoint_file.encode(after)
    assert host.disk.used_bytes == used, "and the room for the next one is kept again"


async def test_a_checkpoint_that_was_begun_before_the_horizon_was_written_does_not_take_it_back(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    await host.sleep_ms(1_000)
    moved_us: list[int] = []

    async def beside(name: str, work: Callable[[], Any]) -> Any:
        if name == "_save" and not moved_us:  # the thread that writes a whole checkpoint comes late
            host.clock.step(50_000)
            moved_us.append(host.clock.now_us())
            await move_horizon(host)
        return work()

    host.workers.around = beside
    await host.server.parts.upkeep.checkpointing.write()
    written = checkpoint_file.decode(host.disk.content("/data/checkpoint"), "").written_us
    assert [written] == moved_us


async def attempted_while_the_clock_was_ahead(boot: Boot, full: bool) -> tuple[Host, dict[str, Any]]:
    """A host that is down, and the message of its last attempt. The attempt was made while the clock was half an hour ahead,
    the process died before its answer came, and the clock is right again."""
    host = await boot.started(faked_settings())
    fake = host.fake()
    fake.gate = trio.Event()
    sent = await (await host.client()).put("m", host.now_ms + 800_000)
    await host.settled()
    await host.sleep_ms(1_000)
    if full:
        host.disk.capacity_bytes = host.disk.used_bytes
    host.clock.step(1_800_000)
    await host.until(lambda: bool(fake.attempts))
    await host.lose_power()
    host.disk.capacity_bytes = None
    fake.gate = None
    host.clock.step(-1_800_000)
    return host, sent


@pytest.mark.parametrize(
    ("harm", "lives", "full"),
    [("damaged", 1, False), ("missing", 2, False), ("missing", 1, True), ("damaged", 2, True)],
)
async def test_an_attempt_while_the_clock_was_ahead_is_not_forgotten_with_the_checkpoint(
    boot: Boot, harm: str, lives: int, full: bool
) -> None:
    host, sent = await attempted_while_the_clock_was_ahead(boot, full)
    for _ in range(1, lives):
        await host.start()
        await host.sleep_ms(60_000)
        await host.kill()
    if harm == "damaged":
        host.disk.flip_bit("/data/checkpoint", 100, 1)
    elif harm == "missing":
        host.disk.remove("/data/checkpoint")
    await host.start()
    assert host.now_ms < sent["due_ms"] - 700_000
    assert await (await host.client()).cancel(sent["receipt"]) == ["too_late"]
    await host.sleep_ms(sent["due_ms"] - host.now_ms + 1_000)
    assert host.fake().stored == [sent["sequence"]]
    assert host.fake().uncertain == {sent["sequence"]}, "the node is asked whether it has the message"
    await host.balanced(pending=0)


async def test_after_the_loss_of_a_checkpoint_messages_due_behind_the_horizon_can_be_cancelled(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    near, far = [(await client.put("m", host.now_ms + minutes * 60_000))["receipt"] for minutes in (5, 15)]
    await host.sleep_ms(1_000)
    await host.kill()
    host.disk.remove("/data/checkpoint")
    await host.start()
    assert await (await host.client()).cancel(near, far) == ["too_late", "cancelled"]


async def test_a_clean_stop_forgets_that_the_clock_was_ahead(boot: Boot) -> None:
    host = await boot.started(faked_settings())
    sent = await (await host.client()).put("m", host.now_ms + 3_600_000)
    host.clock.step(1_800_000)
    await host.sleep_ms(2_000)
    host.clock.step(-1_800_000)
    await host.stop()
    host.disk.remove("/data/checkpoint")
    await host.start()
    await host.restart_killed()
    assert await (await host.client()).cancel(sent["receipt"]) == ["cancelled"]
