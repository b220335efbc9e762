"""Outcomes whose messages a loss of power took (durability `os`) do not stand for other messages, and no count has them."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from delayserver.protocol.outcomes import Outcome
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import window_of
from store.records.batches import OutcomeBatch
from tests.delayserver.replay.test_day_tier import DAY_MS, HOUR_MS, coarse_settings
from tests.fakes.host import Boot, Host, faked_settings

# No checkpoint but those that a test asks for.
RARELY = 1 << 40


class _LosesAll(Random):
    """Of what was not synced nothing survives, but for names in folders."""

    def random(self) -> float:
        return 0.0

    def randrange(self, *_bounds: int) -> int:  # type: ignore[override]
        return 0


async def lose_all_unsynced(host: Host) -> None:
    """The machine dies, and boots two minutes later."""
    await host.kill()
    host.disk.crash(_LosesAll())
    host.clock.step(120_000)


def counts(host: Host) -> tuple[int, ...]:
    """Accepted, delivered, cancelled and pending, by `status`."""
    status = host.check_balance()
    return tuple(status[name] for name in ("accepted", "delivered", "cancelled", "pending"))


async def test_the_checkpoint_knows_no_outcome_without_its_message(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    host, client = await boot.connected(faked_settings(storage={"durability": "os", "checkpoint_interval_ms": RARELY}))
    server = host.server
    host.clock.step(60_000 - host.now_ms % 60_000)
    due_ms = host.now_ms + 30_000
    await client.put("waits", due_ms)
    await host.settled()
    dispatch, sync = server.parts.files.dispatch, server.parts.files.schedule.sync
    key = DispatchKey(window_of(due_ms, 60_000), False)

    def sync_beside_a_delivery(*keys: Any) -> None:
        """The other message comes when message_log and schedule_log were synced, and is lost with the power."""
        sync(*keys)
        dispatch.append(key, OutcomeBatch.filled(1, sequence=2, due_ms=due_ms, outcome=int(Outcome.DELIVERED)))
        dispatch.sync()

    with monkeypatch.context() as patched:
        patched.setattr(server.parts.files.schedule, "sync", sync_beside_a_delivery)
        await server.parts.upkeep.checkpointing.write()
    await host.kill()
    host.clock.step(120_000)  # its minute is over, so that nothing but the counts brings it into memory
    await host.start()
    assert host.server.parts.state.book.orphans == {key.start_ms: 1}
    await host.until(lambda: host.fake().texts == ["waits"])


@pytest.mark.parametrize("again", [False, True])
async def test_outcomes_that_lost_their_messages_do_not_count_for_other_messages(boot: Boot, again: bool) -> None:
    host, client = await boot.connected(faked_settings(storage={"durability": "os", "checkpoint_interval_ms": RARELY}))
    server = host.server
    host.clock.step(60_000 - host.now_ms % 60_000)
    start_ms = host.now_ms
    await client.put("waits", start_ms + 600_000)
    await host.settled()
    await server.parts.upkeep.checkpointing.write()
    await client.put("just now", start_ms)
    await host.until(lambda: len(host.fake().stored) == 1)
    await host.settled()
    await lose_all_unsynced(host)
    await host.start()
    if again:  # with and without a checkpoint that knows of it
        await host.restart_killed()
        await host.server.parts.upkeep.checkpointing.write()
        await host.restart_killed()
    assert host.server.parts.state.book.orphans == {start_ms: 1}
    assert counts(host) == (1, 0, 0, 1)
    host.clock.step(480_000)
    await host.until(lambda: host.fake().texts == ["just now", "waits"])
    await host.settled()
    assert counts(host) == (1, 1, 0, 0)


async def test_a_cancel_in_a_coarse_day_whose_message_a_loss_of_power_took_stands_for_no_other(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings(storage={"durability": "os", "checkpoint_interval_ms": RARELY}))
    server = host.server
    due_ms = (host.now_ms // DAY_MS + 3) * DAY_MS + HOUR_MS
    await client.put("waits", due_ms)
    await host.settled()
    await server.parts.upkeep.checkpointing.write()
    assert await client.cancel((await client.put("gone", due_ms))["receipt"]) == ["cancelled"]
    await host.settled()
    await lose_all_unsynced(host)
    for _ in range(2):
        await host.start()
        assert counts(host) == (1, 0, 0, 1)
        await host.server.parts.upkeep.checkpointing.write()
        await host.kill()
    await host.start()
    host.clock.step(due_ms - 2 * HOUR_MS - host.now_ms)
    days = host.server.parts.files.days
    await host.until(lambda: days.is_drained(due_ms // DAY_MS * DAY_MS), within_ms=120_000)
    await host.server.parts.upkeep.checkpointing.write()
    await host.kill()
    host.clock.step(due_ms + 300_000 - host.now_ms)  # so that nothing but the counts brings the minute into memory
    await host.start()
    assert host.server.parts.state.book.orphans == {due_ms: 1}
    await host.until(lambda: host.fake().texts == ["waits"])
    await host.settled()
    assert counts(host) == (1, 1, 0, 0)


async def test_a_cancel_whose_message_is_gone_stands_for_no_other_when_its_day_becomes_whole(boot: Boot) -> None:
    host, client = await boot.connected(coarse_settings(storage={"durability": "os", "checkpoint_interval_ms": RARELY}))
    server = host.server
    day_ms = (host.now_ms // DAY_MS + 3) * DAY_MS
    await client.put("waits", day_ms + HOUR_MS)
    await host.settled()
    await server.parts.upkeep.checkpointing.write()
    assert await client.cancel((await client.put("gone", day_ms + 2 * HOUR_MS))["receipt"]) == ["cancelled"]
    await host.settled()
    await lose_all_unsynced(host)
    await host.start()
    host.clock.step(day_ms + 2 * DAY_MS - host.now_ms)  # while the server runs: all of the day is overdue at once
    await host.until(lambda: host.server.parts.files.days.is_whole(day_ms))
    await host.until(lambda: host.fake().texts == ["waits"])
    await host.settled()
    assert counts(host) == (1, 1, 0, 0)


async def test_messages_whose_file_comes_back_count_again(boot: Boot) -> None:
    host, client = await boot.connected(faked_settings(storage={"checkpoint_interval_ms": RARELY}))
    server = host.server
    for _ in range(2):
        await client.put("delivered", host.now_ms)
    await client.put("waits", host.now_ms + 600_000)
    await host.until(lambda: len(host.fake().stored) == 2)
    await host.settled()
    await server.parts.upkeep.checkpointing.write()
    first, _ = server.parts.files.schedule.keys()
    path = server.parts.files.schedule.path(first)
    content = host.disk.content(path)
    await host.kill()
    host.disk.remove(path)
    for _ in range(2):
        await host.start()
        assert host.server.parts.state.book.orphans == {first.start_ms: 2}
        assert counts(host) == (1, 0, 0, 1)
        await host.server.parts.upkeep.checkpointing.write()
        await host.kill()
    host.disk.make_directory(path.rpartition("/")[0])
    host.disk.open(path, create=True).pwrite(0, [content])
    for _ in range(2):
        await host.start()
        assert not host.server.parts.state.book.orphans
        assert counts(host) == (3, 2, 0, 1)
        await host.server.parts.upkeep.checkpointing.write()
        await host.kill()
