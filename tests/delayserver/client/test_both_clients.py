"""Both clients against a real socket: every operation, and every way in which a reply can go missing."""

from __future__ import annotations

import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from delayserver.client import Client, Message, MessageKey, Outcome, SendResult
from delayserver.protocol.errors import (
    ConnectionLost,
    DelayServerError,
    DiskFull,
    FrameTooLarge,
    InternalError,
    InvalidArgument,
    MalformedFrame,
    NotReady,
    PropertiesInvalid,
    QueueFull,
    ReceiptInvalid,
    RequestTimedOut,
    ShuttingDown,
    StorageFailed,
    SubjectInvalid,
    SubjectsFull,
    TooFar,
    TooManyConnections,
    TooOld,
    UnknownOperation,
)
from delayserver.protocol.frames import encode_error, encode_frame, encode_reply
from delayserver.protocol.limits import Limits
from tests.delayserver.client.both import Connect, clock_of
from tests.delayserver.client.fake_server import SERVER_ID, TOO_FAR_MS, Drop, Fail, FakeServer, Garbage, Late, Stored


def group_row(name: str) -> dict[str, Any]:
    numbers = dict.fromkeys(("position", "end", "lag", "leased", "retrying", "expired", "oldest_ms"), 1)
    return {"subject": "s", "group": name, "and_more": "later"} | numbers


def test_groups_are_gathered_from_all_pages(server: FakeServer, client: Client) -> None:
    server.groups = [group_row(name) for name in "abcde"]
    assert [group.group for group in client.groups()] == [*"abcde"]
    assert server.count("groups") == 3
    assert list(client.groups("another")) == []


def test_subjects_are_gathered_from_all_pages(server: FakeServer, client: Client) -> None:
    names = ["orders", "bills", "orders.eu", "goods", "orders.us"]
    for name in names:
        client.send(name, b"", due_ms=1)
    assert client.subjects() == names
    assert client.subjects("o*", prefix="orders.") == ["orders.eu", "orders.us"]
    assert server.count("subjects") == 6


def test_status_route_ping_and_limits_are_those_of_the_server(server: FakeServer, client: Client) -> None:
    assert client.status()["ready"] is True
    assert client.route(subject="b").nodes[0].address == server.address
    assert abs(client.ping() - server.now_us()) < 5_000_000
    assert client.limits == server.limits
    assert server.connections == 1


def test_hello_gives_the_server_and_its_limits(server: FakeServer, client: Client, connect: Connect) -> None:
    info = client.connect()
    assert (info.server_id, info.role, info.version, info.limits) == (SERVER_ID, "server", 1, server.limits)
    assert server.count("hello") == 1


def test_send_lookup_cancel_and_reschedule_one_message(server: FakeServer, client: Client) -> None:
    sent = client.send("orders", "cancel me", due_ms=5000, message_id="o-1", properties={"k": "v"}, expires_ms=9000)
    assert sent == SendResult(f"{SERVER_ID}-000000001388-000000000000", "o-1", "orders", 5000, 0)
    assert client.lookup(sent.receipt).outcome is Outcome.PENDING
    moved = client.reschedule(sent.receipt, due_ms=7000)
    assert moved.outcome is Outcome.CANCELLED
    assert (moved.message_id, moved.due_ms, moved.sequence) == ("o-1", 7000, 1)
    assert client.cancel(MessageKey("orders", "o-1", 7000)).outcome is Outcome.CANCELLED
    assert client.cancel(MessageKey("orders", "o-1", 7000)).outcome is Outcome.ALREADY_CANCELLED
    assert client.reschedule(sent.receipt, due_ms=1).new_receipt is None
    stored = server.messages[1]
    assert (stored.body, stored.properties, stored.expires_ms) == (b"cancel me", {"k": "v"}, 9000)


def test_each_of_the_four_ways_to_say_when_gives_its_due_time(server: FakeServer, client: Client) -> None:
    server.clock_ahead_us = 3_600_000_000
    began_us = server.now_us()
    client.hello()
    before_ms = server.now_us() // 1000
    assert client.send("a", b"", at=datetime(2030, 1, 1, tzinfo=UTC)).due_ms == 1_893_456_000_000
    for due in (client.send("a", b"", delay_ms=2000).due_ms, client.send("a", b"", delay=timedelta(seconds=2)).due_ms):
        # The clock is ahead by at most a round trip, and that took no longer than all of this.
        now_us = server.now_us()
        assert before_ms + 2000 <= due <= (now_us + now_us - began_us) // 1000 + 2001
    for wrong in ({}, {"due_ms": 1, "delay_ms": 1}, {"delay_ms": -1}, {"due_ms": 1.5}, {"delay_ms": True}):
        with pytest.raises(InvalidArgument):
            client.send("a", b"", **wrong)
    with pytest.raises(InvalidArgument, match="time zone"):
        client.send("a", b"", at=datetime(2030, 1, 1))  # noqa: DTZ001


def test_send_many_gives_a_result_or_an_error_for_each(server: FakeServer, client: Client) -> None:
    results = client.send_many(
        [
            Message("a", b"1", due_ms=5, properties={"p": "1"}, expires_ms=50),
            Message("", b"2", due_ms=6),
            Message("b", "3", delay_ms=0, message_id="own"),
            Message("a", b"4", due_ms=TOO_FAR_MS + 1),
            Message("a", b"", due_ms=7),
        ]
    )
    assert [type(result) for result in results] == [SendResult, SubjectInvalid, SendResult, TooFar, SendResult]
    sent = [result for result in results if isinstance(result, SendResult)]
    assert [result.sequence for result in sent] == [0, 1, 2]
    assert sent[1].message_id == "own"
    for result, stored in zip(sent, server.messages, strict=True):
        assert (result.subject, result.message_id, result.due_ms) == (stored.subject, stored.message_id, stored.due_ms)
        assert client.lookup(result.receipt).subject == result.subject
    assert [stored.body for stored in server.messages] == [b"1", b"3", b""]
    assert [stored.properties for stored in server.messages] == [{"p": "1"}, {}, {}]
    assert [stored.expires_ms for stored in server.messages] == [50, 0, 0]


def test_a_delay_without_a_unit_is_refused_before_anything_is_sent(server: FakeServer, client: Client) -> None:
    for delay in (5, 0.5, "5s"):
        refused = f"a delay is a timedelta, as .*, not {delay!r}"
        with pytest.raises(InvalidArgument, match=refused):
            client.send("a", b"", delay=delay)  # type: ignore[arg-type]
        with pytest.raises(InvalidArgument, match=refused):
            client.nack("a", "g", [1], delay)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="at is a datetime, not 17; due_ms takes milliseconds"):
        client.send("a", b"", at=17)  # type: ignore[arg-type]
    assert server.count("send") == server.count("nack") == 0


def test_send_columns_takes_blobs_and_lists_and_gives_receipts_back(server: FakeServer, client: Client) -> None:
    sent = client.send_columns("a", np.array([9, 7, 8]), b"xyyzzz", body_length=np.array([1, 2, 3]))
    assert sent.receipts() == [f"{SERVER_ID}-{due:012x}-{sequence:012x}" for sequence, due in enumerate([9, 7, 8])]
    sent = client.send_columns(["a", "", "c"], 5, [b"1", b"2", b"3"], subject_index=[2, 1, 0], message_ids=list("ijk"))
    assert sent.accepted == 2
    assert [(row.index, type(row.error)) for row in sent.rejected] == [(1, SubjectInvalid)]
    assert [stored.body for stored in server.messages] == [b"x", b"yy", b"zzz", b"1", b"3"]
    assert [stored.subject for stored in server.messages] == ["a", "a", "a", "c", "a"]
    outcomes = client.cancel_columns(sent.due_ms, sent.sequence)
    assert outcomes.tolist() == [Outcome.CANCELLED] * 2
    with pytest.raises(InvalidArgument, match="at least one row"):
        client.send_columns("a", 5, [])


def test_nothing_to_do_needs_no_request(server: FakeServer, client: Client) -> None:
    assert client.send_many([]) == client.cancel_many([]) == client.lookup_many([]) == []
    assert {request.operation for request in server.requests} == {"hello", "ping"}


@pytest.mark.parametrize(
    "arguments",
    [
        {"due_ms": [1], "bodies": [b"", b""]},
        {"due_ms": [1.5], "bodies": [b""]},
        {"due_ms": 1, "bodies": b"abc"},
        {"due_ms": 1, "bodies": b"abc", "body_length": 1},
        {"due_ms": 1, "bodies": [b""], "message_ids": []},
        {"due_ms": 1, "bodies": [b""], "subjects": ["a"]},
        {"bodies": [b""]},
        {"due_ms": 1, "delay_ms": 1, "bodies": [b""]},
        {"delay_ms": [-1], "bodies": [b""]},
        {"due_ms": 1, "bodies": [b""], "subjects": ["a"], "subject_index": [-1]},
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_sent(
    server: FakeServer, client: Client, arguments: dict[str, object]
) -> None:
    with pytest.raises(InvalidArgument):
        client.send_columns(**{"subjects": "a", **arguments})  # type: ignore[arg-type]
    assert server.count("send") == 0


def test_a_consumer_pulls_acks_and_nacks(server: FakeServer, client: Client) -> None:
    client.send("a", b"one", due_ms=1, message_id="m", properties={"k": "v"})
    client.send_columns("a", 2, [b"two", b"three"])
    deliveries = client.pull("a", "g")
    assert [(d.message_id, d.body, d.due_ms, d.properties) for d in deliveries] == [
        ("m", b"one", 1, {"k": "v"}),
        (f"{SERVER_ID}-000000000001", b"two", 2, {}),
        (f"{SERVER_ID}-000000000002", b"three", 2, {}),
    ]
    assert client.nack("a", "g", deliveries[:1], timedelta(seconds=1)).nacked == 1
    assert client.ack("a", "g", deliveries[:1]).acked == 1
    assert client.ack("a", "g", [deliveries[0].delivery]).unknown == 1
    pulled = client.pull_columns("a", "g")
    assert pulled.lateness_us.tolist() == [0, 0]
    assert client.pull_columns("a", "g", ack=pulled).count == 0
    assert [request.arguments.get("delay_ms") for request in server.requests if request.operation == "nack"] == [1000]


def test_a_consumer_learns_when_messages_expire(server: FakeServer, client: Client) -> None:
    client.send("a", b"one", due_ms=1)
    (never,) = client.pull("a", "g")
    assert never.expires_ms == 0
    client.send("a", b"two", due_ms=1, expires_ms=9_000)
    assert [delivery.expires_ms for delivery in client.pull("a", "g")] == [0, 9_000]
    assert client.pull_columns("a", "g").expires_ms.tolist() == [0, 9_000]


def test_a_nack_without_a_delay_leaves_the_pause_to_the_server(server: FakeServer, client: Client) -> None:
    client.send("a", b"one", due_ms=1)
    client.send("a", b"two", due_ms=1, expires_ms=9_000)
    result = client.nack("a", "g", client.pull("a", "g"))
    assert (result.nacked, result.unknown, result.expired) == (2, 0, 1)
    (nack,) = [request.arguments for request in server.requests if request.operation == "nack"]
    assert "delay_ms" not in nack


def test_a_wait_beyond_the_servers_bound_is_waited_in_parts(connect: Connect) -> None:
    with FakeServer(limits=Limits(wait_ms_max=400)) as server, connect(server.address) as client:
        assert client.pull("a", "g", wait_s=1.0) == []
        assert [r.arguments["wait_ms"] for r in server.requests if r.operation == "pull"] == [400, 400, 200]


def test_errors_of_the_server_are_raised_as_their_class(server: FakeServer, client: Client) -> None:
    with pytest.raises(SubjectInvalid):
        client.send("", b"", due_ms=1)
    with pytest.raises(ReceiptInvalid):
        client.cancel("nonsense")
    server.misbehave("status", Fail(UnknownOperation("status")))
    with pytest.raises(UnknownOperation):
        client.status()
    with pytest.raises(PropertiesInvalid):
        client.send_many([Message("a", b"", due_ms=1, properties={"a": 1})])  # type: ignore[dict-item]
    assert server.connections == 1


@pytest.mark.parametrize("step", [Drop(), Drop(reply_bytes=20), Drop(after_effect=False), Late(2.0)])
def test_a_lost_reply_is_retried_as_the_same_message(server: FakeServer, step: Drop | Late, connect: Connect) -> None:
    timeout_s = 1.0 if isinstance(step, Late) else 30.0
    with connect(server.address, timeout_s=timeout_s) as client:
        server.misbehave("send", step)
        sent = client.send("orders", b"once", delay_ms=1000)
        assert len({(m.message_id, m.due_ms) for m in server.messages}) == 1
        assert [m.outcome for m in server.messages].count("pending") == 1
        assert sent.message_id == server.messages[0].message_id
        # A machine that stands still may use up the second of a late reply twice.
        assert server.connections >= 2 if isinstance(step, Late) else server.connections == 2


def test_columns_without_ids_are_not_sent_twice(server: FakeServer, client: Client) -> None:
    server.misbehave("send", Drop())
    with pytest.raises(ConnectionLost):
        client.send_columns("a", 1, [b""])
    assert len(server.messages) == 1
    server.misbehave("send", Drop())
    client.send_columns("a", 1, [b""], message_ids=["i"])
    assert [m.outcome for m in server.messages[1:]] == ["pending", "deduplicated"]


def test_a_connection_closed_while_idle_costs_no_call(server: FakeServer, client: Client) -> None:
    client.ping()
    server.drop_connections()
    time.sleep(0.05)  # the end of the stream has to cross the real socket
    assert client.send_columns("a", 1, [b""]).accepted == 1
    assert len(server.messages) == 1


def test_reschedule_is_not_repeated_after_its_request_has_left(server: FakeServer, client: Client) -> None:
    receipt = client.send("a", b"", due_ms=1).receipt
    server.misbehave("reschedule", Drop())
    with pytest.raises(ConnectionLost):
        client.reschedule(receipt, due_ms=2)
    assert server.count("reschedule") == 1


def test_a_refusal_that_passes_is_retried_and_one_that_stays_is_raised(server: FakeServer, client: Client) -> None:
    server.misbehave("send", Fail(NotReady("recovering", retry_after_ms=1)))
    assert client.send("a", b"", due_ms=1).sequence == 0
    server.misbehave("reschedule", Fail(NotReady("recovering", retry_after_ms=1)))
    assert client.reschedule(f"{SERVER_ID}-000000000001-000000000000", due_ms=2).sequence == 1
    server.misbehave("send", Fail(DiskFull("full", retry_after_ms=3_600_000)))
    with pytest.raises(DiskFull):
        client.send("a", b"", due_ms=1)
    server.misbehave("send", *[Fail(NotReady("recovering", retry_after_ms=1))] * 4)
    with pytest.raises(NotReady):
        client.send("a", b"", due_ms=1)
    assert len(server.messages) == 2


@pytest.mark.parametrize("refusal", [QueueFull("full"), TooOld("before the oldest window"), InternalError("a bug")])
def test_a_refusal_does_not_hide_that_an_earlier_attempt_may_have_been_stored(
    server: FakeServer, refusal: DelayServerError, connect: Connect
) -> None:
    with connect(server.address, retries=1) as client:
        server.misbehave("send", Drop(), Fail(refusal))
        with pytest.raises(ConnectionLost, match=refusal.name) as raised:
            client.send("a", b"", due_ms=1)
        assert isinstance(raised.value.__cause__, type(refusal))
        assert len(server.messages) == 1
        server.misbehave("send", Fail(StorageFailed("disk")), Fail(NotReady("recovering", retry_after_ms=1)))
        with pytest.raises(StorageFailed):
            client.send("a", b"", due_ms=1)


def test_a_refusal_is_raised_where_no_earlier_attempt_can_have_changed_anything(
    server: FakeServer, connect: Connect
) -> None:
    with connect(server.address, retries=1) as client:
        server.misbehave("status", Drop(), Fail(NotReady("recovering")))
        with pytest.raises(NotReady):
            client.status()
        server.misbehave("send", Fail(QueueFull("full")), Fail(NotReady("recovering")))
        with pytest.raises(NotReady):
            client.send("a", b"", due_ms=1)


def test_no_reply_in_time_is_an_error_and_the_late_reply_is_passed_over(server: FakeServer, connect: Connect) -> None:
    with connect(server.address, timeout_s=1.0, retries=0) as client:
        server.misbehave("lookup", Late(2.0))
        with pytest.raises(RequestTimedOut):
            client.lookup(f"{SERVER_ID}-000000000001-000000000000")
        assert client.status()["ready"] is True


@pytest.mark.parametrize(
    "data",
    [
        encode_frame("nonsense"),
        encode_frame([1]),
        b"\xff\xff\xff\xff",
    ],
)
def test_bytes_that_are_no_reply_are_a_protocol_error(server: FakeServer, client: Client, data: bytes) -> None:
    server.misbehave("status", Garbage(data))
    with pytest.raises((MalformedFrame, FrameTooLarge)):
        client.status()
    assert client.status()["ready"] is True


@pytest.mark.parametrize("error", [MalformedFrame("half a frame"), ShuttingDown("bye"), TooManyConnections("no room")])
def test_an_error_of_the_connection_is_a_lost_connection_unless_nothing_was_read(
    server: FakeServer, connect: Connect, error: DelayServerError
) -> None:
    with connect(server.address, retries=0) as client:
        server.misbehave("status", Garbage(encode_error(0, error)))
        kind = TooManyConnections if isinstance(error, TooManyConnections) else ConnectionLost
        with pytest.raises(kind, match=error.message) as raised:
            client.status()
        assert kind is TooManyConnections or isinstance(raised.value.__cause__, type(error))
        assert client.status()["ready"] is True


def test_a_request_is_not_repeated_if_it_must_not_be_when_the_server_ends_the_connection(
    server: FakeServer, client: Client
) -> None:
    server.misbehave("send", Garbage(encode_error(0, ShuttingDown("bye"))))
    with pytest.raises(ConnectionLost):
        client.send_columns("a", 1, [b""])
    assert len(server.messages) == 1


def test_a_reply_without_its_request_is_passed_over(server: FakeServer, client: Client) -> None:
    next_id = server.requests[-1].id + 1
    server.misbehave("status", Garbage(encode_reply(999, {"x": 1}) + encode_reply(next_id, {"ready": 7})))
    assert client.status()["ready"] == 7


@pytest.mark.parametrize("result", [{}, {"results": []}, {"results": [{"outcome": "on the moon"}]}, {"results": 5}])
def test_a_result_that_cannot_be_read_is_a_protocol_error(
    server: FakeServer, client: Client, result: dict[str, object]
) -> None:
    server.wrong_replies["lookup"] = result
    with pytest.raises(MalformedFrame, match=r"lookup|of 1 items"):
        client.lookup(f"{SERVER_ID}-000000000001-000000000000")


def test_a_request_above_the_frame_bound_harms_nothing(connect: Connect) -> None:
    with FakeServer(limits=Limits(frame_bytes_max=1000)) as server, connect(server.address) as client:
        with pytest.raises(FrameTooLarge):
            client.send("a", bytes(1000), due_ms=1)
        assert client.send("a", bytes(500), due_ms=1).sequence == 0
        assert server.connections == 1


def test_no_server_there_is_a_connection_error(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConnectionLost, match="cannot connect"), connect(f"127.0.0.1:{port}", retries=1):
        pass


def test_a_server_that_says_nothing_is_given_up(connect: Connect) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(RequestTimedOut), connect(address, timeout_s=0.1, retries=1):
            pass


def test_threads_may_share_a_client(server: FakeServer, client: Client) -> None:
    threads = [threading.Thread(target=client.send, args=("a", b""), kwargs={"due_ms": i}) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(stored.due_ms for stored in server.messages) == list(range(20))


def test_the_batcher_sends_few_frames_and_answers_each_message(server: FakeServer, client: Client) -> None:
    with client.batcher("a", batch_messages_max=50, linger_ms=60_000) as batcher:
        futures = [batcher.send(b"x", due_ms=number) for number in range(120)]
        other = batcher.send("y", "b", delay_ms=5)
        # The last messages linger for a minute, unless a flush sends them.
        while len(server.messages) < 100:
            time.sleep(0.01)
        assert server.count("send") == 2
    assert [future.result().due_ms for future in futures] == list(range(120))
    assert other.result().subject == "b"
    assert server.count("send") <= 4


def test_the_batcher_puts_errors_where_they_belong(server: FakeServer, connect: Connect) -> None:
    with connect(server.address, retries=0) as client, client.batcher(linger_ms=0) as batcher:
        bad = batcher.send(b"x", "", due_ms=1)
        good = batcher.send(b"x", "a", due_ms=1)
        with pytest.raises(SubjectInvalid):
            batcher.flush()
        with pytest.raises(SubjectInvalid):
            bad.result()
        assert good.result().subject == "a"
        server.misbehave("send", Drop())
        lost = batcher.send(b"x", "a", due_ms=2)
        with pytest.raises(ConnectionLost):
            batcher.flush()
        with pytest.raises(ConnectionLost):
            lost.result()
        batcher.flush()
        with pytest.raises(InvalidArgument):
            batcher.send(b"x", due_ms=1)


def test_the_batcher_bounds_unanswered_messages(server: FakeServer, client: Client) -> None:
    server.misbehave("send", Late(0.2))
    with client.batcher("a", batch_messages_max=5, linger_ms=1, pending_messages_max=10) as batcher:
        for number in range(100):
            batcher.send(b"x", due_ms=number)
            assert number + 1 - len(server.messages) <= 10
    assert len(server.messages) == 100


def test_a_message_handed_over_before_an_error_of_the_block_is_sent(client: Client) -> None:
    with pytest.raises(KeyError), client.batcher("a", linger_ms=60_000) as batcher:
        future = batcher.send(b"", due_ms=1)
        raise KeyError
    assert future.result().due_ms == 1


def test_the_batcher_sends_the_properties_that_were_handed_over(server: FakeServer, client: Client) -> None:
    properties: dict[str, str] = {}
    with client.batcher("a", linger_ms=1000) as batcher:
        for number in range(3):
            properties["number"] = str(number)
            batcher.send(b"", due_ms=number, properties=properties)
    assert [stored.properties for stored in server.messages] == [{"number": str(number)} for number in range(3)]


def test_a_batch_keeps_the_bounds_of_the_server(connect: Connect) -> None:
    with FakeServer(limits=Limits(frame_bytes_max=10_000, batch_messages_max=7)) as server:
        with connect(server.address) as client, client.batcher("a", linger_ms=50) as batcher:
            futures = [batcher.send(b"", due_ms=number, properties={"p": "x" * 2000}) for number in range(20)]
            futures += [batcher.send(bytes(2000), due_ms=number) for number in range(20, 40)]
            futures += [batcher.send(b"", due_ms=number) for number in range(40, 60)]
        assert [future.result().due_ms for future in futures] == list(range(60))
        sends = [request.arguments for request in server.requests if request.operation == "send"]
        assert max(len(each["messages"]) if "messages" in each else each["count"] for each in sends) == 7


def test_a_flush_does_not_wait_for_later_messages_of_other_threads(server: FakeServer, client: Client) -> None:
    server.misbehave("send", *[Late(0.02)] * 1_000)
    stop = threading.Event()
    with client.batcher("a") as batcher:

        def send_on() -> None:
            while not stop.wait(0.001):
                batcher.send(b"", due_ms=1)

        others = threading.Thread(target=send_on)
        others.start()
        batcher.send(b"", due_ms=2)
        began = time.monotonic()
        batcher.flush()
        took = time.monotonic() - began
        stop.set()
        others.join()
    assert took < 10


def test_errors_of_a_block_pass_by_unwrapped(server: FakeServer, connect: Connect) -> None:
    with pytest.raises(KeyError), connect(server.address):
        raise KeyError
    with pytest.raises(SubjectInvalid), connect(server.address) as client:
        client.send("", b"", due_ms=1)
    with pytest.raises(SubjectInvalid), connect(server.address) as client, client.batcher() as batcher:
        batcher.send(b"", "", due_ms=1)


def error_of_clock_ms(client: Client, server: FakeServer) -> float:
    return abs(clock_of(client).now_ms() - server.now_us() / 1000)


def test_a_ping_that_was_retried_does_not_put_the_clock_wrong(server: FakeServer, connect: Connect) -> None:
    server.misbehave("ping", Garbage(b""))
    with connect(server.address, timeout_s=1) as client:
        assert error_of_clock_ms(client, server) < 500


def test_columns_with_a_row_without_an_id_are_not_sent_twice(server: FakeServer, client: Client) -> None:
    server.misbehave("send", Drop())
    with pytest.raises(ConnectionLost):
        client.send_columns("a", 1, [b"x", b"y"], message_ids=["m", ""])
    assert [stored.outcome for stored in server.messages] == ["pending", "pending"]


class Forgetful(FakeServer):
    """Takes messages of `full` while it has room, which is once."""

    def _store(self, subject: str, body: bytes, due_ms: int, **rest: Any) -> Stored:
        if subject == "full" and any(stored.subject == "full" for stored in self.messages):
            raise SubjectsFull("no room")
        return super()._store(subject, body, due_ms, **rest)


def test_a_row_that_is_refused_behind_a_lost_answer_may_have_been_taken(connect: Connect) -> None:
    messages = [Message("a", b"x", due_ms=1), Message("full", b"y", due_ms=1)]
    with Forgetful() as server, connect(server.address) as client:
        server.misbehave("send", Drop())
        taken, doubtful = client.send_many(messages)
        assert isinstance(taken, SendResult)
        assert isinstance(doubtful, ConnectionLost)
        assert isinstance(doubtful.__cause__, SubjectsFull)
        assert "another attempt ended with subjects_full" in str(doubtful)
        server.messages.clear()
        server.misbehave("send", Drop())
        sent = client.send_columns(["a", "full"], 1, [b"x", b"y"], subject_index=[0, 1], message_ids=["m", "n"])
        assert [(row.index, type(row.error)) for row in sent.rejected] == [(1, ConnectionLost)]
        # Without a lost answer a refusal is one.
        (refused,) = client.send_many(messages[1:])
        assert isinstance(refused, SubjectsFull)


@pytest.mark.parametrize(
    "wrong",
    [
        {"body": 5},
        {"subject": 5},
        {"message_id": ""},
        {"message_id": 5},
        {"properties": {"a": 1}},
        {"properties": {"a": "\ud800"}},
        {"expires_ms": -1},
        {"due_ms": "soon"},
        {"due_ms": 2**63},
        {"subject": "\ud800"},
    ],
    ids=repr,
)
def test_a_message_that_cannot_be_drawn_is_refused_where_it_is_handed_over(
    server: FakeServer, client: Client, wrong: dict[str, object]
) -> None:
    arguments = {"subject": "a", "body": b"x", "due_ms": 1, **wrong}
    with client.batcher(linger_ms=1000) as batcher:
        neighbour = batcher.send(b"x", "a", due_ms=1)
        with pytest.raises(DelayServerError):
            batcher.send(**arguments)  # type: ignore[arg-type]
    assert neighbour.result().sequence == 0
    with pytest.raises(DelayServerError):
        client.send_many([Message(**arguments)])  # type: ignore[arg-type]


def test_a_single_message_that_cannot_be_encoded_is_an_invalid_argument(client: Client) -> None:
    for wrong in ({"due_ms": 2**70}, {"subject": "\ud800"}, {"body": object()}):
        with pytest.raises(InvalidArgument):
            client.send(**{"subject": "a", "body": b"x", "due_ms": 1, **wrong})  # type: ignore[arg-type]
