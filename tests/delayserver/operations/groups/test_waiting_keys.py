"""Order keys that wait for a message that has failed are listed and counted, and an operator skips it or ends its pause."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.errors import DelayServerError
from tests.delayserver.operations.groups.test_dead_letters import NAMES, Shop, opened
from tests.fakes.host import Boot

PAUSE_MS = 20_000


async def keys_of(shop: Shop, action: str = "list", **fields: Any) -> dict[str, Any]:
    found: dict[str, Any] = await shop.client.request("waiting_keys", NAMES | {"action": action} | fields)
    return found


async def failing(boot: Boot, **fields: Any) -> Shop:
    """A group with the policy `wait`, and the keys a and b: the first message of each has failed twice."""
    shop = await opened(boot)
    await shop.set(**{"attempts": 2, "failed_key": "wait", "first_ms": PAUSE_MS, "cap_ms": PAUSE_MS} | fields)
    for key in "ab":
        await shop.send(*[f"{key}{number}" for number in range(3)], order_key=key)
    for _ in range(2):
        taken = await shop.pull(wait_ms=2 * PAUSE_MS)
        firsts = [each for each in taken if each["message_id"][-1] == "0"]
        assert len(firsts) == 2
        assert "dead_lettered" not in await shop.nack(*firsts)
    return shop


async def test_waiting_keys_are_listed_and_counted_with_the_message_at_their_head(boot: Boot) -> None:
    shop = await failing(boot)
    found = await keys_of(shop)
    assert (found["left"], found["next"], found["unreadable"]) == (2, None, 0)
    for key, row in zip("ab", found["keys"], strict=True):
        assert (row["order_key"], row["message_id"], row["attempts"], row["behind"]) == (key, f"id-{key}0", 2, 2)
        assert row["state"] == "paused" and row["next_ms"] - shop.host.now_ms == pytest.approx(PAUSE_MS, abs=1_000)
        assert shop.host.now_ms - row["since_ms"] >= PAUSE_MS - 1_000, "since the first failure"
    (group,) = (await shop.client.request("groups", {}))["groups"]
    assert group["waiting_keys"] == 2
    assert (await shop.client.request("group", NAMES))["waiting_keys"] == 2
    assert (await shop.client.request("metrics"))["consumer_groups"][0]["waiting_keys"] == 2
    first = await keys_of(shop, max=1)
    assert [row["order_key"] for row in first["keys"]] == ["a"]
    rest = await keys_of(shop, after=first["next"])
    assert [row["order_key"] for row in rest["keys"]] == ["b"] and rest["next"] is None


@pytest.mark.parametrize("end", ["kill", "lose_power"])
async def test_a_skipped_message_is_a_dead_letter_and_its_key_goes_on(boot: Boot, end: str) -> None:
    shop = await failing(boot)
    position = (await keys_of(shop))["keys"][1]["position"]
    assert await keys_of(shop, "skip", positions=[position, 77], reason="unknown customer") == {"skipped": 1, "left": 1}
    await getattr(shop.host, end)()
    shop = await shop.restarted()
    (letter,) = await shop.letters()
    assert (letter["message_id"], letter["reason"], letter["text"], letter["attempts"]) == (
        "id-b0",
        "skipped",
        "unknown customer",
        2,
    )
    taken = [each["message_id"] for each in await shop.pull()]
    assert [each for each in taken if each.startswith("id-b")] == ["id-b1", "id-b2"]


async def test_a_skip_needs_a_waiting_key(boot: Boot) -> None:
    shop = await failing(boot)
    behind = (await keys_of(shop))["keys"][0]["position"] + 1
    assert await keys_of(shop, "skip", positions=[behind]) == {"skipped": 0, "left": 2}
    assert await keys_of(shop, "skip") == {"skipped": 2, "left": 0}
    assert len(await shop.letters()) == 2
    with pytest.raises(DelayServerError, match="group_unknown"):
        await keys_of(shop, group="nobody")


async def test_nothing_is_skipped_where_the_group_keeps_no_dead_letters(boot: Boot) -> None:
    shop = await failing(boot, attempts=None)
    with pytest.raises(DelayServerError, match="policy_invalid"):
        await keys_of(shop, "skip")
    assert (await keys_of(shop))["left"] == 2
    await shop.set(attempts=9)
    assert (await keys_of(shop, "skip"))["skipped"] == 2


async def test_a_consumer_of_a_skipped_message_loses_its_lease(boot: Boot) -> None:
    shop = await failing(boot)
    taken = await shop.pull(wait_ms=2 * PAUSE_MS)
    assert {row["state"] for row in (await keys_of(shop))["keys"]} == {"leased"}
    assert (await keys_of(shop, "skip"))["skipped"] == 2
    assert (await shop.ack(*taken))["acked"] == 0
    assert {letter["attempts"] for letter in await shop.letters()} == {3}
    assert [each["message_id"] for each in await shop.pull()] == ["id-a1", "id-a2", "id-b1", "id-b2"]


async def test_a_retry_ends_the_pause_and_serves_a_pull_that_waits(boot: Boot) -> None:
    shop = await failing(boot)
    assert await shop.pull() == []
    a, b = [row["position"] for row in (await keys_of(shop))["keys"]]
    assert await keys_of(shop, "retry", positions=[a]) == {"retried": 1, "left": 2}
    row, _ = (await keys_of(shop))["keys"]
    assert (row["state"], row["next_ms"]) == ("ready", None)
    assert await keys_of(shop, "retry", positions=[a]) == {"retried": 0, "left": 2}
    before_ms = shop.host.now_ms
    (message,) = await shop.pull()
    assert (message["message_id"], message["attempt"]) == ("id-a0", 3)
    await shop.ack(message)
    assert [row["position"] for row in (await keys_of(shop))["keys"]] == [b], "an acked message holds nothing"
    assert shop.host.now_ms - before_ms < PAUSE_MS


@pytest.mark.parametrize("how", ["unseen", "snooze"])
async def test_a_failed_message_that_is_handed_back_keeps_its_key_waiting(boot: Boot, how: str) -> None:
    shop = await failing(boot)
    since_ms = [row["since_ms"] for row in (await keys_of(shop))["keys"]]
    await shop.nack(*await shop.pull(wait_ms=2 * PAUSE_MS), **{how: True, "delay_ms": 0})
    rows = (await keys_of(shop))["keys"]
    assert [(row["message_id"], row["attempts"]) for row in rows] == [("id-a0", 2), ("id-b0", 2)]
    assert [row["since_ms"] for row in rows] == since_ms
    assert [(each["message_id"], each["attempt"]) for each in await shop.pull()] == [("id-a0", 3), ("id-b0", 3)], (
        "alone"
    )


async def test_skipped_messages_hold_their_keys_while_the_disk_is_full(boot: Boot) -> None:
    shop = await opened(boot)
    await shop.set(attempts=1, failed_key="wait", first_ms=PAUSE_MS)
    message = {"subject": "orders", "body": "m" * 60_000, "due_ms": shop.host.now_ms}
    await shop.client.send(*[message | {"order_key": key} for key in "abcd"])  # nearly a segment of the store
    messages = await shop.pull(wait_ms=1000)
    assert len(messages) == 4
    await shop.nack(*messages)
    shop.host.disk.capacity_bytes = shop.host.disk.used_bytes
    with pytest.raises(DelayServerError, match="disk_full"):
        await keys_of(shop, "skip")
    assert await shop.letters() == [] and await shop.pull() == []
    assert (await keys_of(shop))["left"] == 4
    shop.host.disk.capacity_bytes = None
    assert (await keys_of(shop, "skip"))["skipped"] == 4
    assert {letter["reason"] for letter in await shop.letters()} == {"skipped"}
