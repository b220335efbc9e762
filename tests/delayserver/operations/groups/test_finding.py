"""The operation `find`: messages that are stored on a node, by id or key, on a whole server."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.protocol.errors import InvalidArgument, SubjectInvalid
from tests.fakes.host import Boot, Client, Host, small_settings


async def delivered(boot: Boot, count: int = 12) -> tuple[Host, Client]:
    """A server that has delivered messages `o-0` to `o-11` of two subjects, some with keys."""
    host, client = await boot.connected(small_settings())
    for number in range(count):
        await client.send(
            {
                "subject": f"orders.{number % 2}",
                "body": f"body {number}",
                "delay_ms": 1 + number,
                "message_id": f"o-{number}",
                "properties": {"keys": f"customer-{number % 3}  order-{number}", "n": str(number)},
            }
        )
    await client.send({"subject": "orders.0", "body": "without an id", "delay_ms": 100})
    await host.sleep_ms(1000)
    return host, client


async def ask(client: Client, **arguments: Any) -> list[dict[str, Any]]:
    """All messages of a search, over all its pages."""
    found, after = [], None
    while True:
        reply = await client.request("find", arguments | ({} if after is None else {"after": after}))
        found += reply["messages"]
        after = reply["next"]
        if after is None:
            return found


async def test_a_message_is_found_whole_by_its_id(boot: Boot) -> None:
    _, client = await delivered(boot)
    (found,) = await ask(client, message_id="o-5")
    pulled = await client.request("pull", {"subject": "orders.1", "group": "g", "max_messages": 100})
    (same,) = [message for message in pulled["messages"] if message["message_id"] == "o-5"]
    assert found == {name: same[name] for name in found if name != "position"} | {"position": 2}
    assert found["body"] == b"body 5" and found["properties"]["n"] == "5"


async def test_an_acked_message_is_found_as_long_as_the_store_keeps_it(boot: Boot) -> None:
    _, client = await delivered(boot)
    pulled = await client.request("pull", {"subject": "orders.0", "group": "g", "max_messages": 100})
    deliveries = [message["delivery"] for message in pulled["messages"]]
    for delivery in deliveries:
        await client.request("ack", {"subject": "orders.0", "group": "g", "count": 1, "deliveries": delivery})
    assert [found["body"] for found in await ask(client, message_id="o-0")] == [b"body 0"]


@pytest.mark.parametrize("page", [1, 2, 1000])
async def test_a_key_finds_all_messages_that_have_it(boot: Boot, page: int) -> None:
    _, client = await delivered(boot)
    found = await ask(client, key="customer-1", max=page)
    assert sorted(message["message_id"] for message in found) == ["o-1", "o-10", "o-4", "o-7"]
    assert [message["message_id"] for message in await ask(client, key="order-7", max=page)] == ["o-7"]
    assert await ask(client, key="order", max=page) == []


async def test_a_subject_and_times_narrow_a_search(boot: Boot) -> None:
    _, client = await delivered(boot)
    (seven,) = await ask(client, message_id="o-7")
    found = await ask(client, key="customer-1", subject="orders.1", from_ms=seven["dispatched_us"] // 1000)
    assert [message["message_id"] for message in found] == ["o-7"]
    assert await ask(client, key="customer-1", to_ms=1) == []
    assert await ask(client, key="customer-1", subject="never-seen") == []


async def test_a_message_without_an_id_is_found_by_the_derived_one(boot: Boot) -> None:
    _, client = await delivered(boot)
    pulled = await client.request("pull", {"subject": "orders.0", "group": "g", "max_messages": 100})
    name = pulled["messages"][-1]["message_id"]
    assert [message["body"] for message in await ask(client, message_id=name)] == [b"without an id"]


async def test_messages_are_found_after_a_crash_of_the_server(boot: Boot) -> None:
    host, client = await delivered(boot)
    await host.restart_killed()
    client = await host.client()
    await host.sleep_ms(1000)
    assert [message["body"] for message in await ask(client, message_id="o-5")] == [b"body 5"]


@pytest.mark.parametrize("page", [1, 2, 1000])
async def test_a_search_by_subject_and_time_finds_the_messages_dispatched_then(boot: Boot, page: int) -> None:
    _, client = await delivered(boot)
    every = await ask(client, subject="orders.1", max=page)
    assert [message["message_id"] for message in every] == ["o-1", "o-3", "o-5", "o-7", "o-9", "o-11"]
    times = [message["dispatched_us"] // 1000 for message in every]
    some = await ask(client, subject="orders.1", from_ms=times[2], to_ms=times[4], max=page)
    wanted = [message for message, time in zip(every, times, strict=True) if times[2] <= time < times[4]]
    assert some == wanted and 1 <= len(some) < len(every)
    assert await ask(client, subject="orders.1", from_ms=times[-1] + 1000, max=page) == []
    assert await ask(client, subject="never-seen", max=page) == []


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, InvalidArgument),
        ({"from_ms": 1}, InvalidArgument),
        ({"message_id": "a", "key": "b"}, InvalidArgument),
        ({"message_id": 5}, InvalidArgument),
        ({"message_id": ""}, InvalidArgument),
        ({"key": "two words"}, InvalidArgument),
        ({"key": " "}, InvalidArgument),
        ({"key": "k" * 2000}, InvalidArgument),
        ({"key": "k", "subject": ""}, InvalidArgument),
        ({"key": "k", "subject": "a\nb"}, SubjectInvalid),
        ({"key": "k", "after": [1]}, InvalidArgument),
        ({"key": "k", "max": 0}, InvalidArgument),
        ({"key": "k", "from_ms": -1}, InvalidArgument),
    ],
)
async def test_a_search_that_makes_no_sense_is_refused(
    boot: Boot, arguments: dict[str, Any], error: type[Exception]
) -> None:
    _, client = await delivered(boot, 1)
    with pytest.raises(error):
        await client.request("find", arguments)


async def test_a_page_of_large_properties_fits_into_a_frame(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    filler = "x" * 16_300
    for number in range(1_100):
        message = {
            "subject": "orders",
            "body": "b" * 1_000,
            "delay_ms": 1,
            "properties": {"keys": "all", "filler": filler},
        }
        await client.send(message | {"message_id": f"o-{number}"})
    await host.sleep_ms(1000)
    found = await ask(client, key="all")
    assert sorted(message["message_id"] for message in found) == sorted(f"o-{number}" for number in range(1_100))


async def test_a_key_has_any_characters_but_spaces_between_words(boot: Boot) -> None:
    host, client = await boot.connected(small_settings())
    key = "5\u00a0kg\u3000Tee"
    await client.send({"subject": "s", "body": "m", "delay_ms": 1, "properties": {"keys": f"other {key}"}})
    await host.sleep_ms(100)
    assert [message["body"] for message in await ask(client, key=key)] == [b"m"]
    with pytest.raises(InvalidArgument):  # no word has a space, so none would be found
        await client.request("find", {"key": "other "})
