"""Policies and dead letters over both clients, against a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import DelayServerError
from tests.delayserver.cli.conftest import Server, serving
from tests.delayserver.client.both import KINDS, connected


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory: Path = tmp_path_factory.mktemp("dead") / "data"
    running: Server
    with serving(directory, "--set", "storage.durability=os") as running:
        yield running.address


@pytest.fixture(params=KINDS)
def client(request: Any, address: str) -> Iterator[Client]:
    with connected(request.param, address) as client:
        yield client


@pytest.fixture
def subject(client: Client, request: Any) -> str:
    """A subject of this test, whose group `g` gives up at once."""
    name = f"s-{request.node.name}"
    policy = client.set_policy(name, "g", attempts=1)
    assert (policy.attempts, policy.settings["attempts"], policy.first_ms) == (1, 1, 1000)
    assert client.policy(name, "g") == policy
    return name


def give_up(client: Client, subject: str, count: int) -> None:
    client.send_columns(subject, delay_ms=0, bodies=[b"%d" % number for number in range(count)])
    got = 0
    while got < count:
        deliveries = client.pull(subject, "g", count, wait_s=10)
        assert deliveries
        got += len(deliveries)
        assert client.nack(subject, "g", deliveries, reason="no").dead_lettered == len(deliveries)


def test_all_pages_of_letters_are_gathered_and_all_parts_are_sent_again(client: Client, subject: str) -> None:
    give_up(client, subject, 1500)
    letters = client.dead_letters(subject, "g", 1400, bodies=True)
    assert [letter.body for letter in letters] == [b"%d" % number for number in range(1400)]
    assert {(letter.reason, letter.text, letter.attempts) for letter in letters} == {("nacked", "no", 1)}
    (last,) = client.dead_letters(subject, "g", after=letters[-1].position + 99)[-1:]
    assert last.body is None and last.body_bytes == 4
    (row,) = client.groups(subject)
    assert row.dead_letters == 1500
    resent = client.resend_dead_letters(subject, "g", 1100)
    assert (resent.resent, resent.left) == (1100, 400)
    assert client.drop_dead_letters(subject, "g", positions=[1100, 1101]).dropped == 2
    dropped = client.drop_dead_letters(subject, "g")
    assert (dropped.dropped, dropped.left) == (398, 0)
    bodies: set[bytes] = set()
    while len(bodies) < 1100:
        deliveries = client.pull(subject, "g", 1100, wait_s=10)
        assert deliveries and {delivery.attempt for delivery in deliveries} == {1}
        bodies |= {delivery.body for delivery in deliveries}
        client.ack(subject, "g", deliveries)
    assert bodies == {b"%d" % number for number in range(1100)}


def test_a_resend_sends_only_the_chosen_letters(client: Client, subject: str) -> None:
    give_up(client, subject, 3)
    assert client.resend_dead_letters(subject, "g", positions=[7]).resent == 0
    resent = client.resend_dead_letters(subject, "g", positions=[2, 2, 0], rate=1000)
    assert (resent.resent, resent.left) == (2, 1)
    with pytest.raises(DelayServerError, match="letters_max"):
        client.drop_dead_letters(subject, "g", 0)
    with pytest.raises(DelayServerError, match="group_unknown"):
        client.dead_letters(subject, "nobody")
    with pytest.raises(DelayServerError, match="policy_invalid"):
        client.set_policy(subject, "g", attempts=-1)
    assert client.set_policy(subject, "g", reset=True).attempts == 0


def test_a_delay_level_sets_the_due_time_and_an_unknown_level_is_refused(client: Client, subject: str) -> None:
    before_ms = client.ping() // 1000
    sent = client.send(subject, b"m", delay_level=4)
    assert 30_000 <= sent.due_ms - before_ms < 40_000
    assert client.connect().delay_levels_ms[:4] == (1_000, 5_000, 10_000, 30_000)
    for level in (0, 19):
        with pytest.raises(DelayServerError, match="delay_level"):
            client.send(subject, b"m", delay_level=level)
    with pytest.raises(DelayServerError, match="delay_level"):
        client.send(subject, b"m", delay_level=1, delay_ms=1)
    with pytest.raises(DelayServerError, match="only one"):
        client.send(subject, b"m", delay_level=1, due_ms=before_ms)


def test_nacks_take_unseen_and_levels(client: Client, subject: str) -> None:
    client.send(subject, b"m", delay_ms=0)
    (delivery,) = client.pull(subject, "g", wait_s=10)
    assert client.nack(subject, "g", [delivery], level=1, unseen=True).dead_lettered == 0
    (delivery,) = client.pull(subject, "g", wait_s=10)
    assert delivery.attempt == 1
    assert client.nack(subject, "g", [delivery]).dead_lettered == 1
