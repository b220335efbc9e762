"""From a send to the wheel, and the start after a crash: what a further review found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from delayserver.recover.mending.rewriting import placeholders
from delayserver.replay.outcome_groups import OutcomeGroups
from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.state.decisions.outcome_rows import cancelled_outcomes
from store.logs.dispatch_log import DispatchKey
from store.records.batches import CancelBatch, LedgerBatch
from store.tables.ledger import Ledger
from tests.fakes.host import Boot, Host, faked_settings


@pytest.mark.parametrize("seed", range(4))
async def test_without_syncs_records_lost_in_a_crash_are_no_corruption(boot: Boot, seed: int) -> None:
    host, client = await boot.connected(faked_settings(storage={"durability": "os"}))
    for number in range(12):
        await client.put("x" * 5_000 + str(number), host.now_ms + 600_000)
    server = await host.restart_unpowered(seed)
    assert not server.damage.corruption


async def test_a_checkpoint_points_behind_nothing_that_a_crash_takes(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"durability": "os"}))
    server = host.server
    for number in range(12):
        await client.put("x" * 5_000 + str(number), host.now_ms + 600_000)
    await host.settled()
    await server.parts.upkeep.checkpointing.write()
    _, _, path = server.parts.files.log.segments()[-1]
    end = server.parts.files.log.end
    before = host.disk.content(path)[:end]
    await host.lose_power(1)
    assert host.disk.content(path)[:end] == before


async def test_replay_passes_over_placeholders_that_repair_put_into_message_log(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 3_600_000}))
    server = host.server
    due_ms = host.now_ms + 5_000
    for number in range(3):
        await client.put(str(number), due_ms)
    await host.settled()
    log = server.parts.files.log
    base, _, path = log.segments()[-1]
    second = log.read(log.first, log.synced, 1 << 20)[1]
    await host.kill()
    for position, data in placeholders(second.start - base, second.end - base):
        host.disk.overwrite(path, position, b"".join(data))
    await host.start()
    await host.until(lambda: sorted(host.fake().texts) == ["0", "1", "2"] or host.died_of is not None, within_ms=20_000)
    assert host.died_of is None


async def test_a_start_takes_time_in_proportion_to_the_cancels_it_meets(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = boot()
    server = await host.start()
    count, windows = 12_000, 300
    cancels = CancelBatch.filled(
        count,
        sequence=np.arange(1, count + 1),
        due_ms=host.now_ms + 60_000 * (np.arange(count) % windows),
        subject=1,
    )
    groups = OutcomeGroups(server.parts.files.schedule, 60_000)
    outcomes = RoundOutcomes(server.parts.state.decided, server.parts.state.windows, groups, server.runtime, None, None)
    outcomes.add(cancelled_outcomes(cancels, 0))
    compared = 0
    equal = DispatchKey.__eq__

    def counted(left: DispatchKey, right: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(left, right)

    monkeypatch.setattr(DispatchKey, "__eq__", counted)
    await outcomes.finish_recovery()
    assert compared < 10 * count  # it was rows times windows


async def test_a_cancel_of_many_retired_messages_reads_the_ledger_once_a_window(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, client = await boot.connected(faked_settings(storage={"retention_ms": 60_000}))
    receipts = [sent["receipt"] for sent in await client.send(*[_message(host, number) for number in range(200)])]
    await host.settled()
    host.clock.step(30 * 60_000)
    await host.sleep_ms(12_000)
    read = 0
    window = Ledger.window

    def counted(self: Ledger, start_ms: int, *, coarse: bool = False) -> LedgerBatch:
        nonlocal read
        read += 1
        return window(self, start_ms, coarse=coarse)

    monkeypatch.setattr(Ledger, "window", counted)
    assert await client.cancel(*receipts) == ["retired"] * 200
    assert read < 10


def _message(host: Host, number: int) -> dict[str, Any]:
    return {"subject": "s", "due_ms": host.now_ms, "body": str(number)}


@pytest.mark.parametrize("delay_ms", [30_000, 400_000], ids=["when it is handed off", "when it is loaded"])
async def test_a_sector_that_cannot_be_read_holds_back_its_own_record_and_not_its_window(
    boot: Boot, delay_ms: int
) -> None:
    host, client = await boot.connected(faked_settings())
    server = host.server
    due_ms = host.now_ms + delay_ms
    for number in range(20):
        await client.put("x" * 5_000 + str(number), due_ms)
        await host.sleep_ms(100)  # a record of its own
    await host.settled()
    (key,) = server.parts.files.schedule.keys()
    records = [header for header, _ in server.parts.files.schedule.batches(key)]
    assert len(records) == 20
    path = server.parts.files.schedule.path(key)
    host.disk.unreadable[path] = [(records[7].offset + 1_000, records[7].offset + 1_512)]
    await host.sleep_ms(delay_ms + 1_000)
    assert len(host.fake().stored) == 19
    assert any(path in text for text in server.damage.unreadable) and not server.damage.corruption


async def test_a_message_that_a_node_refuses_holds_up_no_other_window(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings())
    host.fake().refuse = lambda batch: batch.sequence == 1
    for minute in range(3):
        await client.put(str(minute), host.now_ms + minute * 60_000)
    host.clock.step(3 * 60_000)
    await host.until(lambda: sorted(host.fake().texts) == ["1", "2"], within_ms=2_000)


@pytest.mark.parametrize("where", ["in the last record", "behind the end"])
async def test_a_bad_sector_at_the_end_of_message_log_does_not_keep_the_server_down(boot: Boot, where: str) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": 1 << 40}))
    server = host.server
    due_ms = host.now_ms + 60_000
    await client.put("first", due_ms)
    _, segment = server.parts.files.log.locate(server.parts.files.log.end)
    path, start = segment.path, segment.end
    await client.put("x" * 5_000, due_ms)
    bad = (start + 1_024 if where == "in the last record" else segment.end + 100_000) // 512 * 512
    await host.kill()
    host.disk.unreadable[path] = [(bad, bad + 512)]
    server = await host.start()
    assert host.died_of is None
    assert any(path in text for text in server.damage.unreadable) == (where == "in the last record")
    await (await host.client()).put("next", due_ms)
    await host.restart_killed()
    await host.sleep_ms(70_000)
    assert {"first", "next"} <= set(host.fake().texts)
