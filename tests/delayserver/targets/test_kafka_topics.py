"""Whole servers deliver to topics of a real Kafka: what arrives, what is refused, and what a failing Kafka leads to."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from delayserver import embedded
from delayserver.cli import cli
from delayserver.client import Client
from delayserver.client.values.messages import SendResult
from delayserver.kafka.client_options import KafkaCluster
from delayserver.protocol.outcomes import Outcome
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.cli.conftest import serving
from tests.delayserver.kafka.following import library_threads
from tests.delayserver.kafka.test_topic import alter

if TYPE_CHECKING:
    from confluent_kafka import Message

pytestmark = pytest.mark.kafka
_numbers = itertools.count()


def make_topic(kafka: KafkaNodes, name: str = "", partitions: int = 3, **settings: str) -> str:
    """A topic that no other test has, which all brokers know."""
    from confluent_kafka.admin import AdminClient, NewTopic

    name = name or f"target-{next(_numbers)}"
    client = AdminClient({"bootstrap.servers": kafka.bootstrap})
    dotted = {setting.replace("_", "."): value for setting, value in settings.items()}
    client.create_topics([NewTopic(name, partitions, 1, config=dotted)])[name].result()
    until(lambda: name in client.list_topics().topics)
    return name


def records(kafka: KafkaNodes, topic: str, count: int) -> list[Message]:
    """The first records of a topic, at least so many; those of a partition in order."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "unused", "enable.auto.commit": False})
    partitions = consumer.list_topics(topic).topics[topic].partitions
    consumer.assign([TopicPartition(topic, partition, 0) for partition in partitions])
    found: list[Message] = []

    def enough() -> bool:
        found.extend([record for record in consumer.consume(1_000, 0.1) if record.error() is None])
        return len(found) >= count

    try:
        until(enough)
    finally:
        consumer.close()
    return found


def headers(record: Message) -> dict[str, str]:
    found: Any = record.headers()
    return {name: value.decode() for name, value in found}


def until(holds: Callable[[], bool]) -> None:
    """Minutes are for a busy machine: it takes a moment."""
    deadline_s = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)


def config(tmp_path: Path, address: str, *, options: str = "{}", more: str = "", fallback: bool = False) -> str:
    path = tmp_path / "server.toml"
    names = '["lake", "here"]' if fallback else '["lake"]'
    path.write_text(
        f'[[groups]]\nname = "lake"\nnodes = [{{ address = "{address}", options = {options} }}]\n'
        f'[[groups]]\nname = "here"\n[[routes]]\npattern = "*"\ngroups = {names}\n{more}'
    )
    return str(path)


def outcome(server: embedded.Embedded, sent: SendResult) -> Outcome:
    return server.lookup(sent.receipt).outcome


def delivered(server: embedded.Embedded, *sent: SendResult) -> Callable[[], bool]:
    return lambda: {outcome(server, each) for each in sent} == {Outcome.DELIVERED}


def node(server: embedded.Embedded) -> dict[str, Any]:
    found: dict[str, Any] = server.status()["groups"]["lake"]["nodes"][0]
    return found


def test_a_record_has_body_key_and_headers_of_its_message_and_is_never_early(
    one_node: KafkaNodes, tmp_path: Path
) -> None:
    topic = make_topic(one_node, "prefix.orders")
    path = config(tmp_path, f"kafka://{one_node.bootstrap}/prefix.{{subject}}")
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        plain = server.send("orders", "plain", delay_ms=300)
        rich = server.send(
            "orders", "rich", delay_ms=0, order_key="customer 7", message_id="m7", properties={"currency": "EUR"}
        )
        until(delivered(server, plain, rich))
        assert (node(server)["state"], node(server)["problem"]) == ("up", "")
    found = {record.value(): record for record in records(one_node, topic, 2)}
    assert set(found) == {b"plain", b"rich"}
    one, other = found[b"plain"], found[b"rich"]
    assert one.key() is None
    assert headers(one)["delayserver-message-id"] == plain.message_id
    assert "delayserver-attempt" not in headers(one)
    assert one.timestamp()[1] >= int(headers(one)["delayserver-due-ms"])
    assert other.key() == b"customer 7"
    server_id, sequence, redelivery = headers(other)["delayserver-id"].split(":")
    assert rich.receipt.startswith(server_id)
    assert (int(sequence) > 0, redelivery) == (True, "0")
    assert headers(other)["delayserver-subject"] == "orders"
    assert (headers(other)["delayserver-message-id"], headers(other)["currency"]) == ("m7", "EUR")


def test_a_record_that_kafka_refuses_is_named_and_holds_up_no_other(one_node: KafkaNodes, tmp_path: Path) -> None:
    topic = make_topic(one_node, max_message_bytes="200000")
    path = config(tmp_path, f"kafka://{one_node.bootstrap}/{topic}", options="{ batch_bytes = 100000 }")
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        due_ms = time.time_ns() // 1_000_000 + 300
        large = server.send("s", bytes(300_000), due_ms=due_ms)
        small = [server.send("s", f"{number}", due_ms=due_ms) for number in range(20)]
        until(delivered(server, *small))
        until(lambda: node(server)["problem"] == "message_too_large")
        until(lambda: outcome(server, large) == Outcome.RETRYING)  # in between it is tried again
        assert (node(server)["state"], node(server)["circuit"]) == ("up", "closed"), "the node takes others"
        assert server.cancel(large.receipt).outcome != Outcome.DELIVERED


def test_a_missing_topic_stops_its_node_alone_and_the_topic_gets_all_when_it_is_made(
    one_node: KafkaNodes, tmp_path: Path
) -> None:
    topic = f"later-{next(_numbers)}"
    path = config(tmp_path, f"kafka://{one_node.bootstrap}/{topic}")
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        sent = [server.send("s", f"{number}", delay_ms=0) for number in range(10)]
        until(lambda: node(server)["problem"] == "topic_missing")
        assert topic in node(server)["last_error"]
        make_topic(one_node, topic)
        until(delivered(server, *sent))
        status = server.status()["groups"]["lake"]
        assert status["maybe_delivered_twice"] == 0, "what was certainly not taken is no doubt"
    assert len(records(one_node, topic, 10)) == 10


def test_one_missing_topic_of_a_template_does_not_stop_the_others(one_node: KafkaNodes, tmp_path: Path) -> None:
    topic = make_topic(one_node)
    path = config(tmp_path, f"kafka://{one_node.bootstrap}/{{subject}}")
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        missing, illegal = server.send("no-such-topic", "", delay_ms=0), server.send("a/b", "", delay_ms=0)
        until(lambda: {outcome(server, each) for each in (missing, illegal)} == {Outcome.RETRYING})
        assert node(server)["problem"] == "topic_missing"
        until(delivered(server, *[server.send(topic, "there", delay_ms=0) for _ in range(5)]))
        assert node(server)["circuit"] == "closed"


def test_messages_of_an_order_key_wait_behind_one_that_kafka_refuses_and_keep_their_order(
    one_node: KafkaNodes, tmp_path: Path
) -> None:
    topic = make_topic(one_node, max_message_bytes="200000")
    path = config(tmp_path, f"kafka://{one_node.bootstrap}/{topic}", options="{ batch_bytes = 100000 }")
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        due_ms = time.time_ns() // 1_000_000 + 500
        sent = [
            server.send(
                "s", f"{number}".ljust(300_000 if (key, number) == ("a", 3) else 1), due_ms=due_ms, order_key=key
            )
            for number in range(20)
            for key in ("a", "b")
        ]
        until(delivered(server, *sent[:6], *sent[7::2]))
        until(lambda: node(server)["problem"] == "message_too_large")
        assert Outcome.DELIVERED not in {outcome(server, each) for each in sent[6::2]}
        alter(KafkaCluster(one_node.bootstrap, topic), "max.message.bytes=1000000")
        until(delivered(server, *sent))
    for key in (b"a", b"b"):
        mine = [record for record in records(one_node, topic, 40) if record.key() == key]
        assert [int(record.value() or b"") for record in mine] == [*range(20)]
        assert len({record.partition() for record in mine}) == 1


def test_while_no_broker_answers_messages_go_to_the_fallback_group_without_doubt(
    kafka: KafkaNodes, tmp_path: Path
) -> None:
    topic = make_topic(kafka)
    more = "[dispatch]\nbreaker_failures = 2\n"
    path = config(tmp_path, f"kafka://{kafka.bootstrap}/{topic}", more=more, fallback=True)
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        until(delivered(server, server.send("s", "before", delay_ms=0)))
        kafka.kill(1)
        until(lambda: not server_answers(kafka))
        # A record that the library gets before it has noticed is in doubt, and rightly so: its connection may have taken it.
        time.sleep(2)
        sent = server.send("s", "meanwhile", delay_ms=0)
        (message,) = server.pull("s", "g", wait_s=120)
        assert message.message_id == sent.message_id
        until(delivered(server, sent))
        assert [group["maybe_delivered_twice"] for group in server.status()["groups"].values()] == [0, 0]
        kafka.start()
        until(lambda: node(server)["state"] == "up")
        until(delivered(server, server.send("s", "behind", delay_ms=0)))
    assert {record.value() for record in records(kafka, topic, 2)} == {b"before", b"behind"}


def server_answers(kafka: KafkaNodes) -> bool:
    import socket

    host, _, port = kafka.bootstrap.partition(":")
    with socket.socket() as probe:
        return probe.connect_ex((host, int(port))) == 0


def test_a_message_without_a_report_comes_again_with_the_same_id_and_counts_as_maybe_twice(
    kafka: KafkaNodes, tmp_path: Path
) -> None:
    topic = make_topic(kafka)
    more = "[dispatch]\ndeliver_timeout_ms = 2500\n"
    path = config(tmp_path, f"kafka://{kafka.bootstrap}/{topic}", more=more)
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        until(delivered(server, server.send("s", "before", delay_ms=0)))
        kafka.pause(1)
        sent = server.send("s", "doubtful", delay_ms=0)
        until(lambda: node(server)["failures"] > 0)
        assert server.cancel(sent.receipt).outcome == Outcome.TOO_LATE
        kafka.resume(1)
        until(delivered(server, sent))
        assert server.status()["groups"]["lake"]["maybe_delivered_twice"] == 1
    found = [headers(record) for record in records(kafka, topic, 2) if record.value() == b"doubtful"]
    assert len({each["delayserver-id"] for each in found}) == 1
    assert len(found) <= 2, "what timed out does not go out later, once for each attempt"
    assert "2" in [each.get("delayserver-attempt") for each in found]


def test_what_is_on_its_way_when_the_server_is_killed_comes_again_with_the_same_id(
    kafka: KafkaNodes, tmp_path: Path
) -> None:
    topic = make_topic(kafka)
    path = config(tmp_path, f"kafka://{kafka.bootstrap}/{topic}")
    with serving(tmp_path / "data", "--config", path) as running, Client(running.address) as client:
        client.send("s", "before", delay_ms=0)
        records(kafka, topic, 1)
        kafka.pause(1)
        sent = client.send("s", "on its way", delay_ms=0)
        until(lambda: client.lookup(sent.receipt).outcome == Outcome.IN_FLIGHT)
    kafka.resume(1)
    with serving(tmp_path / "data", "--config", path) as running, Client(running.address) as client:
        until(lambda: client.lookup(sent.receipt).outcome == Outcome.DELIVERED)
        assert client.status()["groups"]["lake"]["maybe_delivered_twice"] >= 1
    found = [headers(record) for record in records(kafka, topic, 2) if record.value() == b"on its way"]
    assert len({each["delayserver-id"] for each in found}) == 1
    assert "2" in [each.get("delayserver-attempt") for each in found]


def test_a_topic_is_tried_without_a_server(one_node: KafkaNodes, tmp_path: Path) -> None:
    def tried(topic: str) -> tuple[int, dict[str, str]]:
        path = config(tmp_path, f"kafka://{one_node.bootstrap}/{topic}")
        done = CliRunner().invoke(cli, ["targets", "test", "lake", "--config", path, "--json"], catch_exceptions=False)
        return done.exit_code, json.loads(done.stdout)

    topic = make_topic(one_node)
    code, found = tried(topic)
    assert (code, found["state"], found["kind"]) == (0, "stored", "kafka")
    assert [headers(record)["delayserver-subject"] for record in records(one_node, topic, 1)] == ["delayserver.test"]
    code, found = tried("no-such-topic")
    assert (code, found["state"]) == (1, "failed")
    assert "no-such-topic" in found["last_error"]


def test_a_password_that_was_wrong_is_read_again_and_shown_nowhere(
    one_node: KafkaNodes, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    topic, password = make_topic(one_node), tmp_path / "password"
    password.write_text("mistaken\n")
    connection = '"security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=delay"'
    options = f'{{ connection = [{connection}], secrets = ["sasl.password=file:{password}"] }}'
    path = config(tmp_path, f"kafka://127.0.0.1:{one_node.port + 2}/{topic}", options=options)
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        sent = server.send("s", "", delay_ms=0)
        until(lambda: "uthentication" in node(server)["last_error"])
        password.write_text("right\n")
        until(delivered(server, sent))
        assert server.status()["groups"]["lake"]["maybe_delivered_twice"] == 0
        shown = repr(server.status()) + caplog.text
    assert "mistaken" not in shown


def test_a_reload_swaps_topics_and_ends_the_producer_of_the_one_that_leaves(
    one_node: KafkaNodes, tmp_path: Path
) -> None:
    first, second = make_topic(one_node), make_topic(one_node)
    path = config(tmp_path, f"kafka://{one_node.bootstrap}/{first}")
    with serving(tmp_path / "data", "--config", path) as running, Client(running.address) as client:
        client.send("s", "1", delay_ms=0)
        assert [record.value() for record in records(one_node, first, 1)] == [b"1"]
        threads = library_threads(running.process.pid)
        config(tmp_path, f"kafka://{one_node.bootstrap}/{second}")
        assert any(second in change for change in client.reload())
        client.send("s", "2", delay_ms=0)
        assert [record.value() for record in records(one_node, second, 1)] == [b"2"]
        until(lambda: 0 < len(library_threads(running.process.pid)) <= len(threads))
    assert len(records(one_node, first, 1)) == 1


def test_a_producer_that_cannot_be_made_is_a_node_that_fails_with_the_reason(tmp_path: Path) -> None:
    options = '{ connection = ["security.protocol=SSL", "ssl.ca.location=/no/such/file"] }'
    path = config(tmp_path, "kafka://127.0.0.1:9/t", options=options, fallback=True)
    with embedded.open(str(tmp_path / "data"), config=path) as server:
        server.send("s", "to the fallback", delay_ms=0)
        (message,) = server.pull("s", "g", wait_s=120)
        assert message.body == b"to the fallback"
        assert "ssl.ca.location" in node(server)["last_error"]
