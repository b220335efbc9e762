"""Single sends that are folded into batches, on a fake server."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from delayserver.client import AsyncClient
from delayserver.client.values.messages import Message
from delayserver.protocol.errors import ConnectionLost, DelayServerError, InvalidArgument, TooFar
from delayserver.protocol.slots import SLOTS, slot_of
from delayserver.web import singles as singles_module
from delayserver.web.singles import Singles
from tests.delayserver.client.fake_cluster import fake_cluster
from tests.delayserver.client.fake_server import TOO_FAR_MS, FakeServer, Garbage

SECONDS_MAX = 60


def on_a_server(test: Callable[[FakeServer, Singles, asyncio.Task[None]], Awaitable[None]]) -> None:
    """Run a test with the singles of one client; the task that sends them may be ended by the test."""

    async def run() -> None:
        with FakeServer() as server:
            async with AsyncClient(server.address) as client:
                singles = Singles(client)
                running: asyncio.Task[None] = asyncio.create_task(singles.run())
                await test(server, singles, running)
                running.cancel()

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


def test_sends_during_a_batch_form_the_next_batch_and_each_gets_its_own_answer() -> None:
    async def send(server: FakeServer, singles: Singles, _: asyncio.Task[None]) -> None:
        due_ms = [1, 2, TOO_FAR_MS + 1, *range(4, 40)]
        first = asyncio.create_task(singles.send(Message("a", b"", 0)))
        while not server.count("send"):
            await asyncio.sleep(0.001)
        sends = [singles.send(Message("a", b"", each)) for each in due_ms]
        sent = await asyncio.gather(*sends, return_exceptions=True)
        await first
        assert [each.due_ms for each in sent if not isinstance(each, BaseException)] == [
            each for each in due_ms if each <= TOO_FAR_MS
        ]
        assert isinstance(sent[2], TooFar)
        assert server.count("send") == 2

    on_a_server(send)


def test_sends_that_come_side_by_side_form_few_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(server: FakeServer, singles: Singles, _: asyncio.Task[None]) -> None:
        await asyncio.gather(*[singles.send(Message("a", b"", each)) for each in (1, 2)])
        later = []
        for each in range(3, 8):
            later.append(asyncio.create_task(singles.send(Message("a", b"", each))))
            await asyncio.sleep(0)
        await asyncio.gather(*later)
        assert server.count("send") == 2

    monkeypatch.setattr(singles_module, "BATCH_S", 3.0)
    on_a_server(send)


def test_a_send_alone_does_not_make_the_next_one_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(server: FakeServer, singles: Singles, _: asyncio.Task[None]) -> None:
        for each in (1, 2, 3):
            await singles.send(Message("a", b"", each))
        assert server.count("send") == 3

    monkeypatch.setattr(singles_module, "BATCH_S", SECONDS_MAX)
    on_a_server(send)


def test_a_message_that_cannot_be_sent_fails_no_other_one() -> None:
    async def send(_server: FakeServer, singles: Singles, _: asyncio.Task[None]) -> None:
        wrong = Message("a", "\ud800", 1)
        sent = await asyncio.gather(singles.send(wrong), singles.send(Message("a", b"", 2)), return_exceptions=True)
        assert isinstance(sent[0], InvalidArgument)
        assert not isinstance(sent[1], BaseException) and sent[1].due_ms == 2

    on_a_server(send)


def test_messages_without_an_answer_are_abandoned_at_the_end() -> None:
    async def send(server: FakeServer, singles: Singles, running: asyncio.Task[None]) -> None:
        server.misbehave("send", Garbage(b""))
        under_way = asyncio.create_task(singles.send(Message("a", b"", 1)))
        while not server.count("send"):
            await asyncio.sleep(0.001)
        behind, cancelled = [asyncio.create_task(singles.send(Message("a", b"", each))) for each in (2, 3)]
        await asyncio.sleep(0)
        cancelled.cancel()
        running.cancel()
        for lost in (under_way, behind, singles.send(Message("a", b"", 4))):
            with pytest.raises(ConnectionLost):
                await lost
        with pytest.raises(asyncio.CancelledError):
            await cancelled

    on_a_server(send)


def test_an_error_of_a_whole_request_is_that_of_each_message() -> None:
    async def send(server: FakeServer, singles: Singles, _: asyncio.Task[None]) -> None:
        server.drop_connections()
        server.misbehave("send", *[Garbage(b"\xff" * 8)] * 20)
        sends = [singles.send(Message("a", b"", each)) for each in range(3)]
        found = await asyncio.gather(*sends, return_exceptions=True)
        assert all(isinstance(each, DelayServerError) for each in found)
        assert len({id(each) for each in found}) == 3, "each collects its own traceback"

    on_a_server(send)


def test_a_shard_without_an_answer_delays_no_message_of_another_one() -> None:
    async def run() -> None:
        with fake_cluster() as cluster:
            async with AsyncClient(cluster.members[0].address) as client:
                await client.send("a", b"", due_ms=1)  # it knows the map
                singles = Singles(client)
                running = asyncio.create_task(singles.run())
                for member in cluster.members:
                    member.requests.clear()
                stuck = cluster.members[2]
                stuck.misbehave("send", *[Garbage(b"")] * 5)
                size = SLOTS // 3
                ids: dict[int, list[str]] = {0: [], 1: [], 2: []}
                for number in range(60):
                    ids[min(slot_of("a", f"m-{number}") // size, 2)].append(f"m-{number}")
                waits = asyncio.create_task(singles.send(Message("a", b"", 1, message_id=ids[2][0])))
                while not stuck.count("send"):
                    await asyncio.sleep(0.001)
                for named in zip(ids[0][:4], ids[1][:4], strict=True):
                    sends = [singles.send(Message("a", b"", 1, message_id=each)) for each in named]
                    found = [(await each).receipt[:12] for each in sends]
                    assert found == [cluster.members[shard].server_id for shard in (0, 1)]
                # One that may go to any shard goes where few requests are on their way, and its id names the shard.
                free = await singles.send(Message("a", b"", 2))
                assert free.message_id.startswith(f"{free.receipt[:12]}.") and not free.receipt.startswith(
                    stuck.server_id
                )
                behind = asyncio.create_task(singles.send(Message("a", b"", 1, message_id=ids[2][1])))
                await asyncio.sleep(0)
                assert not waits.done() and stuck.count("send") == 1
                running.cancel()
                for each in (waits, behind):
                    with pytest.raises(ConnectionLost):
                        await each

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))


@pytest.mark.parametrize("stuck", [(2,), (1, 2)])
def test_all_shards_share_the_places_and_those_without_an_answer_leave_some(
    monkeypatch: pytest.MonkeyPatch, stuck: tuple[int, ...]
) -> None:
    monkeypatch.setattr(singles_module, "PENDING_MESSAGES_MAX", 12)

    async def run() -> None:
        with fake_cluster() as cluster:
            async with AsyncClient(cluster.members[0].address) as client:
                await client.know_shards()
                singles = Singles(client)
                running = asyncio.create_task(singles.run())
                for shard in stuck:
                    cluster.members[shard].misbehave("send", *[Garbage(b"")] * 50)
                ids: dict[int, list[str]] = {0: [], 1: [], 2: []}
                for number in range(300):
                    ids[min(slot_of("a", f"m-{number}") // (SLOTS // 3), 2)].append(f"m-{number}")
                waits = [
                    asyncio.create_task(singles.send(Message("a", b"", 1, message_id=each)))
                    for shard in stuck
                    for each in ids[shard][:20]
                ]
                while not all(cluster.members[shard].count("send") for shard in stuck):
                    await asyncio.sleep(0.001)
                for each in ids[0][:9]:
                    assert (await singles.send(Message("a", b"", 1, message_id=each))).message_id == each
                places = singles.places
                places.check_invariants()
                assert places.taken < 12 and places.full(stuck[0])
                for waiting in waits[:3]:
                    waiting.cancel()
                await asyncio.wait(waits[:3])
                await asyncio.sleep(0)
                assert places.full(stuck[0]), "others have the places of those that went"
                running.cancel()
                for found in await asyncio.gather(*waits, return_exceptions=True):
                    assert isinstance(found, ConnectionLost | asyncio.CancelledError)
                assert places.taken == 0

    asyncio.run(asyncio.wait_for(run(), SECONDS_MAX))
