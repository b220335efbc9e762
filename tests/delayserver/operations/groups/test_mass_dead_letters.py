"""When many messages end their attempts at once, the event loop goes on between parts of their dead letters."""

from __future__ import annotations

import itertools
from typing import Any

import trio

from delayserver.broker.actions.dead_letter_burial import LETTERS_AT_ONCE
from tests.delayserver.operations.groups.test_dead_letters import opened
from tests.fakes.host import Boot

MESSAGES = 8 * LETTERS_AT_ONCE


async def test_dead_letters_are_made_in_steps_of_bounded_size(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1)
    message = {"subject": "orders", "body": "", "due_ms": shop.host.now_ms}
    for _ in range(8):
        await shop.client.send(*[message] * LETTERS_AT_ONCE)
    await shop.host.sleep_ms(100)
    messages: list[dict[str, Any]] = []
    while len(messages) < MESSAGES:
        messages += await shop.pull(MESSAGES, wait_ms=1_000)
    core = shop.host.server.parts.broker.local_broker.core
    counts = [0]

    async def watch() -> None:
        while True:
            counts.append(core.status()["dead_letters"])
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        assert (await shop.nack(*messages))["dead_lettered"] == MESSAGES
        nursery.cancel_scope.cancel()
    # A pass of the event loop may see a step before it and one behind it.
    assert max([after - before for before, after in itertools.pairwise(counts)]) <= 2 * LETTERS_AT_ONCE
