"""A client of a cluster goes to the primary, whichever member it was given, and says what is in doubt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import anyio
import pytest

from delayserver.client import AsyncClient, Consumer, Delivery, Message
from delayserver.client.calls.core import ClientCore
from delayserver.client.calls.retry_policy import FOLLOW_S, RetryPolicy
from delayserver.client.connections.server_addresses import PASSED_OVER, Addresses
from delayserver.protocol.errors import (
    ConnectionLost,
    DelayServerError,
    InDoubt,
    NotPrimary,
    NotReady,
    RequestTimedOut,
    SharedLogUnavailable,
)
from tests.delayserver.client.both import Connect, on_each_loop
from tests.delayserver.client.fake_server import Drop, Fail, FakeServer, Wait


@pytest.fixture
def members() -> Iterator[tuple[FakeServer, FakeServer]]:
    with ExitStack() as stack:
        yield stack.enter_context(FakeServer()), stack.enter_context(FakeServer())


def not_primary(primary: FakeServer | None = None) -> Fail:
    details = {} if primary is None else {"primary": primary.address}
    return Fail(NotPrimary("a standby", retry_after_ms=1, details=details))


def test_a_client_of_one_address_goes_to_the_primary_that_a_standby_names(
    members: tuple[FakeServer, FakeServer], connect: Connect
) -> None:
    standby, primary = members
    standby.misbehave("send", not_primary(primary))
    with connect(standby.address) as client:
        client.send("a", b"", due_ms=1)
        client.send("a", b"", due_ms=2)
    assert len(primary.messages) == 2 and not standby.messages
    assert standby.count("send") == 1, "it stays with the primary"


def test_a_standby_that_knows_no_primary_gives_way_to_the_next_address(
    members: tuple[FakeServer, FakeServer], connect: Connect
) -> None:
    standby, primary = members
    standby.misbehave("send", not_primary())
    with connect([standby.address, primary.address]) as client:
        client.send("a", b"", due_ms=1)
    assert len(primary.messages) == 1 and not standby.messages


@pytest.mark.parametrize("error", [NotReady("it starts"), SharedLogUnavailable("no Kafka")])
def test_a_member_that_cannot_serve_now_gives_way_to_the_next_address(
    members: tuple[FakeServer, FakeServer], connect: Connect, error: NotReady | SharedLogUnavailable
) -> None:
    first, second = members
    first.misbehave("send", Fail(error))
    with connect([first.address, second.address]) as client:
        client.send("a", b"", due_ms=1)
    assert len(second.messages) == 1 and not first.messages


def test_a_client_of_one_address_keeps_its_connection_where_its_server_cannot_serve_now(
    server: FakeServer, connect: Connect
) -> None:
    server.misbehave("send", Fail(NotReady("it starts", retry_after_ms=1)), not_primary())
    with connect(server.address) as client:
        client.send("a", b"", due_ms=1)
    assert server.connections == 1


def test_calls_go_on_through_more_refusals_of_standbys_than_there_are_retries(
    members: tuple[FakeServer, FakeServer], connect: Connect
) -> None:
    first, second = members
    for member in members:
        member.misbehave("send", *[not_primary()] * 5)
    with connect([first.address, second.address], retries=1) as client:
        client.send("a", b"", due_ms=1)
    assert len(first.messages) + len(second.messages) == 1


def test_a_call_without_a_primary_ends_by_name_in_its_time() -> None:
    attempts = RetryPolicy(3).attempts(ClientCore("test").ping())
    pauses = []
    while (pause_s := attempts.pause_s(NotPrimary(retry_after_ms=100), sent=True)) is not None:
        pauses.append(pause_s)
    assert FOLLOW_S / 2 < sum(pauses) < FOLLOW_S + 1
    assert RetryPolicy(0).attempts(ClientCore("test").ping()).pause_s(NotPrimary(), sent=True) is None


def test_pauses_have_the_jitter_that_the_policy_draws() -> None:
    def pauses_ms(jitter: Callable[[int], int], error: DelayServerError) -> list[int]:
        attempts = RetryPolicy(2, jitter=jitter).attempts(ClientCore("test").ping())
        pauses = [attempts.pause_s(error, sent=True) for _ in range(2)]
        return [round(1000 * (pause_s or 0.0)) for pause_s in pauses]

    lost, away = ConnectionLost(""), NotPrimary(retry_after_ms=500)
    assert pauses_ms(lambda _below: 0, lost) == [0, 0] and pauses_ms(lambda below: below - 1, lost) == [50, 100]
    assert pauses_ms(lambda _below: 0, away) == [500, 500] and pauses_ms(lambda below: below - 1, away) == [600, 600]


def test_a_primary_that_dies_is_left_for_its_successor(
    members: tuple[FakeServer, FakeServer], connect: Connect
) -> None:
    first, second = members
    with connect([first.address, second.address]) as client:
        client.send("a", b"", due_ms=1)
        # The standby names the dead one until it takes over.
        second.misbehave("send", *[not_primary(first)] * 8)
        first.close()
        client.send("a", b"", due_ms=2, message_id="m")
    assert [message.message_id for message in second.messages] == ["m"]


def test_a_primary_that_answers_again_is_followed_although_it_failed_before() -> None:
    addresses = Addresses("a:1,b:2")
    addresses.useless(("a", 1))
    assert addresses.current == ("b", 2)
    error = NotPrimary(details={"primary": "a:1"})
    assert [addresses.leave(error) for _ in range(PASSED_OVER + 1)] == [False] * PASSED_OVER + [True]
    assert addresses.current == ("a", 1)


def test_a_primary_beside_the_given_addresses_is_the_first_of_them_while_it_answers() -> None:
    addresses = Addresses("a:1,b:2")
    assert addresses.leave(NotPrimary(details={"primary": "c:3"}))
    assert addresses.in_turn() == (("c", 3), ("a", 1), ("b", 2))
    addresses.useless(("c", 3))
    assert addresses.in_turn() == (("a", 1), ("b", 2))
    assert addresses.leave(NotPrimary(details={"primary": "c:99999"})), "an address that is none is as good as none"
    assert addresses.current == ("b", 2)


def test_a_call_that_may_not_be_repeated_is_in_doubt(members: tuple[FakeServer, FakeServer], connect: Connect) -> None:
    first, second = members
    with connect([first.address, second.address]) as client:
        receipt = client.send("a", b"", due_ms=1).receipt
        for doubt in (Fail(InDoubt("b leads since")), Drop()):
            first.misbehave("reschedule", doubt)
            with pytest.raises(InDoubt):
                client.reschedule(receipt, due_ms=2)
        assert first.count("reschedule") == 2 and not second.count("reschedule")
    assert issubclass(ConnectionLost, InDoubt) and issubclass(RequestTimedOut, InDoubt)


def test_a_send_with_an_id_stays_one_message_where_its_first_attempt_is_in_doubt(
    members: tuple[FakeServer, FakeServer], connect: Connect
) -> None:
    first, second = members
    first.misbehave("send", Fail(InDoubt("b leads since")), not_primary(second))
    with connect([first.address, second.address]) as client:
        result = client.send_many([Message("a", b"", due_ms=1, message_id="m")])
    assert len(result) == 1 and [message.message_id for message in second.messages] == ["m"]


@on_each_loop
async def test_requests_under_way_keep_their_replies_where_another_one_leaves_their_connection(
    members: tuple[FakeServer, FakeServer],
) -> None:
    standby, primary = members
    async with AsyncClient(standby.address) as client:
        standby.misbehave("pull", Wait())
        standby.misbehave("send", not_primary(primary))
        pulled: list[list[Delivery]] = []

        async def pull() -> None:
            pulled.append(await client.pull("a", "g", 1, 20))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(pull)
            while not standby.count("pull"):
                await anyio.sleep(0.01)
            await client.send("b", b"", due_ms=1)
            assert len(primary.messages) == 1 and not pulled
            client.end_waits()
        assert pulled == [[]] and not primary.count("pull")
        with anyio.fail_after(20):
            await anyio.to_thread.run_sync(standby.wait_for_open, 0)


class Staying(AsyncClient):
    _FOLLOWS = False


@on_each_loop
async def test_a_client_that_passes_requests_on_stays_and_names_the_primary(
    members: tuple[FakeServer, FakeServer],
) -> None:
    standby, primary = members
    standby.misbehave("send", not_primary(primary))
    async with Staying(standby.address) as client:
        with pytest.raises(NotPrimary) as refused:
            await client.send("a", b"", due_ms=1)
        assert refused.value.primary == primary.address
        await client.send("a", b"", due_ms=1)
    assert len(standby.messages) == 1 and standby.count("send") == 2


@on_each_loop
async def test_a_consumer_follows_the_primary(members: tuple[FakeServer, FakeServer]) -> None:
    first, second = members
    first.leases = second.leases = True
    async with AsyncClient([first.address, second.address]) as client:
        await client.send("a", b"one", due_ms=1)
        async with Consumer(client, "a", "g", wait_s=0.05) as deliveries:
            received = await anext(deliveries)
            assert received.delivery.body == b"one" and await received.ack()
            first.close()
            async with AsyncClient(second.address) as other:
                await other.send("a", b"two", due_ms=1)
            with anyio.fail_after(20):
                received = await anext(deliveries)
            assert received.delivery.body == b"two" and await received.ack()
