"""A restore to a time has every message and cancel that was accepted up to it, and none that came later."""

from __future__ import annotations

import pytest

from delayserver.backup.repository import BackupError
from tests.delayserver.backup.builders import repository
from tests.delayserver.backup.test_restoring import HOUR_MS, backed_up, is_clean, reborn, restored
from tests.fakes.host import Boot, small_settings


@pytest.mark.parametrize("segment_bytes", [1 << 16, 1 << 20])
async def test_a_directory_is_as_of_any_moment_between_two_backups(boot: Boot, segment_bytes: int) -> None:
    host, client = await boot.connected(small_settings(storage={"message_log_segment_bytes": segment_bytes}))
    place = repository()
    body, due_ms = "b" * 2_000, host.now_ms + HOUR_MS
    first = await client.put("before", due_ms)
    await backed_up(host, client, place)
    receipts, moments = [first["receipt"]], []
    for number in range(60):
        await host.sleep_ms(100)
        moments.append(host.now_ms)
        await host.sleep_ms(100)
        sent = await client.put(body, due_ms, subject=f"new-{number}")
        receipts.append(sent["receipt"])
        if number == 30:
            assert await client.cancel(first["receipt"]) == ["cancelled"]
    await host.sleep_ms(100)
    await backed_up(host, client, place)
    for number in (0, 1, 29, 31, 59):
        disk, done = restored(place, host.clock.now_us(), moments[number])
        assert is_clean(disk) and done.last_us <= moments[number] * 1000
        old = host
        new, other = await reborn(boot, old, disk)
        states = await other.lookup(*receipts)
        assert states[0] == ("cancelled" if number > 30 else "pending")
        assert states[1:] == ["pending"] * number + ["unknown"] * (60 - number)
        assert (await other.put(body, due_ms, subject="newer"))["receipt"] not in receipts
        await new.stop()
        assert is_clean(disk)


async def test_a_time_outside_the_backups_is_refused_with_what_can_be_done(boot: Boot) -> None:
    host, client = await boot.connected()
    place = repository()
    started_ms = host.now_ms
    await host.sleep_ms(1_000)
    await backed_up(host, client, place)
    taken_ms = host.now_ms
    await host.sleep_ms(1_000)
    with pytest.raises(BackupError, match=r"the first backup is of .* lies before it"):
        restored(place, host.clock.now_us(), started_ms)
    with pytest.raises(BackupError, match=r"the last backup is of .*nothing here"):
        restored(place, host.clock.now_us(), host.now_ms)
    assert is_clean(restored(place, host.clock.now_us())[0])
    await backed_up(host, client, place)
    assert is_clean(restored(place, host.clock.now_us(), taken_ms)[0])


async def test_a_message_log_that_retention_removed_between_two_backups_is_told(boot: Boot) -> None:
    storage = {"message_log_segment_bytes": 1 << 16, "retention_ms": 60_000, "checkpoint_interval_ms": 1_000}
    host, client = await boot.connected(small_settings(storage=storage))
    place = repository()
    await client.put("x", host.now_ms + 1_000)
    await backed_up(host, client, place)
    moment = host.now_ms + 500
    for _ in range(5):
        await client.put("b" * 60_000, host.now_ms + 1_000)
        await host.sleep_ms(HOUR_MS)
    await backed_up(host, client, place)
    with pytest.raises(BackupError, match=r"removed by retention.*more often"):
        restored(place, host.clock.now_us(), moment)
