"""Filters of `pull`: what a group gets, who sets its filter, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import trio

from delayserver.broker.actions.policy_table import PolicyTable
from delayserver.broker.filters.filter_limits import EXPRESSION_CHARACTERS_MAX
from delayserver.protocol.errors import DelayServerError
from tests.fakes.host import Boot, Client, Host, small_settings


async def started(boot: Boot, **settings: Any) -> tuple[Host, Client]:
    host = await boot.started(small_settings(**settings))
    return host, await host.client()


async def put(host: Host, client: Client, *messages: tuple[str, str, dict[str, str]]) -> None:
    """Send messages (body, tag, properties), which are delivered when this returns."""
    rows = [
        {"body": body, "subject": "s", "due_ms": host.now_ms, "properties": properties}
        for body, _, properties in messages
    ]
    for row, (_, tag, _) in zip(rows, messages, strict=True):
        if tag:
            row["tag"] = tag
    assert all("receipt" in result for result in await client.send(*rows))
    await host.sleep_ms(200)


def bodies(messages: list[dict[str, Any]]) -> list[str]:
    return [message["body"].decode() for message in messages]


async def pull_and_ack(client: Client, **arguments: Any) -> list[str]:
    messages = await client.pull(**arguments)
    if messages:
        deliveries = b"".join([message["delivery"].to_bytes(8, "little", signed=True) for message in messages])
        names = {"subject": "s", "group": arguments.get("group", "g")}
        reply = await client.request("ack", names | {"count": len(messages), "deliveries": deliveries})
        assert reply["unknown"] == 0
    return bodies(messages)


async def row_of(client: Client, group: str = "g") -> dict[str, Any]:
    rows = (await client.request("groups", {"subject": "s"}))["groups"]
    return next(row for row in rows if row["group"] == group)


MIXED: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("a1", "a", {"price": "3"}),
    ("b1", "b", {"price": "10"}),
    ("a2", "a", {"price": "10"}),
    ("-1", "", {"price": "11"}),
    ("c1", "c", {}),
)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"tags": "a"}, ["a1", "a2"]),
        ({"tags": "b || a"}, ["a1", "b1", "a2"]),
        ({"tags": "*"}, ["a1", "b1", "a2", "-1", "c1"]),
        ({"where": "price > 3"}, ["b1", "a2", "-1"]),
        ({"tags": "a||c", "where": "price > 3 OR price IS NULL"}, ["a2", "c1"]),
        ({"tags": "*", "where": "price < 5"}, ["a1"]),
        ({"tags": "never sent"}, []),
        ({"where": "missing = 1"}, []),
        ({"where": "price = 'three' AND price > 2"}, []),
        ({"tags": None, "where": None}, ["a1", "b1", "a2", "-1", "c1"]),
    ],
)
async def test_the_filter_of_its_first_pull_selects_the_messages_of_a_group(
    boot: Boot, given: dict[str, Any], expected: list[str]
) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    assert await pull_and_ack(client, **given) == expected
    row = await row_of(client)
    assert (row["lag"], row["filtered"], row["position"]) == (0, 5 - len(expected), 5)
    assert (await client.status())["broker"]["filtered"] == 5 - len(expected)
    assert bodies(await client.pull(group="other")) == ["a1", "b1", "a2", "-1", "c1"]


@pytest.mark.parametrize(
    ("given", "error", "text"),
    [
        ({"where": "price >"}, "filter_invalid", "where at line 1, column 8: expected a property, a number"),
        ({"where": "a = 1\nAND b ! 2"}, "filter_invalid", "where at line 2, column 7"),
        ({"where": ""}, "filter_invalid", "where at line 1, column 1"),
        ({"where": "1 = 2 AND NOT 'a' > 'b'"}, "filter_invalid", "where at line 1, column 1: it never matches"),
        ({"where": "a" * EXPRESSION_CHARACTERS_MAX + " = 1"}, "filter_invalid", "at most 4096 characters"),
        ({"tags": ""}, "filter_invalid", "tags at line 1, column 1: expected a tag"),
        ({"tags": "a || "}, "filter_invalid", "tags at line 1, column 6: expected a tag"),
        ({"tags": "a || *"}, "filter_invalid", "stands alone"),
        ({"tags": "a\x07"}, "filter_invalid", "printable"),
        ({"tags": "t" * 256}, "filter_invalid", "at most 255 bytes"),
        ({"tags": "||" * 60_000}, "filter_invalid", "at most 16640 characters"),
        ({"tags": 7}, "invalid_argument", "tags must be a text"),
        ({"where": ["a = 1"]}, "invalid_argument", "where must be a text"),
    ],
)
async def test_a_bad_filter_is_refused_at_once_with_the_place_of_its_fault(
    boot: Boot, given: dict[str, Any], error: str, text: str
) -> None:
    _, client = await started(boot)
    with trio.fail_after(1):  # also where the subject has no message yet, and the pull would wait
        with pytest.raises(DelayServerError, match=text) as raised:
            await client.pull(wait_ms=30_000, **given)
    assert raised.value.name == error
    assert (await client.request("groups"))["groups"] == []


async def test_the_tags_table_is_a_bound_for_subscriptions_too(boot: Boot) -> None:
    host, client = await started(boot, message={"tags_max": 1})
    await put(host, client, ("a1", "a", {}))
    assert await client.refused("pull", {"subject": "s", "group": "g", "tags": "a || b"}) == "tags_full"
    assert await pull_and_ack(client, tags="a") == ["a1"]


async def test_a_pull_without_a_filter_uses_that_of_the_group(boot: Boot) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    assert await pull_and_ack(client, tags="c", max_messages=1) == ["c1"]
    await put(host, client, ("a3", "a", {}), ("c2", "c", {}))
    assert await pull_and_ack(client) == ["c2"]
    row = await row_of(client)
    assert (row["tags"], row["where"]) == ("c", None)


async def test_filters_that_differ_in_spaces_and_order_alone_are_the_same(boot: Boot) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    assert len(await client.pull(tags="b||a", where="price > 3 ")) == 2  # leased: another filter would be refused
    assert await client.pull(tags=" a ||  b||a", where=" price > 3") == []


async def test_another_filter_replaces_that_of_an_unused_group(boot: Boot) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    assert await pull_and_ack(client, tags="a") == ["a1", "a2"]
    await put(host, client, ("a3", "a", {}), ("b2", "b", {}))
    assert await pull_and_ack(client, tags="b") == ["b2"]
    assert await pull_and_ack(client, tags="*") == []
    await put(host, client, ("a4", "a", {}), ("b3", "b", {}))
    assert await pull_and_ack(client) == ["a4", "b3"]
    assert (await row_of(client))["tags"] is None


async def test_another_filter_is_refused_while_a_consumer_has_messages(boot: Boot) -> None:
    host, client = await started(boot, broker={"ack_timeout_ms": 5_000})
    await put(host, client, *MIXED)
    messages = await client.pull(tags="a")
    with pytest.raises(DelayServerError, match=r"filter_in_use.*pull with tags 'a'") as raised:
        await client.pull(tags="b")
    assert raised.value.retriable and raised.value.retry_after_ms
    assert await client.refused("pull", {"subject": "s", "group": "g", "tags": "*"}) == "filter_in_use"
    assert await client.pull() == [], "one that names no filter is as good as one that names the same"
    assert messages
    await host.sleep_ms(5_200)  # the consumer counts as dead; its messages come again whatever the filter
    await put(host, client, ("b2", "b", {}))
    await host.sleep_ms(2_000)
    assert sorted(bodies(await client.pull(tags="b"))) == ["a1", "a2", "b2"]


async def test_another_filter_is_refused_while_a_pull_of_the_group_waits(boot: Boot) -> None:
    host, client = await started(boot)
    other = await host.client()
    await put(host, client, ("x", "", {}))
    waiting = await client.ask("pull", {"subject": "s", "group": "g", "tags": "a", "wait_ms": 20_000})
    await host.sleep_ms(100)
    assert await other.refused("pull", {"subject": "s", "group": "g", "where": "a = 1"}) == "filter_in_use"
    await put(host, other, ("a1", "a", {}))
    assert bodies((await client.reply(waiting))["messages"]) == ["a1"]


async def test_a_waiting_pull_is_answered_by_the_first_match_alone(boot: Boot) -> None:
    host, client = await started(boot)
    producer = await host.client()
    await put(host, producer, ("old", "b", {}))
    waiting = await client.ask(
        "pull", {"subject": "s", "group": "g", "tags": "a", "max_messages": 10, "wait_ms": 30_000}
    )
    for number in range(50):
        await put(host, producer, (f"b{number}", "b", {}))
    assert waiting not in client.replies and (await row_of(producer))["position"] == 51
    assert (await row_of(producer))["filtered"] == 51
    began_ms = host.now_ms
    await put(host, producer, ("a1", "a", {}))
    assert bodies((await client.reply(waiting))["messages"]) == ["a1"]
    assert host.now_ms - began_ms < 1_000


async def test_a_pull_that_nothing_matches_is_empty_after_its_wait(boot: Boot) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    began_ms = host.now_ms
    assert await client.pull(where="colour = 'none'", wait_ms=3_000) == []
    assert 3_000 <= host.now_ms - began_ms < 3_500


async def test_a_filter_and_its_position_are_there_after_a_restart_and_a_crash(boot: Boot) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    assert await pull_and_ack(client, tags="a", where="price > 3") == ["a2"]
    await host.restart()
    client = await host.client()
    await put(host, client, ("a3", "a", {"price": "4"}), ("a4", "a", {"price": "1"}))
    assert await pull_and_ack(client) == ["a3"]
    await host.restart_killed()
    client = await host.client()
    await put(host, client, ("a5", "a", {"price": "4"}), ("b5", "b", {"price": "4"}))
    assert await pull_and_ack(client) == ["a5"]
    row = await row_of(client)
    assert (row["tags"], row["where"], row["lag"]) == ("a", "price > 3", 0)


async def test_a_policy_sets_the_filter_of_a_group(boot: Boot) -> None:
    host, client = await started(boot)
    names = {"subject": "s", "group": "g"}
    reply = await client.request("policy", names | {"set": {"tags": "b ||a", "where": " price > 3 "}})
    assert (reply["policy"]["tags"], reply["policy"]["where"]) == ("a || b", "price > 3")
    await put(host, client, *MIXED)
    assert await pull_and_ack(client) == ["b1", "a2"]
    with pytest.raises(DelayServerError, match="where at line 1, column 4"):
        await client.request("policy", names | {"set": {"where": "a >"}})
    assert await client.refused("policy", names | {"set": {"where": 5}}) == "policy_invalid"
    assert await client.refused("policy", names | {"set": {"tags": "||"}}) == "filter_invalid"
    reply = await client.request("policy", names | {"set": {"tags": None, "where": None}})
    assert (reply["policy"]["tags"], reply["policy"]["where"]) == (None, None)
    await put(host, client, ("c2", "c", {}))
    assert await pull_and_ack(client) == ["c2"]


async def test_a_policy_changes_the_filter_also_under_its_consumers(boot: Boot) -> None:
    host, client = await started(boot)
    operator = await host.client()
    await put(host, client, ("x", "", {}))
    waiting = await client.ask("pull", {"subject": "s", "group": "g", "tags": "a", "wait_ms": 30_000})
    await host.sleep_ms(100)
    await operator.request("policy", {"subject": "s", "group": "g", "set": {"tags": "b"}})
    await put(host, operator, ("a1", "a", {}))
    assert waiting not in client.replies
    await put(host, operator, ("b1", "b", {}))
    assert bodies((await client.reply(waiting))["messages"]) == ["b1"]


async def test_filters_of_all_groups_together_are_bounded(boot: Boot, monkeypatch: pytest.MonkeyPatch) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    server = host.server
    assert server is not None
    characters_max = server.parts.broker.core.state.limits.filters_characters_max
    monkeypatch.setattr(PolicyTable, "filter_characters", lambda _: characters_max - 5)
    assert await client.refused("pull", {"subject": "s", "group": "g", "tags": "a || b"}) == "groups_full"
    assert await pull_and_ack(client, tags="c", group="h") == ["c1"]


async def test_many_consumers_begin_with_the_same_filter_at_once(boot: Boot) -> None:
    host, client = await started(boot)
    await put(host, client, *MIXED)
    clients = [await host.client() for _ in range(5)]
    arguments = {"subject": "s", "group": "g", "where": "price > 3", "max_messages": 1, "wait_ms": 1_000}
    asked = [await each.ask("pull", arguments) for each in clients]
    replies = [await each.reply(number) for each, number in zip(clients, asked, strict=True)]
    assert sorted(bodies([message for reply in replies for message in reply["messages"]])) == ["-1", "a2", "b1"]


async def test_one_of_two_filters_at_once_is_taken_and_the_other_is_refused(boot: Boot) -> None:
    host, client = await started(boot)
    other = await host.client()
    await put(host, client, *MIXED)
    arguments = {"subject": "s", "group": "g", "max_messages": 9, "wait_ms": 1_000}
    first = await client.ask("pull", arguments | {"tags": "a"})
    second = await other.ask("pull", arguments | {"tags": "b"})
    results: list[object] = []
    for each, number in ((client, first), (other, second)):
        try:
            results.append(bodies((await each.reply(number))["messages"]))
        except DelayServerError as error:
            results.append(error.name)
    assert results in ([["a1", "a2"], "filter_in_use"], ["filter_in_use", ["b1"]])


async def test_filters_are_compiled_one_at_a_time_and_each_text_once(boot: Boot) -> None:
    """A thread that compiles takes the GIL from the event loop, and each further one takes as much again."""
    host, client = await started(boot)
    await put(host, client, *MIXED)
    at_once, at_once_max, compiled = 0, 0, 0

    async def slowly(function: str, work: Callable[[], Any]) -> Any:
        nonlocal at_once, at_once_max, compiled
        if "parse_filter" not in function:
            return work()
        at_once, compiled = at_once + 1, compiled + 1
        at_once_max = max(at_once_max, at_once)
        await trio.sleep(0.01)
        at_once -= 1
        return work()

    host.workers.around = slowly
    asked = [
        await client.ask("pull", {"subject": "s", "group": f"g{number}", "where": f"price > {number % 5}"})
        for number in range(20)
    ]
    for number in asked:
        await client.reply(number)
    assert (at_once_max, compiled) == (1, 5)
