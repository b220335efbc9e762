"""Outcomes: durable before they count, also when the disk fills up between two files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from delayserver.config.pacing import OUTCOMES_LATE_MS
from delayserver.config.settings import GroupSettings
from delayserver.outcomes.outcome_recorder import QUIET_MS
from delayserver.protocol.outcomes import Outcome
from delayserver.state.decisions.decided import HOT_ROWS
from store.errors import SyncFailedError
from store.logs.dispatch_log import DispatchKey
from store.records.batches import OutcomeBatch
from tests.fakes.disk import FakeDisk
from tests.fakes.host import Boot, Host, faked_settings


async def test_on_a_full_disk_outcomes_wait_and_nothing_is_delivered_twice(boot: Boot, disk: FakeDisk) -> None:
    host, client = await boot.connected(faked_settings(), disk=disk)
    receipts = [(await client.put(str(i), host.now_ms + 1_000 + i * 400))["receipt"] for i in range(10)]
    await host.settled()
    disk.capacity_bytes = disk.used_bytes
    await host.sleep_ms(6_000)
    assert len(host.fake().stored) == 10
    assert set(await client.lookup(*receipts)) == {"delivered"}
    status = host.check_balance()
    disk.capacity_bytes = None
    await host.sleep_ms(1_000)
    assert (await host.balanced(pending=0))["delivered"] == 10
    assert status["delivered"] <= 10
    await host.restart_unpowered(1)
    await host.sleep_ms(500)
    assert len(host.fake().stored) == 10
    host.check_balance(pending=0)


async def test_every_file_of_a_flush_that_met_a_full_disk_is_synced_before_it_counts(boot: Boot) -> None:
    """The first file has room in its last page, the second needs a page that is not there yet."""
    for seed in range(6):
        disk = FakeDisk()
        host = await boot.started(
            faked_settings(storage={"checkpoint_interval_ms": 1 << 40}), disk=disk, name=f"host{seed}"
        )
        recorder, decided = host.server.parts.outcomes.recorder, host.server.parts.state.decided
        first_ms = host.now_ms // 60_000 * 60_000
        decided.add(_outcomes([1], first_ms))
        await recorder.flush()
        disk.capacity_bytes = disk.used_bytes
        decided.add(_outcomes([2], first_ms))
        decided.add(_outcomes([3], first_ms + 60_000))
        await host.sleep_ms(1_000)
        assert decided.rows_waiting == 2
        disk.capacity_bytes = None
        await host.sleep_ms(1_000)
        assert decided.rows_waiting == 0
        await host.restart_unpowered(seed)
        found = host.server.parts.files.dispatch.outcomes(DispatchKey(first_ms, False))
        assert found.sequence.tolist() == [1, 2], seed
        await host.kill()


async def test_a_flush_after_a_failed_sync_raises(boot: Boot, disk: FakeDisk) -> None:
    host = await boot.started(faked_settings(), disk=disk)
    recorder, decided = host.server.parts.outcomes.recorder, host.server.parts.state.decided
    decided.add(_outcomes([1], host.now_ms // 60_000 * 60_000))
    disk.fail_next_sync("/data/dispatch_log")
    for _ in range(2):
        with pytest.raises(SyncFailedError):
            await recorder.flush()


async def without_checkpoints(boot: Boot, groups: tuple[GroupSettings, ...] = (), **dispatch: int) -> Host:
    """A server after its first checkpoint: each one writes all outcomes first."""
    settings = faked_settings(storage={"checkpoint_interval_ms": 1 << 40}, dispatch=dispatch)
    host = await boot.started(replace(settings, groups=groups or settings.groups))
    await host.sleep_ms(1_000)
    return host


async def test_the_outcomes_of_a_hot_moment_are_written_when_it_is_over(boot: Boot) -> None:
    host = await without_checkpoints(boot)
    decided, first_ms = host.server.parts.state.decided, host.now_ms // 60_000 * 60_000
    many = HOT_ROWS
    for number in range(3):
        decided.add(_outcomes([1 + number * many] * many, first_ms))
        await host.sleep_ms(QUIET_MS - 2)
        assert decided.rows_waiting == (number + 1) * many
    await host.sleep_ms(QUIET_MS + 4)
    assert decided.rows_waiting == 0


async def test_a_moment_that_stays_hot_does_not_put_the_outcomes_off_for_ever(boot: Boot) -> None:
    host = await without_checkpoints(boot)
    decided, first_ms = host.server.parts.state.decided, host.now_ms // 60_000 * 60_000
    many, waited = HOT_ROWS, 0
    for step in range(40):
        decided.add(_outcomes([1 + step * many] * many, first_ms))
        await host.sleep_ms(10)
        waited = max(waited, decided.rows_waiting)
    assert many * (OUTCOMES_LATE_MS // 10) <= waited <= many * (OUTCOMES_LATE_MS // 10 + 4)
    began_ms = host.now_ms
    await decided.wait_all_written()  # a part that needs them on disk waits for nothing else
    assert host.now_ms == began_ms
    assert decided.rows_waiting == 0


async def test_few_outcomes_are_written_at_once_and_many_do_not_fill_memory(boot: Boot) -> None:
    host = await without_checkpoints(boot, outcome_rows_max=4 * HOT_ROWS)
    decided, first_ms = host.server.parts.state.decided, host.now_ms // 60_000 * 60_000
    for count in (HOT_ROWS - 1, 2 * HOT_ROWS + 1):
        decided.add(_outcomes([1] * count, first_ms))
        await host.sleep_ms(QUIET_MS // 2)
        assert decided.rows_waiting == 0


async def test_an_outcome_of_a_hot_moment_is_written_at_once_for_a_waiting_caller(boot: Boot) -> None:
    host = await without_checkpoints(boot)
    decided, first_ms = host.server.parts.state.decided, host.now_ms // 60_000 * 60_000
    expired = np.array([1], np.int64)
    many = OutcomeBatch.filled(HOT_ROWS, sequence=1, due_ms=first_ms, outcome=int(Outcome.EXPIRED))
    decided.add(many)
    await host.sleep_ms(5)
    assert decided.rows_waiting == len(many)
    began_ms = host.now_ms
    await host.server.parts.messages.cancellation.durable(expired, np.array([int(Outcome.EXPIRED)], np.uint8))
    assert decided.rows_waiting == 0 and host.now_ms - began_ms <= 2


async def test_where_groups_share_the_event_loop_outcomes_are_written_in_small_parts(boot: Boot) -> None:
    host = await without_checkpoints(boot, (GroupSettings("a"), GroupSettings("b")))
    decided, first_ms = host.server.parts.state.decided, host.now_ms // 60_000 * 60_000
    decided.add(_outcomes([1] * HOT_ROWS, first_ms))
    await host.sleep_ms(QUIET_MS // 2)
    assert decided.rows_waiting == 0


def _outcomes(sequences: list[int], due_ms: int) -> OutcomeBatch:
    return OutcomeBatch.filled(len(sequences), sequence=sequences[0], due_ms=due_ms, outcome=int(Outcome.DELIVERED))


@pytest.mark.parametrize("workers", [1, 8])
async def test_past_its_bound_of_outcomes_dispatch_waits_for_the_disk(boot: Boot, workers: int, disk: FakeDisk) -> None:
    host, client = await boot.connected(
        faked_settings(dispatch={"outcome_rows_max": 20, "batch_messages_max": 5, "workers": workers}), disk=disk
    )
    for number in range(100):
        await client.put(str(number), host.now_ms + 1_000)
    await host.settled()
    disk.capacity_bytes = disk.used_bytes
    await host.sleep_ms(3_000)
    assert len(host.fake().stored) <= 20 + 5 * (workers + 1)
    group = next(iter(host.server.parts.dispatch.groups))
    disk.capacity_bytes = None
    await host.until(lambda: len(host.fake().stored) == 100, within_ms=5_000)
    await host.settled()
    # Every one of them waited for room, and every one is back.
    await host.until(lambda: group.idle_workers == workers)
    await host.balanced(pending=0)
