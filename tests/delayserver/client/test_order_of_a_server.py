"""Messages with an order key on real sockets: consumers that are killed, keys that never succeed, restarts, a long pull."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from delayserver.client import Client, Delivery
from tests.delayserver.cli.conftest import Server, run, serving
from tests.delayserver.client.listening.listeners import until

GROUP = "workers"
SETTINGS = ("--set", "broker.redelivery_first_ms=100", "--set", "storage.durability=os")
# A consumer that takes messages, says so, and never answers for them.
CONSUMER = """
import sys, time
from delayserver.client import Client
began_s = time.monotonic()
with Client(sys.argv[1]) as client:
    taken = client.pull(sys.argv[2], "workers", wait_s=10, ack_timeout_s=float(sys.argv[3]))
    print(began_s, ",".join(str(message.delivery) for message in taken), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("node") / "data", *SETTINGS) as server:
        yield server


@pytest.fixture
def client(node: Server) -> Iterator[Client]:
    with Client(node.address) as client:
        yield client


def publish(client: Client, subject: str, *texts: str) -> None:
    """Messages whose order key is their first letter."""
    for text in texts:
        client.publish(subject, text, order_key=text[0])


def pull(client: Client, subject: str, count: int = 100, wait_s: float = 0.0) -> list[Delivery]:
    return client.pull(subject, GROUP, count, wait_s=wait_s)


def texts(deliveries: list[Delivery]) -> list[str]:
    return [delivery.body.decode() for delivery in deliveries]


def test_a_consumer_that_is_killed_loses_its_keys_in_order_and_its_acks_are_refused(
    client: Client, node: Server, subject: str
) -> None:
    # A machine that stands still may outlast a lease. Then the next subject has a longer one.
    for lease_s in (2, 20, 120):
        subject = f"{subject}.{lease_s}"
        publish(client, subject, "a1", "a2", "b1")
        consumer = subprocess.Popen(
            [sys.executable, "-c", CONSUMER, node.address, subject, str(lease_s)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert consumer.stdout is not None
            began_s, numbers = consumer.stdout.readline().split()
            taken = [int(number) for number in numbers.split(",")]
        finally:
            consumer.kill()
            consumer.communicate()
        assert len(taken) == 3
        publish(client, subject, "a3", "c1")
        others = texts(pull(client, subject))
        if time.monotonic() - float(began_s) < lease_s:
            break
    assert others == ["c1"], "the killed consumer has its keys until its lease ends"
    again = pull(client, subject, wait_s=130)
    while len(again) < 2:
        again += pull(client, subject, wait_s=130)
    assert sorted(texts(again)) == ["a1", "b1"] and {delivery.attempt for delivery in again} == {2}
    assert client.ack(subject, GROUP, taken).unknown == 3, "another consumer has the keys"
    assert client.nack(subject, GROUP, taken).unknown == 3
    assert client.ack(subject, GROUP, again).unknown == 0
    rest = pull(client, subject)
    assert texts(rest) == ["a2", "a3"] and {delivery.attempt for delivery in rest} == {1}


def test_a_held_pull_gets_the_next_message_of_a_key_when_another_consumer_acks(
    client: Client, node: Server, subject: str
) -> None:
    publish(client, subject, "a1", "a2")
    first = pull(client, subject, 1)
    found: list[Delivery] = []

    def hold() -> None:
        with Client(node.address) as other:
            found.extend(pull(other, subject, wait_s=30))

    waiting = threading.Thread(target=hold)
    waiting.start()
    until(lambda: any(group.waiting_in_place for group in client.groups(subject)), "a look at a2")
    client.ack(subject, GROUP, first)
    waiting.join(20)
    assert texts(found) == ["a2"]


def test_a_key_that_never_succeeds_goes_on_behind_a_dead_letter(client: Client, subject: str) -> None:
    client.set_policy(subject, GROUP, attempts=2, first_ms=1)
    publish(client, subject, "a1", "a2", "b1")
    handled: list[tuple[str, int]] = []
    while len(handled) < 4:
        for delivery in pull(client, subject, 1, wait_s=60):
            handled.append((delivery.body.decode(), delivery.attempt))
            if delivery.body == b"a1":
                client.nack(subject, GROUP, [delivery], reason="no such order")
            else:
                client.ack(subject, GROUP, [delivery])
    assert [one for one in handled if one[0][0] == "a"] == [("a1", 1), ("a1", 2), ("a2", 1)]
    (letter,) = client.dead_letters(subject, GROUP)
    assert (letter.text, letter.attempts) == ("no such order", 2)
    publish(client, subject, "a3")
    busy = pull(client, subject, wait_s=60)
    assert texts(busy) == ["a3"]
    assert client.resend_dead_letters(subject, GROUP).resent == 1
    publish(client, subject, "b2")
    assert texts(pull(client, subject, wait_s=60)) == ["b2"]
    assert pull(client, subject, wait_s=0.3) == [], "a1 comes again, and not beside a3"
    client.ack(subject, GROUP, busy)
    assert texts(pull(client, subject, wait_s=60)) == ["a1"]


def test_with_the_policy_wait_a_key_that_never_succeeds_stops_alone(client: Client, node: Server, subject: str) -> None:
    # Messages that come again go first. So the pause is longer than a pull, and the others have a turn.
    policy = run("groups", "policy", subject, "--group", GROUP, "--attempts", "1", "--first", "50ms", "--cap", "50ms",
                 "--failed-key", "wait", "--server", node.address)  # fmt: skip
    assert "wait" in policy.out
    publish(client, subject, "a1", "a2")
    for attempt in (1, 2, 3):
        (failed,) = pull(client, subject, 1, wait_s=60)
        assert (failed.body, failed.attempt) == (b"a1", attempt)
        assert client.nack(subject, GROUP, [failed]).dead_lettered == 0
    publish(client, subject, "b1", "b2")
    others: list[str] = []
    while len(others) < 2:
        for delivery in pull(client, subject, 1, wait_s=60):
            others += [delivery.body.decode()] if delivery.body[:1] == b"b" else []
            settle = client.ack if delivery.body[:1] == b"b" else client.nack
            settle(subject, GROUP, [delivery])
    assert others == ["b1", "b2"]
    (group,) = client.groups(subject)
    assert group.lag == 2 and group.dead_letters == 0


def test_a_killed_server_gives_a_key_out_from_its_first_unfinished_message(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, Client(server.address) as client:
        publish(client, "orders", "a1", "b1", "a2", "a3", "b2")
        first = pull(client, "orders", 2)
        assert texts(first) == ["a1", "b1"]
        assert texts(pull(client, "orders")) == []
        client.ack("orders", GROUP, first[1:])
        client.nack("orders", GROUP, first[:1])
    with serving(tmp_path / "data") as server, Client(server.address) as client:
        again = pull(client, "orders", 2, wait_s=60)
        assert texts(again) == ["a1", "a2"]
        assert texts(pull(client, "orders")) == ["b2"]
        assert client.ack("orders", GROUP, first).unknown == 2, "the process that leased them is gone"
        client.ack("orders", GROUP, again)
        assert texts(pull(client, "orders", wait_s=60)) == ["a3"]
