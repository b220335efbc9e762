"""Listeners of all three flavours against real servers: acks, retries, fairness, flow control, and a clean stop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Client, Delivery, Handling, Hooks, Retry
from delayserver.protocol.errors import FilterInvalid, SubjectInvalid
from tests.delayserver.cli.conftest import Server, serving
from tests.delayserver.client.listening.listeners import (
    KINDS,
    Held,
    Seen,
    group_of,
    is_done,
    listening,
    numbered,
    send,
    until,
)

pytestmark = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for the tests of this module; each uses subjects of its own."""
    with serving(tmp_path_factory.mktemp("node") / "data", "--set", "broker.redelivery_first_ms=100") as server:
        yield server


@pytest.fixture
def client(node: Server) -> Iterator[Client]:
    with Client(node.address) as client:
        yield client


def test_a_message_is_acked_when_its_handler_returns(kind: str, node: Server, client: Client, subject: str) -> None:
    seen = Seen()
    send(client, subject, *numbered(2000))
    with listening(kind, node.address, {(subject,): seen}) as listener:
        until(lambda: is_done(client, subject, 2000), "the last ack")
    assert sorted(seen.bodies) == sorted(numbered(2000))
    assert (listener.stats.acked, listener.stats.started, listener.stats.too_late) == (2000, 2000, 0)


def test_a_pattern_finds_subjects_that_exist_and_new_ones_but_no_dead_letters(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    seen, plain = Seen(), Seen()
    send(client, f"{subject}.a", b"old")
    send(client, f"{subject}.dead.shop", b"dead")
    send(client, f"{subject}-plain", b"plain")
    with listening(kind, node.address, {(f"{subject}.*",): seen, (f"{subject}-plain",): plain}):
        until(lambda: seen.bodies == [b"old"] and plain.bodies == [b"plain"])
        send(client, f"{subject}.b", b"new")
        until(lambda: seen.bodies == [b"old", b"new"], "the new subject")
    assert list(client.groups(f"{subject}.dead.shop")) == []


def test_a_pattern_that_names_dead_letters_finds_them(kind: str, node: Server, client: Client, subject: str) -> None:
    seen = Seen()
    send(client, f"{subject}.dead.shop", b"dead")
    with listening(kind, node.address, {(f"{subject}.dead.*",): seen}):
        until(lambda: seen.bodies == [b"dead"])


def test_a_handler_that_raises_gets_the_message_again_and_its_error_is_logged(
    kind: str, node: Server, client: Client, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    failed: list[Handling] = []

    def handle(message: Delivery) -> None:
        seen(message)
        if message.attempt < 3:
            raise ValueError("no such order")

    send(client, subject, b"7")
    hooks = Hooks(failed=failed.append)
    with listening(kind, node.address, {(subject,): handle}, hooks=hooks) as listener:
        until(lambda: listener.stats.acked == 1)
    assert seen.attempts == [1, 2, 3]
    assert [str(each.error) for each in failed] == ["no such order"] * 2
    assert (listener.stats.failed, listener.stats.nacked, listener.stats.acked) == (2, 2, 1)
    # The second failure is the same and comes soon: it is held back.
    (record,) = [each for each in caplog.records if each.levelno == logging.ERROR]
    assert "attempt 1" in record.getMessage() and subject in record.getMessage()
    assert record.exc_info is not None and isinstance(record.exc_info[1], ValueError)


def test_whatever_a_handler_raises_the_listener_goes_on_and_the_message_comes_again(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    class Strange(Exception):
        def __str__(self) -> str:
            raise KeyboardInterrupt

        __repr__ = __str__
        __eq__ = __hash__ = __bool__ = __str__  # type: ignore[assignment]

    class Number(Exception):
        def __str__(self) -> str:
            return 404  # type: ignore[return-value]  # noqa: PLE0307

    errors: list[BaseException] = [
        Strange(),
        Number(),
        SystemExit(3),
        GeneratorExit(),
        asyncio.CancelledError(),
        RecursionError(),
    ]
    errors += [ExceptionGroup("g", [Number()]), BaseExceptionGroup("g", [SystemExit(1)])]
    if kind == "threads":
        errors.append(KeyboardInterrupt())
    if kind == "asyncio":  # a future carries no others from the thread in which these handlers run
        errors = [error for error in errors if isinstance(error, Exception)]
    else:
        errors.append(GeneratorExit())
    seen = Seen()

    def handle(message: Delivery) -> None:
        seen(message)
        if message.attempt == 1 and message.body != b"good":
            raise errors[int(message.body)]

    send(client, subject, *numbered(len(errors)))
    with listening(kind, node.address, {(subject,): handle}, concurrency=1) as listener:
        until(lambda: is_done(client, subject, len(errors)), "that all are handled at last")
        send(client, subject, b"good")
        until(lambda: is_done(client, subject, len(errors) + 1))
    assert seen.attempts.count(1) == len(errors) + 1
    assert listener.stats.failed == len(errors) == listener.stats.nacked


def test_a_retry_has_its_own_delay_and_is_no_failure(
    kind: str, node: Server, client: Client, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    hooked: list[Handling] = []

    def handle(message: Delivery) -> None:
        seen(message)
        if len(seen.attempts) == 1:
            raise Retry("not yet", delay_ms=0)
        raise Retry(delay_ms=3_600_000)

    send(client, subject, b"7")
    hooks = Hooks(failed=hooked.append)
    with listening(kind, node.address, {(subject,): handle}, hooks=hooks) as listener:
        until(lambda: listener.stats.nacked == 2)
    assert seen.attempts == [1, 1]
    assert hooked == [] and listener.stats.failed == 0
    assert [each for each in caplog.records if each.levelno >= logging.WARNING] == []
    assert client.pull(subject, "shop") == []


def test_a_message_is_given_up_after_its_attempts_with_the_error_as_the_reason(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    seen = Seen()

    def handle(message: Delivery) -> None:
        seen(message)
        raise ValueError("no such order")

    client.set_policy(subject, "shop", attempts=2)
    send(client, subject, b"7")
    with listening(kind, node.address, {(subject,): handle}) as listener:
        until(lambda: listener.stats.dead_lettered == 1)
    assert seen.attempts == [1, 2]
    (dead,) = client.pull(f"{subject}.dead.shop", "g", 1, 30.0)
    assert (dead.body, dead.properties["dead_reason_text"]) == (b"7", "ValueError: no such order")


def test_a_message_that_no_handler_began_is_not_given_up(kind: str, node: Server, client: Client, subject: str) -> None:
    held = Held()
    client.set_policy(subject, "shop", attempts=1)
    send(client, subject, b"7", b"8")
    with listening(kind, node.address, {(subject,): held}, concurrency=1, ack_timeout_s=600) as listener:
        until(lambda: len(held.bodies) == 1 and listener.stats.received == 2)
        listener.ask_to_stop()
        held.go.set()
    assert (listener.stats.given_back, listener.stats.dead_lettered) == (1, 0)
    (again,) = client.pull(subject, "shop", 1, 30.0)
    assert {again.body, *held.bodies} == {b"7", b"8"}


def test_a_filter_and_a_start_are_those_of_the_group(kind: str, node: Server, client: Client, subject: str) -> None:
    seen = Seen()
    for tag in ("paid", "open"):
        client.send(subject, tag, delay_ms=0, tag=tag)
    choice = {"tags": "paid", "start": "earliest"}
    with listening(kind, node.address, {(subject,): seen}, choice=choice):
        until(lambda: seen.bodies == [b"paid"])
        client.send(subject, "paid again", delay_ms=0, tag="paid")
        until(lambda: seen.bodies == [b"paid", b"paid again"])


def test_a_filter_that_does_not_parse_ends_the_listener(kind: str, node: Server, client: Client, subject: str) -> None:
    send(client, subject, b"7")
    with pytest.raises(FilterInvalid):
        with listening(kind, node.address, {(subject,): Seen()}, choice={"where": "price >"}) as listener:
            until(lambda: listener.ended)


def test_hooks_see_each_delivery_with_its_times(kind: str, node: Server, client: Client, subject: str) -> None:
    calls: list[tuple[str, Handling]] = []
    names = ("received", "started", "acked", "nacked", "failed")
    hooks = Hooks(**{name: lambda each, name=name: calls.append((name, each)) for name in names})

    def handle(message: Delivery) -> None:
        if message.attempt == 1:
            raise ValueError

    send(client, subject, b"7")
    with listening(kind, node.address, {(subject,): handle}, hooks=hooks) as listener:
        until(lambda: listener.stats.acked == 1)
    # The redelivery may come before the answer to the nack.
    first = calls[0][1]
    assert [name for name, each in calls if each is first] == ["received", "started", "failed", "nacked"]
    assert [name for name, each in calls if each is not first] == ["received", "started", "acked"]
    for _, handling in calls:
        assert handling.group == "shop" and handling.node == node.address
        assert handling.received_s <= handling.started_s <= handling.ended_s <= handling.settled_s
        assert handling.lease_ends_s == pytest.approx(handling.received_s + 60)


def test_a_hook_that_raises_ends_the_listener_with_its_error(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    def broken(_: Handling) -> None:
        raise KeyError("metrics")

    send(client, subject, b"7")
    for hooks in (Hooks(received=broken), Hooks(started=broken), Hooks(acked=broken)):
        with pytest.raises(KeyError, match="metrics"):
            with listening(kind, node.address, {(subject,): Seen()}, hooks=hooks) as listener:
                send(client, subject, b"8")
                until(lambda: listener.ended)


def test_a_group_that_the_server_refuses_ends_the_listener(kind: str, node: Server, subject: str) -> None:
    with pytest.raises(SubjectInvalid):
        with listening(kind, node.address, {(subject,): Seen()}, group="g" * 300) as listener:
            until(lambda: listener.ended)


def test_a_stop_lets_running_handlers_end_and_gives_waiting_messages_back(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    held = Held()
    send(client, subject, *numbered(12))
    with listening(kind, node.address, {(subject,): held}, concurrency=2, ack_timeout_s=600) as listener:
        until(lambda: len(held.bodies) == 2 and listener.stats.received == 12)
        listener.ask_to_stop()
        until(lambda: listener.stats.nacked == 10, "the others are given back, though two handlers run")
        held.go.set()
    assert len(held.bodies) == 2
    assert (listener.stats.acked, listener.stats.given_back, listener.stats.lost) == (2, 10, 0)
    again: list[Delivery] = []
    while len(again) < 10:
        pulled = client.pull(subject, "shop", 100, 30.0)
        assert pulled
        again += pulled
    assert {each.body for each in again} == set(numbered(12)) - set(held.bodies)
    assert group_of(client, subject).lag == 10


def test_a_handler_that_hangs_is_cut_off_at_the_end_and_its_message_comes_again(
    kind: str, node: Server, client: Client, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    send(client, subject, b"7")
    with listening(kind, node.address, {(subject,): held}, stop_s=0.05, ack_timeout_s=600) as listener:
        until(lambda: held.bodies == [b"7"])
    assert (listener.stats.failed, listener.stats.nacked) == (1, 1)
    assert any("cut off" in each.getMessage() for each in caplog.records)
    (again,) = client.pull(subject, "shop", 1, 60.0)
    assert again.attempt == 2
    held.go.set()


def test_a_handler_that_hangs_holds_up_no_other(kind: str, node: Server, client: Client, subject: str) -> None:
    held, seen = Held(), Seen()

    def handle(message: Delivery) -> None:
        (held if message.body == b"hang" else seen)(message)

    send(client, subject, b"hang", *numbered(50))
    with listening(kind, node.address, {(subject,): handle}, concurrency=2):
        until(lambda: len(seen.bodies) == 50)
        held.go.set()
    assert is_done(client, subject, 51)


def test_a_subject_with_slow_handlers_does_not_hold_up_another_of_the_pattern(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    held, seen = Held(), Seen()

    def handle(message: Delivery) -> None:
        (held if message.subject.endswith("slow") else seen)(message)

    send(client, f"{subject}.fast", b"first")
    send(client, f"{subject}.slow", *numbered(20))
    with listening(kind, node.address, {(f"{subject}.*",): handle}, concurrency=4):
        until(lambda: len(held.bodies) == 4)
        send(client, f"{subject}.fast", *numbered(100))
        # Those that hang took all places while nothing else waited; the first that ends gives its place to the other.
        held.go.set()
        until(lambda: len(seen.bodies) == 101)


def test_prefetch_bytes_bound_the_messages_that_a_listener_holds(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    held = Held()
    for number in range(12):
        send(client, subject, bytes([number]) * 100_000)
    options: dict[str, Any] = {"concurrency": 1, "prefetch_bytes": 350_000, "ack_timeout_s": 600}
    with listening(kind, node.address, {(subject,): held}, **options) as listener:
        until(lambda: held.bodies and listener.stats.received >= 2)
        # A fair chance to pull more, if it would.
        send(client, f"{subject}.other", b"")
        client.pull(f"{subject}.other", "g", 1, 5.0)
        assert 2 <= listener.stats.received <= 4
        assert group_of(client, subject).leased <= 4
        held.go.set()
        until(lambda: is_done(client, subject, 12))
    assert Counter(held.bodies) == Counter(bytes([number]) * 100_000 for number in range(12))


def test_a_message_larger_than_the_bound_comes_alone(kind: str, node: Server, client: Client, subject: str) -> None:
    seen = Seen()
    send(client, subject, bytes(500_000), b"small", bytes(400_000))
    with listening(kind, node.address, {(subject,): seen}, prefetch_bytes=1000):
        until(lambda: is_done(client, subject, 3))
    assert sorted(map(len, seen.bodies)) == [5, 400_000, 500_000]


def test_a_handler_that_outlives_its_lease_is_reported_and_counted(
    kind: str, node: Server, client: Client, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    overdue: list[Handling] = []
    send(client, subject, b"7")
    hooks = Hooks(overdue=overdue.append)
    settings: Any = {"ack_timeout_s": 0.2, "extend_max_s": 0}
    with listening(kind, node.address, {(subject,): held}, hooks=hooks, **settings) as listener:
        until(lambda: len(overdue) >= 1)
        until(lambda: len(held.bodies) >= 2, "the message comes twice, because its lease ended")
        held.go.set()
        until(lambda: is_done(client, subject))
        until(lambda: listener.stats.too_late >= 1)
    assert listener.stats.overdue >= 1
    texts = [each.getMessage() for each in caplog.records]
    assert any("with an ack timeout of 0.2 s: it can come twice" in text for text in texts)
    assert any("too late" in text for text in texts)


def test_a_server_that_is_killed_and_starts_again_is_found_again(
    kind: str, tmp_path: Path, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    seen = Seen()
    with serving(tmp_path / "data") as first:
        port = first.address.rpartition(":")[2]
        with Client(first.address) as client:
            send(client, subject, b"before")
        with listening(kind, first.address, {(subject, f"{subject}*"): seen}) as listener:
            until(lambda: b"before" in seen.bodies)
            first.process.kill()
            first.process.wait()
            with serving(tmp_path / "data", "--port", port) as second:
                with Client(second.address) as client:
                    send(client, subject, b"after")
                    send(client, f"{subject}2", b"new")
                until(lambda: {b"after", b"new"} <= set(seen.bodies))
                with Client(second.address) as client:
                    until(lambda: is_done(client, subject))
        assert not listener.error


def test_an_ack_after_a_restart_of_the_node_is_not_called_too_late(
    kind: str, tmp_path: Path, subject: str, caplog: pytest.LogCaptureFixture
) -> None:
    held = Held()
    with serving(tmp_path / "data") as first:
        port = first.address.rpartition(":")[2]
        with Client(first.address) as client:
            send(client, subject, b"7")
        with listening(kind, first.address, {(subject,): held}) as listener:
            until(lambda: len(held.bodies) == 1)
            first.process.kill()
            first.process.wait()
            with serving(tmp_path / "data", "--port", port) as second:
                until(lambda: len(held.bodies) == 2, "the redelivery")
                held.go.set()
                until(lambda: listener.stats.unknown == 1, "the ack of the delivery of before")
                with Client(second.address) as client:
                    until(lambda: is_done(client, subject))
    assert listener.stats.too_late == 0
    texts = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert [text for text in texts if "too late" in text] == []
    (text,) = [text for text in texts if "no longer had in flight" in text]
    assert first.address in text and "settled 1 messages" in text


def test_all_nodes_of_a_route_are_listened_to(kind: str, tmp_path: Path, subject: str) -> None:
    seen = Seen()
    nodes: Counter[str] = Counter()
    with serving(tmp_path / "one") as one, serving(tmp_path / "two") as two:
        config = tmp_path / "server.toml"
        groups = f'[[groups]]\nname = "east"\nnodes = ["{one.address}", "{two.address}"]\n'
        config.write_text(f'{groups}[[routes]]\npattern = "*"\ngroups = ["east"]\n')
        with serving(tmp_path / "entry", "--config", str(config)) as entry, Client(entry.address) as client:
            hooks = Hooks(acked=lambda each: nodes.update([each.node]))
            with listening(kind, entry.address, {(subject,): seen}, hooks=hooks):
                # A batch of deliveries goes to one node, the next one to the other, as soon as the server has connected.
                while nodes.total() < 10 or (len(nodes) < 2 and nodes.total() < 1_000):
                    acked = nodes.total()
                    send(client, subject, b"%d" % acked)
                    until(partial(lambda before: nodes.total() > before, acked))
    assert sorted(seen.bodies) == sorted(numbered(nodes.total()))
    assert set(nodes) == {one.address, two.address}


def test_messages_of_one_key_are_handled_one_after_the_other_also_across_failures(
    kind: str, node: Server, client: Client, subject: str
) -> None:
    keys = "abcd"
    done: dict[str, list[int]] = {key: [] for key in keys}
    at_work: Counter[str] = Counter()
    failures: set[bytes] = set()

    def handle(message: Delivery) -> None:
        key, number = chr(message.body[0]), int(message.body[1:])
        at_work[key] += 1
        try:
            assert at_work[key] == 1, "two handlers have one key"
            if number % 7 == 3 and message.body not in failures:
                failures.add(message.body)
                raise ValueError("not yet")
            done[key].append(number)
        finally:
            at_work[key] -= 1

    for number in range(20):
        for key in keys:
            client.publish(subject, f"{key}{number}", order_key=key)
    with listening(kind, node.address, {(subject,): handle}, concurrency=3):
        until(lambda: is_done(client, subject, 80), "the last ack")
    assert done == {key: list(range(20)) for key in keys}
    assert len(failures) == 12
