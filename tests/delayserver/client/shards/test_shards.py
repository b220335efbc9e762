"""A client of a cluster of several shards: each message goes to its shard, and answers come in the order of the call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from delayserver.client import AsyncClient, Client, Consumer, Delivery, Listener, Message, MessageKey, SendResult
from delayserver.client.asynchronous import shards
from delayserver.client.calls import shard_doubts
from delayserver.client.connections.asyncio_stream import AsyncioStream
from delayserver.client.consuming import consumer, node_pulling
from delayserver.protocol.errors import ConnectionLost, DelayServerError, InvalidArgument, NotReady, TooFar, WrongShard
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.receipts import parse_receipt
from delayserver.protocol.schema.shard_map import DRAINING
from delayserver.protocol.slots import SLOTS, slot_of
from tests.delayserver.client.both import Connect, on_each_loop
from tests.delayserver.client.fake_cluster import FakeCluster, fake_cluster
from tests.delayserver.client.fake_server import TOO_FAR_MS, Drop, Fail, FakeServer, Late, Wait


def owner(subject: str, key: str) -> int:
    return min(slot_of(subject, key) // (SLOTS // 3), 2)


def sent(result: SendResult | DelayServerError) -> SendResult:
    assert isinstance(result, SendResult)
    return result


def test_a_message_with_an_id_goes_to_the_shard_of_its_slot(cluster: FakeCluster, client: Client) -> None:
    for number in range(20):
        result = client.send("orders", b"", due_ms=1, message_id=f"o-{number}")
        assert result.receipt.startswith(cluster.members[owner("orders", f"o-{number}")].server_id)
    assert all(cluster.bodies())


def test_an_order_key_outweighs_the_id(cluster: FakeCluster, client: Client) -> None:
    for number in range(20):
        client.send("orders", b"", due_ms=1, message_id=f"o-{number}", order_key="customer-42")
    assert [len(bodies) for bodies in cluster.bodies()] == [
        20 * (owner("orders", "customer-42") == n) for n in range(3)
    ]


def test_ids_that_the_client_makes_name_their_shard_and_take_turns(cluster: FakeCluster, client: Client) -> None:
    client.send("orders", b"", due_ms=1)  # it has read the map by now
    before = [len(bodies) for bodies in cluster.bodies()]
    made = [client.send("orders", b"", due_ms=1) for _ in range(9)]
    assert all(each.message_id[:13] == f"{parse_receipt(each.receipt).server_id}." for each in made)
    assert [len(bodies) - n for bodies, n in zip(cluster.bodies(), before, strict=True)] == [3, 3, 3]


@pytest.mark.parametrize("pulls", [0, 1])
def test_messages_of_any_shard_are_spread_whatever_is_called_between(pulls: int, connect: Connect) -> None:
    with fake_cluster(2) as cluster, connect(cluster.members[0].address) as client:
        client.send("orders", b"", due_ms=1)  # it has read the map by now
        before = [len(bodies) for bodies in cluster.bodies()]
        for _ in range(8):
            client.send("orders", b"", due_ms=1)
            for _ in range(pulls):
                client.pull("orders", "g")
        assert [len(bodies) - n for bodies, n in zip(cluster.bodies(), before, strict=True)] == [4, 4]


@pytest.mark.parametrize("count", [12, 60])
def test_results_of_many_come_in_the_order_of_the_call(cluster: FakeCluster, client: Client, count: int) -> None:
    messages = [Message("orders", f"{n}", due_ms=n, message_id=f"o-{n}") for n in range(count)]
    messages[3] = Message("orders", b"far", due_ms=TOO_FAR_MS + 1, message_id="o-3")
    results = client.send_many(messages)
    assert isinstance(results.pop(3), TooFar)
    for result in map(sent, results):
        receipt = parse_receipt(result.receipt)
        member = next(each for each in cluster.members if each.server_id == receipt.server_id)
        stored = member.messages[receipt.sequence]
        assert (stored.message_id, stored.body.decode(), stored.due_ms) == (
            result.message_id, f"{receipt.due_ms}", receipt.due_ms,
        )  # fmt: skip
    assert all(cluster.bodies())


def test_columns_are_split_by_slot_and_put_together(cluster: FakeCluster, client: Client) -> None:
    ids = [f"o-{n}" for n in range(30)]
    due_ms = np.arange(30)
    due_ms[7] = TOO_FAR_MS + 1
    answer = client.send_columns(
        ["a", "b"], [f"{n}".encode() for n in range(30)], due_ms=due_ms, subject_index=np.arange(30) % 2,
        message_ids=ids, tags=[f"t{n}" for n in range(30)], properties=[{"n": str(n)} for n in range(30)],
    )  # fmt: skip
    assert [row.index for row in answer.rejected] == [7] and isinstance(answer.rejected[0].error, TooFar)
    rows = [n for n in range(30) if n != 7]
    assert answer.accepted == 29 and answer.due_ms.tolist() == rows
    for row, receipt in zip(rows, map(parse_receipt, answer.receipts()), strict=True):
        shard = owner("ab"[row % 2], ids[row])
        stored = cluster.members[shard].messages[receipt.sequence]
        assert receipt.server_id == cluster.members[shard].server_id
        assert (stored.subject, stored.body, stored.message_id) == ("ab"[row % 2], f"{row}".encode(), ids[row])
        assert stored.properties == {"n": str(row)}
    assert answer.sequence.tolist() == [parse_receipt(each).sequence for each in answer.receipts()]


def test_rows_of_a_shard_that_is_gone_are_in_doubt_and_the_others_are_there(
    cluster: FakeCluster, connect: Connect
) -> None:
    with connect(cluster.members[0].address, retries=0) as client:
        client.send("orders", b"", due_ms=1, message_id="o-0")
        cluster.members[2].misbehave("send", Drop())
        answer = client.send_columns("orders", [b""] * 30, due_ms=1, message_ids=[f"o-{n}" for n in range(30)])
    lost = [n for n in range(30) if owner("orders", f"o-{n}") == 2]
    assert [row.index for row in answer.rejected] == lost and answer.accepted == 30 - len(lost)
    assert all(isinstance(row.error, ConnectionLost) for row in answer.rejected)


def test_cancel_lookup_and_reschedule_find_a_message_by_receipt_and_by_id(cluster: FakeCluster, client: Client) -> None:
    results = [client.send("a", b"x", due_ms=5, message_id=f"m-{n}") for n in range(8)]
    found = client.lookup_many([each.receipt for each in results])
    assert [each.outcome for each in found if not isinstance(each, DelayServerError)] == [Outcome.PENDING] * 8
    assert client.cancel(results[0].receipt).outcome == Outcome.CANCELLED
    assert client.cancel(MessageKey("a", "m-1", 5)).outcome == Outcome.CANCELLED
    moved = client.reschedule(results[2].receipt, due_ms=9)
    assert moved.new_receipt is not None and moved.new_receipt[:12] == results[2].receipt[:12]
    keys = [MessageKey("a", f"m-{n}", 5) for n in range(8)]
    outcomes = [each.outcome for each in client.lookup_many(keys) if not isinstance(each, DelayServerError)]
    assert outcomes == [Outcome.CANCELLED] * 3 + [Outcome.PENDING] * 5
    assert client.lookup(MessageKey("a", "none", 5)).outcome == Outcome.UNKNOWN


def test_a_message_with_an_order_key_is_found_by_its_id_although_its_shard_is_another(
    cluster: FakeCluster, client: Client
) -> None:
    for number in range(6):
        client.send("a", b"", due_ms=5, message_id=f"m-{number}", order_key="k")
        assert client.cancel(MessageKey("a", f"m-{number}", 5)).outcome == Outcome.CANCELLED


def test_a_shard_that_fails_hides_no_message_that_another_one_has(cluster: FakeCluster, connect: Connect) -> None:
    key = next(f"k-{n}" for n in range(99) if owner("a", f"k-{n}") == 2)
    named = next(f"m-{n}" for n in range(99) if owner("a", f"m-{n}") == 0)
    with connect(cluster.members[0].address, retries=0) as client:
        client.send("a", b"", due_ms=5, message_id=named, order_key=key)
        cluster.members[1].misbehave("lookup", *[Fail(NotReady("recovering"))] * 2)
        assert client.lookup(MessageKey("a", named, 5)).outcome is Outcome.PENDING
        # It may have the message that the others do not know.
        with pytest.raises(NotReady):
            client.lookup(MessageKey("a", named, 6))


def test_cancels_without_a_server_id_are_refused(client: Client) -> None:
    client.send("a", b"", due_ms=5)
    with pytest.raises(InvalidArgument, match="receipts"):
        client.cancel_columns([5], [0])


def test_a_shard_that_is_drained_gets_nothing_new_but_what_names_it(cluster: FakeCluster, client: Client) -> None:
    client.send("a", b"", due_ms=1)
    cluster.show(1, state=DRAINING)
    before = len(cluster.members[1].messages)
    for _ in range(9):
        client.send_columns("a", [b""], due_ms=1)
    assert len(cluster.members[1].messages) == before
    client.send("a", b"", due_ms=1, message_id=f"{cluster.members[1].server_id}.1")
    assert len(cluster.members[1].messages) == before + 1


def test_a_message_that_a_member_behind_refuses_is_sent_again(cluster: FakeCluster, client: Client) -> None:
    client.send("a", b"", due_ms=1, message_id="m")
    member = cluster.members[owner("a", "m")]
    member.misbehave("send", *[Fail(WrongShard("behind", retry_after_ms=1, details={"version": 0}))] * 2)
    assert client.send("a", b"again", due_ms=2, message_id="m").receipt.startswith(member.server_id)


def test_pulls_take_from_all_shards_in_turn_and_acks_go_back(cluster: FakeCluster, client: Client) -> None:
    for member in cluster.members:
        member.leases = True
    client.send_columns("a", [b"%d" % n for n in range(30)], due_ms=1, message_ids=[f"m-{n}" for n in range(30)])
    got: list[Delivery] = []
    firsts = []
    while len(got) < 30:
        pulled = client.pull("a", "g", 2)
        firsts.append(pulled[0].server_id)
        got += pulled
    assert len(set(firsts[:3])) == 3, "another shard is first each time"
    assert sorted(int(each.body) for each in got) == list(range(30))
    assert client.extend("a", "g", got).extended == 30
    assert client.ack("a", "g", got[:20]).acked == 20
    for member in cluster.members:
        acked = {each.sequence for each in got[:20] if each.server_id == member.server_id}
        assert {message.sequence for message in member.messages if message.acked} == acked
    assert client.nack("a", "g", [each.delivery for each in got[20:]]).nacked == 10


def test_a_pull_acks_the_columns_of_the_one_before_at_their_shard(cluster: FakeCluster, client: Client) -> None:
    client.send_columns("a", [b""] * 30, due_ms=1, message_ids=[f"m-{n}" for n in range(30)])
    pulled, count = client.pull_columns("a", "g"), 0
    while pulled.count:
        count += pulled.count
        pulled = client.pull_columns("a", "g", ack=pulled)
    assert count == 30 and all(message.acked for member in cluster.members for message in member.messages)


def test_a_pull_that_waits_gets_what_comes_first(cluster: FakeCluster, client: Client) -> None:
    at = cluster.members[owner("a", "m")]
    away = [member for member in cluster.members if member is not at]
    # The looks of three shards find nothing. Two of them go on waiting.
    for member in away:
        member.misbehave("pull", Late(0.0), Wait())
    at.misbehave("pull", Drop())
    client.send("a", b"", due_ms=1, message_id="m")
    assert [each.server_id for each in client.pull("a", "g", wait_s=20)] == [at.server_id]


def test_a_shard_that_does_not_answer_delays_no_pull_of_the_others(cluster: FakeCluster, client: Client) -> None:
    client.send("a", b"", due_ms=1, message_id="m")
    away = cluster.members[(owner("a", "m") + 1) % 3]
    away.misbehave("pull", *[Wait()] * 20)
    for _ in range(6):
        assert len(client.pull("a", "g", wait_s=20)) == 1


def test_messages_that_any_shard_may_take_avoid_one_that_has_failed(cluster: FakeCluster, connect: Connect) -> None:
    with connect(cluster.members[0].address, retries=0) as client:
        client.send("orders", b"", due_ms=1, message_id="o-0")
        cluster.members[2].misbehave("send", Drop())
        lost = next(f"o-{n}" for n in range(99) if owner("orders", f"o-{n}") == 2)
        with pytest.raises(DelayServerError):
            client.send("orders", b"", due_ms=1, message_id=lost)
        before = len(cluster.bodies()[2])
        for _ in range(6):
            client.send("orders", b"", due_ms=1)
        assert len(cluster.bodies()[2]) == before


@pytest.mark.parametrize("refused", [InvalidArgument("no"), TooFar("no")])
def test_a_shard_that_answers_with_an_error_of_the_caller_is_trusted_again(
    cluster: FakeCluster, connect: Connect, monkeypatch: pytest.MonkeyPatch, refused: DelayServerError
) -> None:
    monkeypatch.setattr(shard_doubts, "DOUBT_S", 0.0)
    lost = next(f"o-{n}" for n in range(99) if owner("orders", f"o-{n}") == 2)
    with connect(cluster.members[0].address, retries=0) as client:
        client.send("orders", b"", due_ms=1)  # it has read the map by now
        cluster.members[2].misbehave("send", Drop(), Fail(refused))
        for expected in (ConnectionLost, type(refused)):
            with pytest.raises(expected):
                client.send("orders", b"", due_ms=1, message_id=lost)
        before = len(cluster.bodies()[2])
        for _ in range(6):
            client.send("orders", b"", due_ms=1)
        assert len(cluster.bodies()[2]) == before + 2


@on_each_loop
async def test_a_call_that_is_cancelled_says_nothing_of_its_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_doubts, "DOUBT_S", 0.0)
    lost = next(f"o-{n}" for n in range(99) if owner("orders", f"o-{n}") == 2)
    with fake_cluster() as cluster:
        async with AsyncClient(cluster.members[0].address, retries=0) as client:
            await client.send("orders", b"", due_ms=1)  # it has read the map by now
            cluster.members[2].misbehave("send", Drop())
            with pytest.raises(ConnectionLost):
                await client.send("orders", b"", due_ms=1, message_id=lost)
            cluster.members[2].misbehave("group", Wait())
            with anyio.move_on_after(0.1):
                await client.group("orders", "g")
            before = len(cluster.bodies()[2])
            for _ in range(6):
                await client.send("orders", b"", due_ms=1)
            assert len(cluster.bodies()[2]) == before + 2


def test_a_shard_that_was_added_and_has_no_member_gets_nothing(cluster: FakeCluster, connect: Connect) -> None:
    cluster.add("f" * 12)
    for member in cluster.members:
        member.wrong_replies["remove_group"] = {}
    with connect(cluster.members[0].address) as client:
        for _ in range(8):
            client.send("orders", b"", due_ms=1)
        client.remove_group("orders", "g")
        assert client.lookup(MessageKey("orders", "nobody", due_ms=5)).outcome is Outcome.UNKNOWN


def test_a_pull_ends_at_its_time_though_a_shard_does_not_answer(cluster: FakeCluster, connect: Connect) -> None:
    with connect(cluster.members[0].address, timeout_s=3_000) as client:
        cluster.members[1].misbehave("pull", *[Wait()] * 20)
        assert client.pull("a", "g", wait_s=1) == []


@on_each_loop
async def test_a_consumer_takes_from_all_shards() -> None:
    with fake_cluster() as cluster:
        for member in cluster.members:
            member.leases = True
        async with AsyncClient(cluster.members[1].address) as client:
            await client.send_columns("a", [b""] * 30, due_ms=1, message_ids=[f"m-{n}" for n in range(30)])
            async with Consumer(client, "a", "g", wait_s=0) as deliveries:
                for _ in range(30):
                    assert await (await anext(deliveries)).ack()
                assert len(deliveries.nodes) == 3
        assert all(message.acked for member in cluster.members for message in member.messages)


@on_each_loop
async def test_pulls_reach_the_next_member_of_a_shard_whose_primary_is_a_dead_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = 1

    def hanging(connect: Callable[[str, int], Awaitable[Any]]) -> Callable[[str, int], Awaitable[Any]]:
        async def hang(host: str, port: int) -> Any:
            if port == dead:
                await anyio.sleep_forever()
            return await connect(host, port)

        return hang

    monkeypatch.setattr(anyio, "connect_tcp", hanging(anyio.connect_tcp))
    monkeypatch.setattr(AsyncioStream, "connect", hanging(AsyncioStream.connect))
    monkeypatch.setattr(shards, "LOOK_S", 0.1)
    monkeypatch.setattr(shard_doubts, "DOUBT_S", 0.0)
    with fake_cluster() as cluster:
        async with AsyncClient(cluster.members[0].address) as client:
            await client.send_columns("a", [b""] * 30, due_ms=1, message_ids=[f"m-{n}" for n in range(30)])
        cluster.show(1, primary=f"127.0.0.1:{dead}", standbys=[cluster.members[1].address])
        async with AsyncClient(cluster.members[0].address, connect_timeout_s=0.3) as client:
            # The other shards have messages for each pull.
            for _ in range(60):
                (delivery,) = await client.pull("a", "g", 1, wait_s=5)
                if delivery.server_id == cluster.members[1].server_id:
                    break
        assert delivery.server_id == cluster.members[1].server_id


@on_each_loop
async def test_a_shard_that_does_not_answer_holds_up_no_route() -> None:
    with fake_cluster() as cluster:
        cluster.members[1].misbehave("route", *[Wait()] * 20)
        async with AsyncClient(cluster.members[0].address, timeout_s=3_000) as client:
            for _ in range(3):  # another shard is first each time
                assert len((await client.route(group="main")).nodes) == 3


@on_each_loop
async def test_a_listener_with_a_pattern_finds_subjects_of_all_shards() -> None:
    with fake_cluster() as cluster:
        for member in cluster.members:
            member.leases = True
        heard: set[str] = set()
        all_heard = anyio.Event()
        listener = Listener("g")

        @listener("a.*")
        async def hear(delivery: Delivery) -> None:
            heard.add(delivery.subject)
            if len(heard) == 9:
                all_heard.set()

        async with AsyncClient(cluster.members[1].address) as client:
            for number in range(9):
                await client.send(f"a.{number}", b"", due_ms=1, message_id=f"m-{number}")
            assert all(member.messages for member in cluster.members)
            async with listener.running(client):
                await all_heard.wait()


@on_each_loop
async def test_a_standby_that_joins_ends_no_delivery(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_pulling, "ROUTE_INTERVAL_S", 0.01)
    monkeypatch.setattr(consumer, "ROUTE_INTERVAL_S", 0.01)
    with fake_cluster() as cluster:
        for member in cluster.members:
            member.leases = True
        async with AsyncClient(cluster.members[1].address) as client:
            await client.send("a", b"", due_ms=1, message_id="m")
            async with Consumer(client, "a", "g", wait_s=0) as deliveries:
                received = await anext(deliveries)
                number = owner("a", "m")
                cluster.show(number, standbys=["127.0.0.1:1"])
                while not any("127.0.0.1:1" in node for node in deliveries.nodes):
                    await anyio.sleep(0.01)
                for _ in range(10):
                    await anyio.lowlevel.checkpoint()
                assert await received.ack()


def test_one_way_messages_go_to_their_shards_and_refusals_are_counted(cluster: FakeCluster, client: Client) -> None:
    for number in range(9):
        client.send_one_way("a", b"", 1, message_id=f"m-{number}")
    client.ping()
    assert [len(bodies) for bodies in cluster.bodies()] == [
        sum(owner("a", f"m-{n}") == shard for n in range(9)) for shard in range(3)
    ]


def test_one_way_messages_begin_at_the_primary(cluster: FakeCluster, connect: Connect) -> None:
    number = owner("a", "m")
    primary = cluster.members[number]
    with FakeServer(server_id=primary.server_id) as standby:
        # Another name of the same host, which sorts before that of the primary.
        cluster.show(number, standbys=[f"0.0.0.0:{standby.port}"])
        with connect(cluster.members[number - 1].address) as client:
            client.send_one_way("a", b"", 1, message_id="m")
            client.ping()
        assert (len(primary.messages), standby.connections) == (1, 0)


def test_a_shard_that_fails_hides_no_other_where_one_way_messages_arrive(cluster: FakeCluster, client: Client) -> None:
    for shard in (1, 2):
        client.send_one_way("a", b"", 1, message_id=next(f"m-{n}" for n in range(99) if owner("a", f"m-{n}") == shard))
    cluster.members[1].misbehave("ping", Fail(InvalidArgument("no")))
    with pytest.raises(InvalidArgument):
        client.ping()
    assert cluster.members[2].count("ping") == 1


def test_calls_go_on_where_the_given_member_is_gone(cluster: FakeCluster, client: Client) -> None:
    client.send("a", b"", due_ms=1)  # it has read the map by now
    cluster.members[0].close()
    assert client.ping()
    for number in (n for n in range(30) if owner("a", f"m-{n}")):
        client.send("a", b"", due_ms=1, message_id=f"m-{number}")
        client.send_one_way("a", b"", 1, message_id=f"m-{number}")
    assert client.status()["ready"]


def test_a_group_is_removed_at_all_shards(cluster: FakeCluster, client: Client) -> None:
    client.send("a", b"", due_ms=1)
    for member in cluster.members:
        member.wrong_replies["remove_group"] = {}
    client.remove_group("a", "g")
    assert [member.count("remove_group") for member in cluster.members] == [1, 1, 1]
    with pytest.raises(InvalidArgument, match="position"):
        client.seek("a", "g", 7)


def test_a_client_of_a_server_without_shards_asks_for_no_map(server: FakeServer, connect: Connect) -> None:
    with connect(server.address) as client:
        client.send("a", b"", due_ms=1)
        client.pull("a", "g")
    assert not server.count("map") and server.connections == 1


def test_an_outcome_of_a_duplicate_names_the_shard_of_its_original(cluster: FakeCluster, client: Client) -> None:
    client.send("a", b"", due_ms=1, message_id="m-0")
    originals = [member.server_id for member in cluster.members]
    for member in cluster.members:
        member.wrong_replies["send"] = {
            "accepted": 1, "first_sequence": 7, "due_ms": 5, "rejected": [], "duplicates": [[7, 3, "cancelled"]],
        }  # fmt: skip
    chosen = [next(f"m-{n}" for n in range(99) if owner("a", f"m-{n}") == shard) for shard in (2, 0, 1)]
    answer = client.send_columns("a", [b""] * 3, due_ms=5, message_ids=chosen, tell_duplicates=True)
    told = answer.told()
    assert [each[1] for each in told] == [f"{originals[n]}-{5:012x}-{3:012x}" for n in (2, 0, 1)]
    assert [each[2] for each in told] == [Outcome.CANCELLED] * 3
