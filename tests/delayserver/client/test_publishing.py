"""Both clients and the command line publish to real servers, and follow the route of a subject to its node."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from delayserver.client import Client, Message, PublishResult
from delayserver.protocol.errors import ConnectionLost, InvalidArgument, PublishedElsewhere, SubjectInvalid
from tests.delayserver.cli.conftest import Server, serve, serving
from tests.delayserver.client.both import KINDS, Connect, connected

FAR = """
[[groups]]
name = "here"
[[groups.nodes]]
address = "embedded"
[[groups]]
name = "there"
[[groups.nodes]]
address = "{address}"
[[routes]]
pattern = "far.*"
groups = ["there"]
[[routes]]
pattern = "*"
groups = ["here"]
"""


@contextmanager
def server_and_node(path: Path) -> Iterator[tuple[Server, Server]]:
    with serving(path / "node") as node:
        config = path / "server.toml"
        config.write_text(FAR.format(address=node.address))
        with serving(path / "data", "--config", str(config)) as server:
            yield server, node


def test_each_way_to_publish_gives_places_in_one_queue(tmp_path: Path, connect: Connect) -> None:
    with serving(tmp_path / "data") as server, connect(server.address) as client:
        one = client.publish("s", "one", message_id="m", properties={"a": "b"}, tag="t", order_key="k")
        assert one == PublishResult("m", "s", 0)
        many = client.publish_many([Message("s", "two"), Message("", "bad"), Message("t", "other", tag="u")])
        assert [getattr(row, "position", None) for row in many] == [1, None, 0]
        assert isinstance(many[1], SubjectInvalid)
        columns = client.publish_columns("s", [b"three", b"four"], order_keys=[None, "k"], tags="all")
        assert columns.position.tolist() == [2, 3] and not columns.rejected
        pulled = client.pull("s", "g", 10)
        assert [row.body for row in pulled] == [b"one", b"two", b"three", b"four"]
        assert [(row.tag, row.order_key) for row in pulled] == [("t", "k"), (None, None), ("all", None), ("all", "k")]
        assert pulled[0].properties == {"a": "b"} and pulled[0].message_id == "m"
        assert pulled[1].message_id == getattr(many[0], "message_id", "")
        with pytest.raises(InvalidArgument):
            client.publish_many([Message("s", "x", due_ms=1)])


def test_a_publishing_batcher_keeps_the_order(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, Client(server.address) as client:
        with client.publisher("s", batch_messages_max=7) as batcher:
            futures = [batcher.send(f"{number}") for number in range(100)]
            with pytest.raises(InvalidArgument):
                batcher.send("late", delay_ms=5)
        assert [future.result().position for future in futures] == list(range(100))
        assert [row.body for row in client.pull("s", "g", 100)] == [b"%d" % number for number in range(100)]


def test_one_way_messages_arrive_and_refused_ones_are_counted(tmp_path: Path, connect: Connect) -> None:
    with serving(tmp_path / "data") as server, connect(server.address) as client:
        for number in range(500):
            client.publish_one_way("s", f"{number}")
        client.publish_one_way("", "bad")
        client.send_one_way("s", "sent", 1, message_id="m")
        assert client.take_one_way_refused() is None
        client.ping()
        refused = client.take_one_way_refused()
        assert refused is not None and refused.messages >= 1 and isinstance(refused.first, SubjectInvalid)
        pulled = client.pull("s", "g", 1000, wait_s=30)
        assert [row.body for row in pulled][:500] == [b"%d" % number for number in range(500)]


def test_a_client_that_closes_lets_its_one_way_messages_arrive(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server, Client(server.address) as other:
        for kind in KINDS:
            with connected(kind, server.address) as client:
                server.process.send_signal(signal.SIGSTOP)
                for number in range(1_000):
                    client.publish_one_way(kind, b"%d" % number)
                # The server finds the messages, and behind them the end if the client did not wait.
                threading.Timer(0.1, server.process.send_signal, [signal.SIGCONT]).start()
            count = 0
            while count < 1_000:
                pulled = other.pull(kind, "g", 1_000, wait_s=30)
                assert pulled, f"{count} have come, and no more"
                count += len(pulled)


def test_clients_follow_the_route_of_a_subject(tmp_path: Path, connect: Connect) -> None:
    with server_and_node(tmp_path) as (server, node), connect(server.address) as client:
        assert client.publish("far.a", "1").position == 0
        assert client.publish("far.a", "2").position == 1
        assert client.publish_columns("far.a", [b"3", b"4"]).position.tolist() == [2, 3]
        rows = client.publish_many([Message("far.b", "x"), Message("near", "y"), Message("far.a", "5")])
        assert [getattr(row, "position", row) for row in rows] == [0, 0, 4]
        mixed = client.publish_columns(["near", "far.a"], [b"a", b"b"], subject_index=np.array([0, 1], np.uint32))
        assert isinstance(mixed.rejected[0].error, PublishedElsewhere) and node.address in str(mixed.rejected[0].error)
        with connect(node.address) as other:
            assert [row.body for row in other.pull("far.a", "g", 10)] == [b"1", b"2", b"3", b"4", b"5"]
        assert [row.body for row in client.pull("near", "g", 10)] == [b"y", b"a"]


def test_a_publish_after_the_node_came_back_asks_for_the_route_again(tmp_path: Path) -> None:
    with server_and_node(tmp_path) as (server, node), Client(server.address, retries=0) as client:
        client.publish("far.a", "1")
        node.process.kill()
        node.process.communicate()
        with pytest.raises(Exception, match="connection"):
            client.publish("far.a", "2")
        again = serve(tmp_path / "node", "--port", node.address.rpartition(":")[2])
        try:
            assert client.publish("far.a", "3").position == 1
        finally:
            again.process.kill()
            again.process.communicate()


TWO = """
[[groups]]
name = "there"
[[groups.nodes]]
address = "{}"
[[groups.nodes]]
address = "{}"
[[routes]]
pattern = "*"
groups = ["there"]
"""


def test_publishes_spread_over_two_nodes_and_go_on_when_one_dies(tmp_path: Path, connect: Connect) -> None:
    subjects = [f"s{number}" for number in range(12)]
    with serving(tmp_path / "a") as a, serving(tmp_path / "b") as b:
        config = tmp_path / "server.toml"
        config.write_text(TWO.format(a.address, b.address))
        with (
            serving(tmp_path / "data", "--config", str(config)) as server,
            connect(server.address) as client,
            connect(b.address) as of_b,
        ):
            for subject in subjects:
                client.publish(subject, "1")
            there = {subject for subject in subjects if of_b.pull(subject, "g", 1)}
            assert 0 < len(there) < len(subjects)
            a.process.kill()
            a.process.communicate()
            late = 0
            for subject in subjects:
                try:
                    client.publish(subject, "2")
                except ConnectionLost:  # its last byte was on the way when the client learned that the node is gone
                    late += 1
                    client.publish(subject, "2")
            assert late <= 1
            with connect(server.address) as fresh:  # a client that knows of no failure
                for subject in subjects:
                    fresh.publish(subject, "3")
            for subject in subjects:
                rest = [b"2", b"3"]
                assert [row.body for row in of_b.pull(subject, "g", 3)] == rest


def test_the_command_publishes_and_sends_with_tag_and_order_key(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        options = ("--tag", "paid", "--order-key", "k", "--json")
        published = server.run("publish", "orders", "hello", "--property", "a=b", "--id", "m", *options).row
        assert published == {"message_id": "m", "subject": "orders", "position": 0}
        assert server.run("send", "orders", "later", *options).row["subject"] == "orders"
        assert server.run("publish", "orders", "plain").out.startswith("id ")
        rows = server.run("pull", "orders", "--group", "g", "--max", "3", "--wait", "20s", "--json").rows
        by_body = {row["body"]: row for row in rows}
        for body in ("hello", "later"):
            assert (by_body[body]["tag"], by_body[body]["order_key"]) == ("paid", "k")
        assert "tag" not in by_body["plain"] and by_body["hello"]["properties"] == {"a": "b"}
        refused = server.run("publish", "orders", "x", "--tag", "a\nb")
        assert refused.code == 1 and "a tag is printable" in refused.err
