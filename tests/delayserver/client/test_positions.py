"""Seek, start, removal and reads over real sockets, with each kind of client, and from the command line."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.client.connections.socket_connection import SocketConnection
from delayserver.protocol.errors import GroupUnknown, InvalidArgument, PositionOutOfRange
from delayserver.protocol.frames import encode_request
from delayserver.protocol.operation_names import HELLO
from tests.delayserver.cli.conftest import Server, run, serving
from tests.delayserver.client.both import Connect, no_notice
from tests.delayserver.client.listening.listeners import until


@pytest.fixture(scope="module")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("positions") / "data") as running:
        yield running


def send(client: Client, subject: str, bodies: str) -> None:
    """Send a message for each character, due now, and wait until they are delivered."""
    for body in bodies:
        end = client.read(subject, 0).end
        client.send(subject, body, delay_ms=0)
        assert client.read(subject, end, wait_s=60).status == "found"


def pull_waits(client: Client) -> bool:
    return int(client.status()["broker"]["waiting_pulls"]) == 1


def pulled(client: Client, subject: str, **options: object) -> str:
    return "".join(delivery.body.decode() for delivery in client.pull(subject, "g", 100, **options))  # type: ignore[arg-type]


def test_a_group_is_moved_shown_and_removed(real_server: Server, connect: Connect, subject: str) -> None:
    with connect(real_server.address) as client:
        send(client, subject, "abcd")
        deliveries = client.pull(subject, "g", 3)
        assert [delivery.position for delivery in deliveries] == [0, 1, 2]
        assert client.ack(subject, "g", deliveries[:2]).acked == 2
        row = client.group(subject, "g")
        assert (row.position, row.end, row.lag, row.leased) == (2, 4, 2, 1)
        sought = client.seek(subject, "g", "earliest")
        assert (sought.position, sought.first, sought.end) == (0, 0, 4)
        assert client.ack(subject, "g", deliveries).unknown == 3, "a seek ends leases"
        assert pulled(client, subject) == "abcd"
        assert client.seek(subject, "g", 3).position == 3
        assert pulled(client, subject) == "d"
        assert client.seek(subject, "g", "latest").position == 4
        assert client.group(subject, "g").lag == 0
        assert client.seek(subject, "g", datetime(2020, 1, 1, tzinfo=UTC)).position == 0
        assert client.seek(subject, "g", datetime(2120, 1, 1, tzinfo=UTC)).position == 4
        client.remove_group(subject, "g")
        with pytest.raises(GroupUnknown):
            client.group(subject, "g")
        with pytest.raises(GroupUnknown):
            client.remove_group(subject, "g")
        assert pulled(client, subject) == "abcd", "a later pull makes a new group"


def test_wrong_seeks_get_named_answers(real_server: Server, connect: Connect, subject: str) -> None:
    with connect(real_server.address) as client:
        send(client, subject, "ab")
        pulled(client, subject)
        for position in (-1, 3, 1 << 62):
            with pytest.raises(PositionOutOfRange) as caught:
                client.seek(subject, "g", position)
            assert caught.value.details == {"first": 0, "end": 2}
        with pytest.raises(InvalidArgument):
            client.seek(subject, "g", "yesterday")
        with pytest.raises(InvalidArgument):
            client.pull(subject, "g", start="yesterday")
        for unknown in ((subject, "h"), ("never.seen", "g")):
            with pytest.raises(GroupUnknown):
                client.group(*unknown)
            with pytest.raises(GroupUnknown):
                client.remove_group(*unknown)
            with pytest.raises(GroupUnknown):
                client.seek(*unknown, to="latest")
        assert client.group(subject, "g").position == 0, "a refused seek changes nothing"


def test_a_new_group_begins_at_its_start_and_the_start_of_a_later_pull_counts_no_more(
    real_server: Server, connect: Connect, subject: str
) -> None:
    with connect(real_server.address) as client:
        send(client, subject, "ab")
        assert pulled(client, subject, start="latest") == ""
        send(client, subject, "c")
        assert pulled(client, subject, start="earliest", wait_s=60) == "c"
        middle = client.read(subject, 1).messages[0].dispatched_us / 1_000_000
        start = datetime.fromtimestamp(middle, UTC)
        found = client.pull(subject, "by time", 100, start=start)
        assert found and found[0].position is not None and found[0].position >= 1


def test_a_start_before_the_first_message_of_a_subject_gets_all(
    real_server: Server, connect: Connect, subject: str
) -> None:
    with connect(real_server.address) as client, connect(real_server.address) as other:
        found: list[str] = []
        puller = threading.Thread(target=lambda: found.append(pulled(client, subject, start="latest", wait_s=60)))
        puller.start()
        until(lambda: pull_waits(other), "the pull")
        other.send(subject, "a", delay_ms=0)
        puller.join()
        assert found == ["a"]


def test_a_read_has_its_positions_and_waits_for_the_next_message(
    real_server: Server, connect: Connect, subject: str
) -> None:
    with connect(real_server.address) as client, connect(real_server.address) as other:
        page = client.read(subject, 0, wait_s=0)
        assert (page.status, page.first, page.end, page.messages) == ("nothing_yet", 0, 0, [])
        assert client.read(subject, 1).status == "too_large"
        assert client.read(subject, -1).status == "too_small"
        send(client, subject, "ab")
        page = client.read(subject, 0)
        assert (page.status, page.next) == ("found", 2)
        assert [(message.position, message.body) for message in page.messages] == [(0, b"a"), (1, b"b")]
        sender = threading.Timer(0.3, lambda: other.send(subject, "c", delay_ms=0))
        sender.start()
        began = time.monotonic()
        page = client.read(subject, page.next, wait_s=60)
        assert [message.body for message in page.messages] == [b"c"]
        assert time.monotonic() - began < 30
        sender.join()
        assert [group.group for group in client.groups(subject)] == []


def test_a_seek_during_a_waiting_pull_feeds_it_and_a_removal_ends_it(
    real_server: Server, connect: Connect, subject: str
) -> None:
    with connect(real_server.address) as client, connect(real_server.address) as operator:
        send(operator, subject, "ab")
        client.ack(subject, "g", client.pull(subject, "g", 100))
        found: list[str] = []
        puller = threading.Thread(target=lambda: found.append(pulled(client, subject, wait_s=60)))
        puller.start()
        until(lambda: pull_waits(operator), "the pull")
        began = time.monotonic()
        operator.seek(subject, "g", 1)
        puller.join()
        operator.seek(subject, "g", "latest")
        puller = threading.Thread(target=lambda: found.append(pulled(client, subject, wait_s=60)))
        puller.start()
        until(lambda: pull_waits(operator), "the pull")
        operator.remove_group(subject, "g")
        puller.join()
        assert found == ["b", ""]
        assert time.monotonic() - began < 50
        with pytest.raises(GroupUnknown):
            operator.group(subject, "g")


def test_broadcast_consumers_get_every_message_from_their_first_pull_on(
    real_server: Server, connect: Connect, subject: str
) -> None:
    with (
        connect(real_server.address) as sender,
        connect(real_server.address) as one,
        connect(real_server.address) as two,
    ):
        send(sender, subject, "a")
        for client in (one, two):
            assert pulled(client, subject, broadcast=True) == "", "it begins at the latest"
        send(sender, subject, "bc")
        for client in (one, two):
            deliveries = client.pull(subject, "g", 1, broadcast=True)
            assert [(row.body, row.attempt, row.position) for row in deliveries] == [(b"b", 1, 1)]
            acked = client.ack(subject, "g", deliveries)
            assert (acked.acked, acked.unknown) == (1, 0)
            assert client.nack(subject, "g", deliveries).unknown == 1
            assert pulled(client, subject, broadcast=True) == "c", "each message comes once"
            assert pulled(client, subject, broadcast=True) == ""
        assert [row.group for row in sender.groups(subject)] == [], "no group of the node"
        assert sender.ack(subject, "g", deliveries).unknown == 1, "another connection does not have the group"
        timer = threading.Timer(0.3, lambda: sender.send(subject, "d", delay_ms=0))
        timer.start()
        assert pulled(one, subject, broadcast=True, wait_s=60) == "d"
        timer.join()
        assert pulled(two, subject, broadcast=True) == "d"
    with connect(real_server.address) as again:
        assert pulled(again, subject, broadcast=True) == "", "the group ended with its connection"
        assert (
            "".join(row.body.decode() for row in again.pull(subject, "h", 9, broadcast=True, start="earliest"))
            == "abcd"
        )
        with pytest.raises(InvalidArgument):
            again.pull(subject, "g", broadcast=True, tags="a")


def test_a_seek_and_a_removal_survive_a_kill(tmp_path: Path, connect: Connect) -> None:
    with serving(tmp_path / "data") as server, connect(server.address) as client:
        for name in ("moved", "kept", "removed"):
            send(client, name, "abc")
            client.ack(name, "g", client.pull(name, "g", 100))
        client.seek("moved", "g", 1)
        client.remove_group("removed", "g")
        server.process.kill()
        server.process.wait()
    with serving(tmp_path / "data") as server, connect(server.address) as client:
        assert [group.subject for group in client.groups()] == ["moved", "kept"]
        assert pulled(client, "moved") == "bc"
        assert pulled(client, "kept") == ""


def refusal(server: Server, operation: str, arguments: dict[str, object]) -> str:
    """The name of the error that the server answers to a request which no method of a client would send."""
    host, _, port = server.address.rpartition(":")
    connection = SocketConnection((host, int(port)), 60.0, no_notice)
    for request_id, name, values in ((1, HELLO, {"versions": [1], "client": "test"}), (2, operation, arguments)):
        reply = connection.exchange(request_id, encode_request(request_id, name, values), 60.0)
    connection.close()
    return "" if reply.error is None else reply.error.name


@pytest.mark.parametrize(
    "arguments",
    [
        {"position": "1"},
        {"position": None},
        {"position": 0, "max_messages": 0},
        {"position": 0, "wait_ms": -1},
        {"position": True},
        {"position": 0, "columns": 1},
    ],
)
def test_a_wrong_read_is_refused_by_the_field(real_server: Server, arguments: dict[str, object]) -> None:
    assert refusal(real_server, "read", {"subject": "a", **arguments}) == "invalid_argument"


@pytest.mark.parametrize(
    "arguments",
    [{}, {"to": 5}, {"to": "latest", "position": 1}, {"time_ms": "x"}, {"time_ms": -1}, {"position": 1.5}],
)
def test_a_wrong_seek_is_refused_by_the_field(real_server: Server, arguments: dict[str, object]) -> None:
    name = refusal(real_server, "seek", {"subject": "a", "group": "g", **arguments})
    assert name in ("invalid_argument", "malformed_frame")


def test_the_command_line_lists_moves_peeks_and_removes(real_server: Server) -> None:
    to = ("--server", real_server.address)
    with Client(real_server.address) as client:
        send(client, "cli", "abc")
    pull = ("pull", "cli", "--group", "g", "--max", "2", "--json", *to)
    assert [row["position"] for row in run(*pull, "--no-ack").rows] == [0, 1]
    listed = run("groups", "list", "cli", "--json", *to).row
    names = ("subject", "group", "position", "end", "lag", "leased", "retrying")
    assert [listed[name] for name in names] == ["cli", "g", 0, 3, 3, 2, 0] and listed["oldest_ms"]
    moved = run("groups", "seek", "cli", "--group", "g", "--to", "latest", "--json", *to).row
    assert moved == {"subject": "cli", "group": "g", "position": 3, "first": 0, "end": 3}
    assert run("groups", "seek", "cli", "--group", "g", "--to", "1", *to).out == "g goes on at 1 of 0 to 3\n"
    assert run("groups", "seek", "cli", "--group", "g", "--to", "2020-01-01T00:00Z", "--json", *to).row["position"] == 0
    wrong = run("groups", "seek", "cli", "--group", "g", "--to", "99", *to)
    assert wrong.code == 1 and "position_out_of_range" in wrong.err and "0 to 3" in wrong.err
    assert run("groups", "seek", "cli", "--group", "g", "--to", "soon", *to).code == 2
    peeked = run("peek", "cli", "--position", "1", "--max", "5", "--json", *to).rows
    assert [(row["position"], row["body"]) for row in peeked] == [(1, "b"), (2, "c")]
    assert "delivery" not in peeked[0]
    assert [row["body"] for row in run("peek", "cli", "--position", "-1", "--json", *to).rows] == ["c"]
    assert "a" in run("peek", "cli", *to).out
    gone = run("peek", "cli", "--position", "9", *to)
    assert gone.code == 1 and "this node keeps 0 to 3" in gone.err
    assert run("groups", "remove", "cli", "--group", "g", *to).code != 0, "it asks, and gets no answer"
    assert run("groups", "remove", "cli", "--group", "g", "--yes", *to).out == "removed g of cli\n"
    again = run("groups", "remove", "cli", "--group", "g", "--yes", *to)
    assert again.code == 1 and "group_unknown" in again.err
    started = run("pull", "cli", "--group", "late", "--start", "latest", "--json", *to)
    assert (started.code, started.rows) == (0, [])
