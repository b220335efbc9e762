"""`lookup` with `body` says what messages say, as long as the server has them and there is room."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.operations.messages import contents
from delayserver.protocol.errors import InvalidArgument
from tests.fakes.host import Boot, Client, Host, small_settings

WHOLE = {
    "subject": "orders",
    "body": b"cancel order 7",
    "message_id": "o-7",
    "properties": {"customer": "42"},
    "expires_ms": 1 << 45,
    "tag": "unpaid",
    "order_key": "order-7",
}


async def started(boot: Boot) -> tuple[Host, Client]:
    host = await boot.started(small_settings())
    return host, await host.client()


async def send(client: Client, **message: Any) -> str:
    reply = await client.request("send", {"messages": [message]})
    return str(reply["results"][0]["receipt"])


async def look(client: Client, *receipts: str, **arguments: Any) -> list[dict[str, Any]]:
    reply = await client.request("lookup", {"receipts": list(receipts), "body": True} | arguments)
    rows: list[dict[str, Any]] = reply["results"]
    return rows


@pytest.mark.parametrize("delay_ms", [0, 60_000, 3 * 86_400_000])
async def test_lookup_returns_a_whole_message_wherever_it_lies(boot: Boot, delay_ms: int) -> None:
    host, client = await started(boot)
    receipt = await send(client, **WHOLE, delay_ms=delay_ms)
    await host.sleep_ms(500)
    (row,) = await look(client, receipt)
    told = ("body", "message_id", "properties", "expires_ms", "tag", "order_key")
    assert {name: row[name] for name in told} == {name: WHOLE[name] for name in told}
    assert row["outcome"] == ("delivered" if delay_ms == 0 else "pending")


async def test_a_plain_message_has_the_derived_id_and_nothing_more(boot: Boot) -> None:
    _, client = await started(boot)
    receipt = await send(client, subject="s", body="", delay_ms=60_000)
    (row,) = await look(client, receipt)
    assert row["message_id"] == f"{receipt[:12]}-{receipt[-12:]}"
    assert (row["body"], row["properties"], row["expires_ms"]) == (b"", {}, 0)
    assert "tag" not in row and "order_key" not in row


async def test_a_duplicate_has_the_contents_of_its_original(boot: Boot) -> None:
    host, client = await started(boot)
    due_ms = host.now_ms + 60_000
    first = await send(client, subject="s", body="first", message_id="same", due_ms=due_ms)
    second = await send(client, subject="s", body="second", message_id="same", due_ms=due_ms)
    await host.settled()
    rows = await look(client, first, second)
    assert [row["body"] for row in rows] == [b"first", b"first"]


async def test_lookup_returns_no_content_of_unknown_or_refused_messages(boot: Boot) -> None:
    _, client = await started(boot)
    receipt = await send(client, subject="s", body="b", delay_ms=60_000)
    unknown, refused, known = await look(client, f"{receipt[:-12]}00000000ffff", "nonsense", receipt)
    assert unknown["outcome"] == "unknown" and "body" not in unknown
    assert refused["error"] == "receipt_invalid" and "body" not in refused
    assert known["body"] == b"b"


async def test_messages_beyond_the_room_of_a_reply_are_named(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "CONTENTS_BYTES_MAX", 2500)
    host, client = await started(boot)
    receipts = [await send(client, subject="s", body=bytes(1000), delay_ms=60_000 + n) for n in range(5)]
    await host.settled()
    rows = await look(client, *receipts)
    told = ["body" in row for row in rows]
    assert told in ([True, True, False, False, False], [True, True, True, False, False])
    assert [row.get("body_left_out", False) for row in rows] == [not known for known in told]
    (again,) = await look(client, receipts[-1])
    assert again["body"] == bytes(1000)


async def test_without_body_no_file_is_read_for_it_and_a_wrong_one_is_refused(boot: Boot) -> None:
    _, client = await started(boot)
    receipt = await send(client, subject="s", body="b", delay_ms=60_000)
    (row,) = await look(client, receipt, body=False)
    assert "body" not in row
    with pytest.raises(InvalidArgument):
        await look(client, receipt, body="yes")
