"""One-way requests: no reply, and the next reply of the connection counts the refused messages."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.frames import encode_request
from store.errors import StoreError
from tests.fakes.host import Boot, Client, small_settings, texts


async def tell(client: Client, operation: str, **arguments: Any) -> int:
    return await client.ask(operation, {"one_way": True} | arguments)


async def refused(client: Client) -> dict[str, Any] | None:
    told: dict[str, Any] | None = (await client.request("ping")).get("one_way_refused")
    return told


@pytest.mark.parametrize("operation", ["send", "publish"])
async def test_no_reply_comes_and_the_messages_are_there_in_their_order(boot: Boot, operation: str) -> None:
    host, client = await boot.connected()
    when = {"due_ms": host.now_ms} if operation == "send" else {}
    for number in range(3):
        await tell(client, operation, messages=[{"subject": "s", "body": str(number)} | when])
    await tell(client, operation, count=2, subject="s", bodies=b"ab", body_length=1, **when)
    await host.sleep_ms(300)
    assert not client.replies
    assert sorted(texts(await client.pull())) == ["0", "1", "2", "a", "b"]
    assert await refused(client) is None
    assert (await client.status())["one_way_refused"] == 0


async def test_the_next_reply_counts_refused_messages_and_later_ones_do_not(boot: Boot) -> None:
    host = await boot.started(small_settings(message={"body_bytes_max": 2}))
    client, other = await host.client(), await host.client()
    good = {"subject": "s", "body": "x"}
    await tell(client, "publish", messages=[good, good | {"subject": ""}, good, good | {"body": "long"}])
    await host.sleep_ms(50)
    await tell(client, "publish", count=2, subject="s", bodies=b"a", body_length=1)
    await tell(client, "send", messages=[good, good])
    await tell(client, "publish", messages=[])
    await tell(client, "send", count="many", subject="s")
    await host.sleep_ms(100)
    assert not client.replies and await refused(other) is None
    told = await refused(client)
    assert told is not None and told["messages"] == 2 + 2 + 2 + 1 + 1
    assert told["error"] == "subject_invalid" and "a subject is" in told["message"]
    assert await refused(client) is None
    status = await client.status()
    assert status["one_way_refused"] == 8 and status["errors"]["subject_invalid"] == 1
    assert texts(await client.pull()) == ["x", "x"]


async def test_an_error_reply_counts_the_messages_that_a_full_disk_refused(boot: Boot) -> None:
    host, client = await boot.connected()
    host.disk.capacity_bytes = host.disk.used_bytes
    await tell(client, "publish", messages=[{"subject": "new", "body": "x" * 300_000}])
    await host.sleep_ms(100)
    number = await client.ask("pull", {"subject": ""})
    while number not in client.replies:
        await client.take()
    reply = client.replies.pop(number)
    assert reply.error is not None and reply.error.name == "subject_invalid"
    assert reply.refused is not None and reply.refused.messages == 1 and reply.refused.first.name == "disk_full"


async def test_one_way_messages_are_refused_without_a_reply_while_the_server_starts_or_stops(boot: Boot) -> None:
    host, client = await boot.connected()
    host.server.stopping.set()
    await tell(client, "publish", messages=[{"subject": "s", "body": "x"}])
    await tell(client, "send", messages=[{"subject": "s", "body": "x", "due_ms": host.now_ms}])
    told = await refused(client)
    assert told is not None and (told["messages"], told["error"]) == (2, "shutting_down")


async def test_other_operations_and_other_values_get_their_reply(boot: Boot) -> None:
    _, client = await boot.connected()
    assert "server_us" in await client.request("ping", {"one_way": True})
    good = {"subject": "s", "body": "x"}
    assert await client.refused("publish", {"one_way": 1, "messages": [good]}) == "invalid_argument"
    assert (await client.request("publish", {"one_way": False, "messages": [good]}))["results"][0]["position"] == 0


async def test_a_frame_that_is_no_request_ends_the_connection_as_ever(boot: Boot) -> None:
    _, client = await boot.connected()
    frame = bytearray(encode_request(1, "publish", {"one_way": True, "messages": []}))
    frame[4] = 0xC1  # no msgpack
    await client.send_bytes(bytes(frame))
    await client.take()
    assert client.replies[0].error is not None and client.replies[0].error.name == "malformed_frame"


@pytest.mark.parametrize("operation", ["send", "publish"])
async def test_a_ping_waits_until_the_refusals_before_it_are_known(boot: Boot, operation: str) -> None:
    host, client = await boot.connected()
    # More than a sync on the event loop takes: the other messages become durable in a worker thread.
    good = {"subject": "s", "body": "x" * 1000} | ({"due_ms": host.now_ms} if operation == "send" else {})
    await tell(client, operation, messages=[*[good] * 100, good | {"subject": ""}])
    told = await refused(client)
    assert told is not None and told["messages"] == 1
    assert await refused(client) is None
    # What a handler refuses as a whole is known at once.
    await tell(client, operation, messages="none")
    assert (await refused(client) or {})["messages"] == 1


@pytest.mark.parametrize(
    ("met", "name"), [(ZeroDivisionError(), "internal_error"), (StoreError("bad disk"), "storage_failed")]
)
async def test_a_one_way_request_that_meets_a_bug_or_a_bad_disk_gets_no_reply_and_is_counted(
    boot: Boot, met: Exception, name: str
) -> None:
    host = await boot.started()

    def broken(_connection: object, _request: object) -> None:
        raise met

    host.server.handlers.quick["publish"] = broken
    client = await host.client()
    await tell(client, "publish", messages=[{"subject": "s", "body": "x"}] * 3)
    await host.sleep_ms(50)
    assert not client.replies
    told = await refused(client)
    assert told is not None and (told["messages"], told["error"]) == (3, name)
