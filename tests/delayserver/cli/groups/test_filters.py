"""Filters from the command line and from the clients, over real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from delayserver.client import AsyncClient, Client
from delayserver.client.consuming.consumer import Consumer
from delayserver.protocol.errors import FilterInUse, FilterInvalid
from tests.delayserver.cli.conftest import Done, Server

Run = Callable[..., Done]


def send(client: Client, subject: str, *messages: tuple[str, str | None, dict[str, str]]) -> None:
    for body, tag, properties in messages:
        client.send(subject, body, delay_ms=0, tag=tag, properties=properties)
    left = len(messages)
    while left:
        came = client.pull(subject, "look", left, wait_s=60)
        assert came, "not delivered"
        left -= len(came)


MIXED: tuple[tuple[str, str | None, dict[str, str]], ...] = (
    ("a1", "a", {"price": "2"}),
    ("b1", "b", {"price": "12.5"}),
    ("c1", None, {"price": "cheap"}),
)


def test_pull_takes_tags_and_an_expression(server: Server) -> None:
    with Client(server.address) as client:
        send(client, "filters.cli", *MIXED)
    pull = ("pull", "filters.cli", "--max", "10", "--wait", "200ms", "--ack", "--json")
    for group, filters, expected in (
        ("t", ("--tags", "a || c"), ["a1"]),
        ("w", ("--where", "price > 3"), ["b1"]),
        ("tw", ("--tags", "*", "--where", "price NOT BETWEEN 1 AND 3 OR price LIKE 'ch%'"), ["b1", "c1"]),
    ):
        done = server.run(*pull, "--group", group, *filters)
        assert (done.code, [row["body"] for row in done.rows]) == (0, expected), done.err
    rows = {row["group"]: row for row in server.run("groups", "list", "filters.cli", "--json").rows}
    assert (rows["t"]["tags"], rows["t"]["where"], rows["t"]["filtered"], rows["t"]["lag"]) == ("a || c", None, 2, 0)
    assert rows["w"]["where"] == "price > 3"
    table = server.run("groups", "list", "filters.cli").out
    assert "FILTERED" in table


def test_a_bad_expression_is_refused_with_its_place(server: Server) -> None:
    done = server.run("pull", "filters.none", "--group", "g", "--where", "price > AND x", "--wait", "30s")
    assert done.code == 1
    assert (
        "filter_invalid: where at line 1, column 9: expected a property, a number, a text or '(', found AND" in done.err
    )


def test_a_policy_shows_and_sets_the_filter(server: Server) -> None:
    with Client(server.address) as client:
        send(client, "filters.policy", *MIXED)
    command = ("groups", "policy", "filters.policy", "--group", "g")
    done = server.run(*command, "--tags", "b", "--where", "price > 3")
    assert done.code == 0 and "tags      b\n" in done.out and "where     price > 3\n" in done.out, done.err
    done = server.run("pull", "filters.policy", "--group", "g", "--max", "9", "--wait", "200ms", "--json")
    assert [row["body"] for row in done.rows] == ["b1"]


def test_a_client_raises_the_errors_by_their_names(server: Server) -> None:
    with Client(server.address) as client, Client(server.address) as other:
        send(client, "filters.errors", *MIXED)
        with pytest.raises(FilterInvalid, match="line 1, column 5"):
            client.pull("filters.errors", "g", where="a = ")
        assert [each.body for each in client.pull("filters.errors", "g", 9, tags="b")] == [b"b1"]
        with pytest.raises(FilterInUse):
            other.pull("filters.errors", "g", tags="a")


def test_a_waiting_client_gets_the_first_match(server: Server) -> None:
    found: list[Any] = []
    with Client(server.address) as client, Client(server.address) as waiting:
        send(client, "filters.wait", *MIXED)

        def wait() -> None:
            found.extend(waiting.pull("filters.wait", "g", 9, wait_s=60, where="price = 'late'"))

        thread = threading.Thread(target=wait)
        thread.start()
        for _ in range(20):
            client.send("filters.wait", "no", delay_ms=0, properties={"price": "1"})
        assert not found
        client.send("filters.wait", "yes", delay_ms=0, properties={"price": "late"})
        thread.join(60)
    assert [each.body for each in found] == [b"yes"]


async def test_a_consumer_iterates_over_matches_alone(server: Server) -> None:
    with Client(server.address) as client:
        send(client, "filters.consumer", *MIXED, ("a2", "a", {"price": "5"}))
    async with AsyncClient(server.address) as client_:
        async with Consumer(client_, "filters.consumer", "g", tags="a", where="price > 3") as deliveries:
            async for received in deliveries:
                assert received.delivery.body == b"a2"
                assert await received.ack()
                break
