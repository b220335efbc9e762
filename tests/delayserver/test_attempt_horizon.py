"""What may have been attempted before a crash is known after it, also where the disk was full and the clock was set back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from store import checkpoint as checkpoint_file
from tests.fakes.host import Host, faked_settings

Boot = Callable[..., Host]


@pytest.mark.parametrize("outcomes_wait", [False, True], ids=["nothing to write", "outcomes wait for room"])
@pytest.mark.parametrize("lives", [1, 2])
async def test_on_a_full_disk_attempts_stay_behind_a_durable_horizon(
    boot: Boot, outcomes_wait: bool, lives: int
) -> None:
    host = boot(faked_settings())
    await host.start()
    client = await host.client()
    due_ms = host.now_ms + 100_000
    sent = await client.put("late", due_ms)
    if outcomes_wait:
        await client.put("soon", host.now_ms + 20_000)
    await host.settled()
    await host.sleep_ms(1_000)
    for _ in range(1, lives):
        await host.kill()
        await host.start()
    host.disk.capacity_bytes = host.disk.used_bytes
    fake = host.fake()
    await host.until(lambda: sent["sequence"] in fake.stored, within_ms=101_000)
    host.clock.step(-60_000)
    await host.sleep_ms(500)
    assert host.server.recorder.disk_full, "the outcome cannot be on the disk"
    await host.lose_power()
    host.disk.capacity_bytes = None
    fake.uncertain.clear()
    await host.start()
    assert host.now_ms < due_ms - 50_000
    assert await (await host.client()).cancel(sent["receipt"]) == ["too_late"]
    await host.until(lambda: sent["sequence"] in fake.uncertain, within_ms=61_000)
    await host.settled()
    host.check_balance(pending=0)


async def test_the_horizon_is_written_over_the_last_checkpoint_and_changes_nothing_else(boot: Boot) -> None:
    host = boot(faked_settings())
    await host.start()
    await (await host.client()).put("late", host.now_ms + 3_600_000)
    await host.settled()
    await host.sleep_ms(16_000)
    before = checkpoint_file.decode(host.disk.content("/data/checkpoint"), "")
    used = host.disk.used_bytes
    host.disk.capacity_bytes = used
    await host.server.recorder.on_disk_full()
    assert host.disk.content("/data/checkpoint") == checkpoint_file.encode(before), "there is time left"
    host.clock.step(25_000)
    await host.server.recorder.on_disk_full()
    after = checkpoint_file.decode(host.disk.content("/data/checkpoint"), "")
    assert after.written_us // 1000 == host.now_ms
    assert checkpoint_file.encode(replace(before, written_us=after.written_us)) == checkpoint_file.encode(after)
    assert host.disk.used_bytes == used, "and the room for the next one is kept again"


async def test_a_checkpoint_that_was_begun_before_the_horizon_was_written_does_not_take_it_back(boot: Boot) -> None:
    host = boot(faked_settings())
    await host.start()
    await host.sleep_ms(1_000)
    checkpointing = host.server.checkpointing
    later_us = host.clock.now_us() + 50_000_000
    # As in a thread beside the one that writes a whole checkpoint: the event loop has not heard of it yet.
    checkpointing._save_horizon(later_us)
    await checkpointing.write()
    assert checkpoint_file.decode(host.disk.content("/data/checkpoint"), "").written_us == later_us
