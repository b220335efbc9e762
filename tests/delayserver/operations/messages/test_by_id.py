"""Messages by subject and id alone: whichever client asks, and whenever they are due."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.operations.messages import id_search
from delayserver.protocol.errors import InvalidArgument, KeysIncomplete
from store.keys import key_rows
from tests.fakes.host import Boot, Client, Host

DAY_MS = 86_400_000


async def ask(client: Client, operation: str, *ids: str, subject: str = "s", **rest: Any) -> list[dict[str, Any]]:
    """Rows of a request that names messages by their ids alone."""
    names = [{"subject": subject, "message_id": each} for each in ids]
    rows: list[dict[str, Any]] = (await client.request(operation, {"messages": names} | rest))["results"]
    return rows


async def move(client: Client, message_id: str, **change: Any) -> dict[str, Any]:
    items = [{"subject": "s", "message_id": message_id} | change]
    row: dict[str, Any] = (await client.request("reschedule", {"items": items}))["results"][0]
    return row


def outcomes(rows: list[dict[str, Any]]) -> list[str]:
    return [row.get("outcome") or row["error"] for row in rows]


async def three(boot: Boot) -> tuple[Host, Client, list[dict[str, Any]]]:
    """A server with a message of the near and two of the far future, and another client than their sender's."""
    host, sender = await boot.connected()
    sent = [
        await sender.put(
            f"body {number}", host.now_ms + ahead, message_id=f"order-{number}", properties={"n": str(number)}
        )
        for number, ahead in enumerate((60_000, DAY_MS, 300 * DAY_MS))
    ]
    return host, await host.client(), sent


async def test_another_client_looks_messages_up_with_their_bodies(boot: Boot) -> None:
    _, client, sent = await three(boot)
    rows = await ask(client, "lookup", "order-0", "order-1", "order-2", body=True)
    assert [row["receipt"] for row in rows] == [result["receipt"] for result in sent]
    assert [(row["outcome"], row["body"], row["properties"]) for row in rows] == [
        ("pending", f"body {number}".encode(), {"n": str(number)}) for number in range(3)
    ]
    assert all(row["due_ms"] and row["subject"] == "s" and row["message_id"] for row in rows)


async def test_an_id_that_nothing_bears_is_unknown_and_has_no_receipt(boot: Boot) -> None:
    _, client, _ = await three(boot)
    unknown = [{"outcome": "unknown"}]
    assert await ask(client, "lookup", "order-9") == await ask(client, "cancel", "order-9") == unknown
    assert await ask(client, "lookup", "order-1", subject="other") == unknown
    assert await move(client, "order-9", delay_ms=0) == {"outcome": "unknown"}


async def test_a_message_is_cancelled_by_its_id(boot: Boot) -> None:
    host, client, sent = await three(boot)
    rows = await ask(client, "cancel", "order-2", "order-0", "order-2")
    assert outcomes(rows) == ["cancelled", "cancelled", "already_cancelled"]
    assert rows[0]["receipt"] == sent[2]["receipt"]
    assert outcomes(await ask(client, "lookup", "order-0", "order-1", "order-2")) == [
        "cancelled",
        "pending",
        "cancelled",
    ]
    await host.restart_unpowered()
    client = await host.client()
    assert outcomes(await ask(client, "cancel", "order-0", "order-1")) == ["already_cancelled", "cancelled"]
    await host.balanced(pending=0)


async def test_a_message_is_moved_again_and_again_by_its_id_and_delivered_now(boot: Boot) -> None:
    host, client, _ = await three(boot)
    for ahead in (2 * DAY_MS, 90_000, 200 * DAY_MS):
        moved = await move(client, "order-1", due_ms=host.now_ms + ahead)
        assert moved["outcome"] == "cancelled" and moved["message_id"] == "order-1"
        (row,) = await ask(client, "lookup", "order-1")
        assert (row["outcome"], row["receipt"]) == ("pending", moved["new_receipt"])
    assert (await move(client, "order-1", delay_ms=0))["outcome"] == "cancelled"
    (pulled,) = await client.pull(wait_ms=2000)
    assert (pulled["body"], pulled["message_id"]) == (b"body 1", "order-1")
    await host.settled()
    assert outcomes(await ask(client, "lookup", "order-1")) == ["delivered"]
    assert outcomes(await ask(client, "cancel", "order-1")) == ["delivered"]


async def test_of_several_messages_with_one_id_the_newest_that_waits_counts(boot: Boot) -> None:
    host, client = await boot.connected()
    due = host.now_ms + DAY_MS
    first, second, third = [await client.put(body, due + at, message_id="same") for at, body in enumerate("abc")]
    copy = await client.put("d", due + 2, message_id="same")  # of the third
    for receipt in (third["receipt"], second["receipt"], first["receipt"], third["receipt"]):
        (row,) = await ask(client, "lookup", "same")
        assert row["receipt"] == receipt
        await client.cancel(receipt)
    assert outcomes(await ask(client, "lookup", "same")) == ["cancelled"]
    assert copy["receipt"] != third["receipt"]


async def test_ids_with_one_key_are_told_apart_by_their_bytes(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("delayserver.keys.key_index", "delayserver.operations.messages.id_search"):
        monkeypatch.setattr(
            f"{module}.name_keys", lambda id_hash, subject: 0 * key_rows.name_keys(id_hash, subject) + 7
        )
    host, client, sent = await three(boot)
    await client.put("of another subject", host.now_ms + DAY_MS, "t", message_id="order-1")
    rows = await ask(client, "lookup", "order-2", "order-0", "order-7")
    assert [row.get("receipt") for row in rows] == [sent[2]["receipt"], sent[0]["receipt"], None]
    assert outcomes(await ask(client, "cancel", "order-1")) == ["cancelled"]
    assert outcomes(await ask(client, "lookup", "order-1", subject="t")) == ["pending"]


async def test_too_many_messages_with_one_id_are_an_answer_with_a_name(
    boot: Boot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(id_search, "BEARERS_MAX", 4)
    host, client = await boot.connected()
    sent = [await client.put("b", host.now_ms + DAY_MS + at, message_id="same") for at in range(6)]
    assert (await ask(client, "lookup", "same"))[0]["receipt"] == sent[5]["receipt"]
    await client.cancel(*[result["receipt"] for result in sent[2:]])
    (row,) = await ask(client, "lookup", "same")
    assert row["error"] == InvalidArgument.error and "due_ms" in row["message"]


async def test_while_the_index_is_made_again_other_names_are_served(boot: Boot) -> None:
    host, client, sent = await three(boot)
    host.server.parts.keys.index.start_over()
    host.disk.refuse = lambda operation, path: 28 if operation == "pwrite" and "/keys/" in path else 0
    by_time = {"subject": "s", "message_id": "order-1", "due_ms": host.now_ms + DAY_MS}
    names = [{"subject": "s", "message_id": "order-0"}, by_time]
    rows = (await client.request("lookup", {"messages": names}))["results"]
    assert outcomes(rows) == [KeysIncomplete.error, "pending"]
    assert rows[0]["retry_after_ms"] and await client.lookup(sent[0]["receipt"]) == ["pending"]
    assert outcomes(await ask(client, "cancel", "order-0")) == [KeysIncomplete.error]
    assert (await move(client, "order-0", delay_ms=5))["error"] == KeysIncomplete.error
    host.disk.refuse = None
    await host.sleep_ms(3000)
    assert outcomes(await ask(client, "cancel", "order-0", "order-2")) == ["cancelled", "cancelled"]


async def test_damage_that_may_hide_the_message_is_told(boot: Boot) -> None:
    host, client, _ = await three(boot)
    await host.settled()
    for path in host.disk.files("/data/schedule_log"):
        host.disk.flip_bit(path, 64 + 70)
    assert outcomes(await ask(client, "lookup", "order-1", "order-8")) == ["message_damaged", "unknown"]
    host.server.parts.keys.index.start_over()
    await host.sleep_ms(3000)
    assert outcomes(await ask(client, "lookup", "order-8")) == ["message_damaged"]


async def test_an_id_that_the_server_made_needs_a_receipt(boot: Boot) -> None:
    host, client = await boot.connected()
    sent = await client.put("b", host.now_ms + DAY_MS)
    (row,) = await ask(client, "lookup", sent["message_id"])
    assert row["error"] == InvalidArgument.error and "receipt" in row["message"]
    assert await client.refused("lookup", {"messages": []}) == InvalidArgument.error
