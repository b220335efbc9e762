"""Outcomes whose messages a loss of power took (durability `os`): they stand for no other message and count for nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from delayserver.protocol.outcomes import Outcome
from store.batches import OutcomeBatch
from store.dispatch_log import DispatchKey
from store.windows import window_of
from tests.fakes.host import Host, faked_settings

Boot = Callable[..., Host]
# No checkpoint but those that a test asks for.
RARELY = 1 << 40


async def test_the_checkpoint_knows_no_outcome_without_its_message(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    host = boot(faked_settings(storage={"durability": "os", "checkpoint_interval_ms": RARELY}))
    server = await host.start()
    client = await host.client()
    host.clock.step(60_000 - host.now_ms % 60_000)
    due_ms = host.now_ms + 30_000
    await client.put("waits", due_ms)
    await host.settled()
    dispatch, sync = server.opened.dispatch, server.opened.schedule.sync
    key = DispatchKey(window_of(due_ms, 60_000), False)

    def sync_beside_a_delivery(*keys: Any) -> None:
        """The other message comes when message_log and schedule_log were synced, and is lost with the power."""
        sync(*keys)
        dispatch.append(key, OutcomeBatch.filled(1, sequence=2, due_ms=due_ms, outcome=int(Outcome.DELIVERED)))
        dispatch.sync()

    with monkeypatch.context() as patched:
        patched.setattr(server.opened.schedule, "sync", sync_beside_a_delivery)
        await server.checkpointing.write()
    await host.kill()
    host.clock.step(120_000)  # its minute is over, so that nothing but the counts brings it into memory
    await host.start()
    assert host.server.book.orphans == {key.start_ms: 1}
    await host.until(lambda: host.fake().texts == ["waits"])
