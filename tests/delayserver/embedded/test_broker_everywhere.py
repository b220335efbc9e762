"""The broker of a server in each of its three places: publish, order, filters, positions, dead letters, find, broadcast."""

from __future__ import annotations

import time
from datetime import timedelta

import pytest

from delayserver.client import Client, Delivery, Message
from delayserver.protocol.errors import FilterInvalid, GroupUnknown
from tests.delayserver.embedded.places import subject

WAIT_S = 20.0


def pulled(client: Client, name: str, count: int, group: str = "g") -> list[Delivery]:
    """The next so many deliveries, acked."""
    found: list[Delivery] = []
    deadline_s = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline_s:
        deliveries = client.pull(name, group, count - len(found), wait_s=WAIT_S)
        client.ack(name, group, deliveries)
        found += deliveries
    return found


def test_published_messages_lie_in_the_queue_of_their_subject_in_order(client: Client) -> None:
    name = subject()
    first = client.publish(name, b"0", message_id="p-0", properties={"k": "v"})
    many = client.publish_many([Message(name, b"%d" % n) for n in (1, 2)])
    columns = client.publish_columns(name, [b"3", b"4"])
    client.send(name, b"5", delay_ms=0)
    found = pulled(client, name, 6)
    assert [delivery.body for delivery in found] == [b"%d" % n for n in range(6)]
    assert [delivery.position for delivery in found] == list(range(first.position, first.position + 6))
    assert (found[0].message_id, found[0].properties) == ("p-0", {"k": "v"})
    assert len(many) == 2 and columns.accepted == 2


def test_one_way_messages_come_and_refused_ones_are_reported(client: Client) -> None:
    name = subject()
    client.publish_one_way(name, b"published")
    client.send_one_way(name, b"sent", client.ping() // 1000)
    client.send_one_way("", b"refused", client.ping() // 1000)
    client.ping()
    refused = client.take_one_way_refused()
    assert refused is not None and refused.messages == 1
    assert {delivery.body for delivery in pulled(client, name, 2)} == {b"published", b"sent"}


def test_messages_of_one_order_key_come_one_after_the_other(client: Client) -> None:
    name = subject()
    client.publish_many([Message(name, b"%d" % n, order_key="a") for n in range(3)])
    client.publish(name, b"other", order_key="b")
    (first,) = client.pull(name, "g", 1, wait_s=WAIT_S)
    assert first.body == b"0"
    assert [delivery.body for delivery in client.pull(name, "g", 10, wait_s=WAIT_S)] == [b"other"]
    client.nack(name, "g", [first], timedelta(0))
    assert [delivery.body for delivery in pulled(client, name, 3)] == [b"0", b"1", b"2"]


def test_the_pause_of_a_later_message_of_a_key_does_not_keep_an_earlier_one(client: Client) -> None:
    name = subject()
    client.publish_many([Message(name, b"%d" % n, order_key="a") for n in range(3)])
    first, second, _ = client.pull(name, "g", 3, wait_s=WAIT_S)
    client.nack(name, "g", [second], timedelta(days=1))
    client.nack(name, "g", [first], timedelta(0))
    assert [delivery.body for delivery in pulled(client, name, 1)] == [b"0"]
    assert not client.pull(name, "g", 10), "the third waits for the second"


def test_a_group_gets_the_messages_that_its_filter_matches(client: Client) -> None:
    name = subject()
    for tag, price in (("paid", "2"), ("paid", "7"), ("sent", "9")):
        client.publish(name, price, tag=tag, properties={"price": price})
    (delivery,) = client.pull(name, "g", wait_s=WAIT_S, tags="paid || lost", where="price > 3")
    assert (delivery.body, delivery.tag) == (b"7", "paid")
    with pytest.raises(FilterInvalid, match="line 1, column 6"):
        client.pull(name, "other", where="price")


def test_groups_seek_begin_at_the_latest_and_are_removed(client: Client) -> None:
    name = subject()
    client.publish_many([Message(name, b"%d" % n) for n in range(4)])
    pulled(client, name, 4)
    assert client.group(name, "g").lag == 0
    sought = client.seek(name, "g", "earliest")
    assert [delivery.body for delivery in pulled(client, name, 4)] == [b"0", b"1", b"2", b"3"]
    client.seek(name, "g", sought.first + 3)
    assert client.group(name, "g").lag == 1
    assert client.pull(name, "late", start="latest") == []
    client.publish(name, b"new")
    assert [delivery.body for delivery in client.pull(name, "late", wait_s=WAIT_S)] == [b"new"]
    client.remove_group(name, "late")
    with pytest.raises(GroupUnknown):
        client.group(name, "late")


def test_messages_are_read_and_found_without_a_group(client: Client) -> None:
    name = subject()
    client.publish_many([Message(name, b"%d" % n, message_id=f"{name}-{n}") for n in range(3)])
    page = client.read(name, 1, 10)
    assert (page.status, [message.body for message in page.messages]) == ("found", [b"1", b"2"])
    assert client.read(name, page.next).status == "nothing_yet"
    (found,) = client.find(f"{name}-2", subject=name)
    assert (found.body, found.position) == (b"2", 2)
    assert list(client.groups(name)) == []


def test_a_message_becomes_a_dead_letter_and_is_sent_again(client: Client) -> None:
    name = subject()
    assert client.set_policy(name, "g", attempts=1).attempts == 1
    client.publish(name, b"poison")
    (delivery,) = client.pull(name, "g", wait_s=WAIT_S)
    assert client.nack(name, "g", [delivery], reason="no").dead_lettered == 1
    (letter,) = client.dead_letters(name, "g", bodies=True)
    assert (letter.body, letter.reason, letter.text, letter.attempts) == (b"poison", "nacked", "no", 1)
    assert client.resend_dead_letters(name, "g").resent == 1
    assert [delivery.body for delivery in pulled(client, name, 1)] == [b"poison"]
    assert client.drop_dead_letters(name, "g").dropped == 0


def test_a_lookup_returns_the_body_of_a_message(client: Client) -> None:
    name = subject()
    sent = client.send(name, b"what it says", delay_ms=3_600_000, tag="t", order_key="k")
    found = client.lookup(sent.receipt, body=True)
    assert found.body == b"what it says"
    client.cancel(sent.receipt)


def test_a_broadcast_group_gets_every_message(client: Client) -> None:
    name = subject()
    client.publish(name, b"before")
    assert client.pull(name, "everyone", broadcast=True, start="latest") == []
    client.publish(name, b"after")
    assert [one.body for one in client.pull(name, "everyone", wait_s=WAIT_S, broadcast=True)] == [b"after"]
    assert [group.group for group in client.groups(name)] == []
