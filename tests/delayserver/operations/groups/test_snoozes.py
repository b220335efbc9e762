"""A delivery that is given back without a failure is no attempt, on each way of a redelivery."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.host import Boot, Client, small_settings


async def nack(client: Client, message: dict[str, Any], **how: Any) -> dict[str, Any]:
    arguments = {"subject": "s", "group": "g", "count": 1, "deliveries": message["delivery"], "delay_ms": 100}
    return await client.request("nack", arguments | how)


@pytest.mark.parametrize("how", ["snooze", "unseen"])
@pytest.mark.parametrize("key", [None, "k"], ids=["no key", "a key"])
@pytest.mark.parametrize("killed", [False, True], ids=["", "killed"])
async def test_a_delivery_that_has_not_failed_is_no_attempt(
    boot: Boot, how: str, key: str | None, killed: bool
) -> None:
    host, client = await boot.connected(small_settings())
    await client.request("policy", {"subject": "s", "group": "g", "set": {"attempts": 2, "first_ms": 100}})
    await client.send(
        {"subject": "s", "body": "a", "due_ms": host.now_ms} | ({} if key is None else {"order_key": key})
    )
    await host.sleep_ms(200)
    for _ in range(5):
        (message,) = await client.pull()
        assert message["attempt"] == 1
        assert await nack(client, message, **{how: True}) == {"nacked": 1, "unknown": 0}
        if killed:
            await host.restart_killed()
            client = await host.client()
        await host.sleep_ms(300)
    (message,) = await client.pull()
    assert await nack(client, message) == {"nacked": 1, "unknown": 0}, "the first failure"
    await host.sleep_ms(300)
    (message,) = await client.pull()
    assert message["attempt"] == 2
    assert (await nack(client, message))["dead_lettered"] == 1
    await host.stop()
