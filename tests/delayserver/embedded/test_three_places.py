"""One suite for a server process, an embedded server on a directory, and one in memory, with every kind of client."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from delayserver.client import Client, DelayServerError, Delivery, Message, MessageKey, Outcome, SendResult
from delayserver.protocol.errors import (
    FrameTooLarge,
    MessageTooLarge,
    NotRouted,
    ReceiptInvalid,
    SubjectInvalid,
    TooFar,
)
from tests.delayserver.embedded.places import Place, subject

FAR_MS = 3_600_000


def pulled(client: Client, name: str, count: int, group: str = "g") -> list[Delivery]:
    """The next so many deliveries, acked."""
    found: list[Delivery] = []
    deadline_s = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline_s:
        deliveries = client.pull(name, group, count - len(found), wait_s=5)
        assert client.ack(name, group, deliveries).acked == len(deliveries)
        found += deliveries
    return found


def test_a_message_is_sent_waits_and_is_pulled_and_acked(client: Client) -> None:
    name = subject()
    began_ms = time.time_ns() // 1_000_000
    sent = client.send(name, b"body", delay_ms=80, message_id="m-1", properties={"k": "v"})
    (delivery,) = client.pull(name, "g", wait_s=10)
    assert time.time_ns() // 1_000_000 >= began_ms + 80, "never early"
    assert (delivery.body, delivery.message_id, delivery.properties) == (b"body", "m-1", {"k": "v"})
    assert (delivery.due_ms, delivery.sequence, delivery.attempt) == (sent.due_ms, sent.sequence, 1)
    assert client.ack(name, "g", [delivery]).acked == 1
    assert client.ack(name, "g", [delivery]).unknown == 1
    assert client.pull(name, "g") == []
    assert client.lookup(sent.receipt).outcome is Outcome.DELIVERED


def test_many_messages_come_to_each_group(client: Client) -> None:
    name, now_ms = subject(), client.ping() // 1000
    results = client.send_many([Message(name, b"%d" % n, due_ms=now_ms + 50 - n) for n in range(20)])
    assert all(isinstance(result, SendResult) for result in results)
    one, two = ([int(delivery.body) for delivery in pulled(client, name, 20, group)] for group in ("one", "two"))
    assert one == two and sorted(one) == list(range(20))


def test_columns_go_in_and_come_out(client: Client) -> None:
    name, now_ms = subject(), client.ping() // 1000
    sent = client.send_columns(name, np.full(5000, now_ms), [b"%d" % n for n in range(5000)])
    assert sent.accepted == 5000
    bodies: list[bytes] = []
    while len(bodies) < 5000:
        columns = client.pull_columns(name, "g", 2000, wait_s=10)
        assert columns.count
        bodies += [delivery.body for delivery in columns.deliveries()]
        client.ack(name, "g", columns)
    assert bodies == [b"%d" % n for n in range(5000)]


def test_large_bodies_cross_in_both_directions(client: Client) -> None:
    name, body = subject(), bytes(range(256)) * 4096
    assert len(body) == 1 << 20
    for _ in range(6):
        client.send(name, body, delay_ms=0)
    assert [delivery.body == body for delivery in pulled(client, name, 6)] == [True] * 6
    with pytest.raises(MessageTooLarge):
        client.send(name, body + b"x", delay_ms=0)
    with pytest.raises(FrameTooLarge):
        client.send_many([Message(name, body, delay_ms=0)] * 17)


def test_messages_are_cancelled_looked_up_and_moved(client: Client) -> None:
    name = subject()
    sent = client.send(name, b"1", delay_ms=FAR_MS, message_id="a")
    assert client.lookup(sent.receipt).outcome is Outcome.PENDING
    assert client.cancel(MessageKey(name, "a", sent.due_ms)).outcome is Outcome.CANCELLED
    assert client.cancel(sent.receipt).outcome is Outcome.ALREADY_CANCELLED
    other = client.send(name, b"2", delay_ms=FAR_MS)
    moved = client.reschedule(other.receipt, delay_ms=0)
    assert moved.new_receipt is not None
    (delivery,) = pulled(client, name, 1)
    assert delivery.body == b"2"
    codes = client.cancel_columns([sent.due_ms, other.due_ms], [sent.sequence, other.sequence])
    assert codes.tolist() == [Outcome.ALREADY_CANCELLED, Outcome.ALREADY_CANCELLED]


def test_messages_are_cancelled_looked_up_and_moved_by_their_ids_alone(client: Client) -> None:
    name = subject()
    for message_id in ("a", "b"):
        client.send(name, message_id.encode(), delay_ms=FAR_MS, message_id=message_id)
    found = client.lookup(MessageKey(name, "a"), body=True)
    assert (found.outcome, found.body) == (Outcome.PENDING, b"a")
    assert client.cancel(MessageKey(name, "a")).outcome is Outcome.CANCELLED
    assert client.reschedule(MessageKey(name, "b"), delay_ms=0).new_receipt is not None
    (delivery,) = pulled(client, name, 1)
    assert delivery.body == b"b"
    unknown = client.lookup(MessageKey(name, "c"))
    assert (unknown.outcome, unknown.receipt) == (Outcome.UNKNOWN, None)


def test_a_nack_brings_a_message_back(client: Client) -> None:
    name = subject()
    client.send(name, b"again", delay_ms=0)
    (first,) = client.pull(name, "g", wait_s=10)
    assert client.nack(name, "g", [first], timedelta(0)).nacked == 1
    (second,) = client.pull(name, "g", wait_s=10)
    assert (second.body, second.attempt) == (b"again", 2)
    client.ack(name, "g", [second])


def test_a_delivery_that_is_not_acked_comes_again(client: Client) -> None:
    name = subject()
    client.send(name, b"again", delay_ms=0)
    (first,) = client.pull(name, "g", wait_s=10, ack_timeout_s=0.1)
    (second,) = client.pull(name, "g", wait_s=20)
    assert (first.attempt, second.attempt) == (1, 2)


def test_refusals_raise_their_named_errors_in_every_place(client: Client) -> None:
    name = subject()
    with pytest.raises(SubjectInvalid):
        client.send("", b"", delay_ms=0)
    with pytest.raises(TooFar):
        client.send(name, b"", at=datetime(2200, 1, 1, tzinfo=UTC))
    with pytest.raises(ReceiptInvalid):
        client.cancel("nonsense")
    with pytest.raises(NotRouted):
        client.route(group="none")
    mixed = client.send_many([Message(name, b"", delay_ms=FAR_MS), Message("", b"", delay_ms=FAR_MS)])
    assert isinstance(mixed[0], SendResult) and isinstance(mixed[1], DelayServerError)


def test_the_server_answers_hello_ping_status_route_and_groups(client: Client) -> None:
    assert client.connect().role == "server"
    assert abs(client.ping() - time.time_ns() // 1000) < 5_000_000
    assert client.status()["ready"] is True
    route = client.route(subject="any")
    assert route.group == "default" and len(route.nodes) == 1
    name = subject()
    client.send(name, b"", delay_ms=0)
    pulled(client, name, 1)
    assert [(group.subject, group.group) for group in client.groups(name)] == [(name, "g")]


def test_a_batcher_sends_in_the_background(client: Client) -> None:
    name = subject()
    with client.batcher(name, linger_ms=1) as batcher:
        for number in range(500):
            batcher.send(b"%d" % number, delay_ms=0)
    assert sorted(int(delivery.body) for delivery in pulled(client, name, 500)) == list(range(500))


def test_a_pull_that_waits_is_answered_by_the_arrival(place: Place) -> None:
    with ExitStack() as stack:
        client = stack.enter_context(place.open())
        name, began = subject(), threading.Event()
        client.pull(name, "g")
        arrived: list[float] = []

        def send_later() -> None:
            began.wait()
            time.sleep(0.3)
            arrived.append(time.monotonic())
            other.send(name, b"x", delay_ms=0)

        if place.kind != "blocking":
            other = client
        elif place.place == "process":
            other = stack.enter_context(place.open())
        else:
            other = client.client()  # type: ignore[attr-defined]
            stack.callback(other.close)
        thread = threading.Thread(target=send_later)
        thread.start()
        began.set()
        (delivery,) = client.pull(name, "g", wait_s=60)
        assert time.monotonic() - arrived[0] < 30 and delivery.body == b"x"
        thread.join()


def test_a_wait_without_a_message_ends_in_time(client: Client) -> None:
    began_s = time.monotonic()
    assert client.pull(subject(), "g", wait_s=0.2) == []
    assert 0.15 < time.monotonic() - began_s < 20
