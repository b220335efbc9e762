"""The asynchronous client against a real socket, on trio and on asyncio: order, loss, cancellation and batches."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from datetime import timedelta

import anyio
import pytest

from delayserver.client import AsyncClient, Message, Outcome, SendResult
from delayserver.protocol.errors import (
    ConnectionLost,
    MalformedFrame,
    NotReady,
    QueueFull,
    RequestTimedOut,
    ShuttingDown,
    SubjectInvalid,
    TooManyConnections,
)
from delayserver.protocol.frames import encode_error, encode_frame
from delayserver.protocol.limits import Limits
from tests.delayserver.client.fake_server import SERVER_ID, Drop, Fail, FakeServer, Garbage, Late, Swap

Run = Callable[[Callable[[], Awaitable[None]]], None]


@pytest.fixture(params=["trio", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    def run_here(main: Callable[[], Awaitable[None]]) -> None:
        async def bounded() -> None:
            with anyio.fail_after(10):
                await main()

        anyio.run(bounded, backend=request.param)

    return run_here


def test_every_operation_answers(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            assert (await client.connect()).server_id == SERVER_ID
            sent = await client.send("a", "one", due_ms=5, message_id="m")
            assert (await client.lookup(sent.receipt)).outcome is Outcome.PENDING
            moved = await client.reschedule(sent.receipt, delay_ms=0)
            assert moved.new_receipt is not None
            assert (await client.cancel(moved.new_receipt)).outcome is Outcome.CANCELLED
            many = await client.send_many([Message("a", b"x", due_ms=1), Message("", b"x", due_ms=1)])
            assert [type(row) for row in many] == [SendResult, SubjectInvalid]
            columns = await client.send_columns("b", delay_ms=0, bodies=[b"x", b"y"])
            assert (await client.cancel_columns(columns.due_ms[:1], columns.sequence[:1])).tolist() == [5]
            [delivery] = await client.pull("b", "g", wait_s=1)
            assert (await client.nack("b", "g", [delivery], timedelta(0))).nacked == 1
            assert (await client.ack("b", "g", [delivery])).acked == 1
            assert (await client.pull_columns("b", "g")).count == 0
            assert (await client.status())["ready"] is True
            assert (await client.route(subject="b")).nodes[0].address == server.address
            assert abs(await client.ping() - server.now_us()) < 5_000_000
            assert client.limits == server.limits
        assert server.connections == 1

    run(main)


def test_replies_out_of_order_find_their_requests(server: FakeServer, run: Run) -> None:
    server.misbehave("send", Swap(), Late(0.0), Swap(), Late(0.0))

    async def main() -> None:
        async def send(due_ms: int) -> None:
            assert (await client.send("a", b"", due_ms=due_ms)).due_ms == due_ms

        async with AsyncClient(server.address) as client, anyio.create_task_group() as tasks:
            for due_ms in range(40):
                tasks.start_soon(send, due_ms)
        assert sorted(stored.due_ms for stored in server.messages) == list(range(40))
        assert server.connections == 1

    run(main)


@pytest.mark.parametrize("step", [Drop(), Drop(reply_bytes=20), Drop(after_effect=False), Late(2.0)])
def test_a_lost_reply_is_retried_as_the_same_message(server: FakeServer, run: Run, step: Drop | Late) -> None:
    async def main() -> None:
        async with AsyncClient(server.address, timeout_s=1.0) as client:
            server.misbehave("send", step)
            await client.send("orders", b"once", delay_ms=1000)
        assert [m.outcome for m in server.messages].count("pending") == 1
        assert len({(m.message_id, m.due_ms) for m in server.messages}) == 1

    run(main)


def test_all_requests_in_flight_survive_a_lost_connection_exactly_once(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async def send(due_ms: int) -> None:
            assert (await client.send("a", b"", due_ms=due_ms)).due_ms == due_ms

        async with AsyncClient(server.address) as client:
            server.misbehave("send", *[Late(0.0)] * 20, Drop(), *[Late(0.0)] * 20, Drop(reply_bytes=9))
            async with anyio.create_task_group() as tasks:
                for due_ms in range(60):
                    tasks.start_soon(send, due_ms)
        kept = [stored.due_ms for stored in server.messages if stored.outcome == "pending"]
        assert sorted(kept) == list(range(60))

    run(main)


def test_what_must_not_be_repeated_is_not(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            server.misbehave("send", Drop())
            with pytest.raises(ConnectionLost):
                await client.send_columns("a", 1, [b""])
        assert len(server.messages) == 1

    run(main)


def test_a_cancelled_call_leaves_the_connection_whole(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            server.misbehave("send", Late(0.2))
            with anyio.move_on_after(0.05) as scope:
                await client.send("a", bytes(100_000), due_ms=1)
            assert scope.cancelled_caught
            assert client._connection is not None
            assert client._connection._waiters == {}
            assert (await client.send("a", b"", due_ms=2)).due_ms == 2
        assert server.connections == 1

    run(main)


def test_cancelling_the_block_leaves_no_task_and_no_socket(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        server.misbehave("status", Late(0.3))
        with anyio.move_on_after(0.1) as scope:
            async with AsyncClient(server.address) as client:
                await client.status()
        assert scope.cancelled_caught
        with pytest.raises(RuntimeError, match="async with"):
            await client.ping()

    run(main)


def test_errors_of_the_block_pass_by_unwrapped(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            async with AsyncClient(server.address):
                raise KeyError
        with pytest.raises(SubjectInvalid):
            async with AsyncClient(server.address) as client:
                await client.send("", b"", due_ms=1)
        with pytest.raises(SubjectInvalid):
            async with AsyncClient(server.address) as client, client.batcher() as batcher:
                await batcher.send(b"", "", due_ms=1)

    run(main)


def test_nobody_there_is_a_connection_error(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

    async def main() -> None:
        with pytest.raises(ConnectionLost, match="cannot connect"):
            async with AsyncClient(f"127.0.0.1:{port}", retries=1):
                pass

    run(main)


def test_a_server_that_says_nothing_is_given_up(run: Run) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            with pytest.raises(RequestTimedOut):
                async with AsyncClient(f"127.0.0.1:{listener.getsockname()[1]}", timeout_s=0.1, retries=1):
                    pass

    run(main)


def test_a_slow_reply_does_not_cost_the_others_their_connection(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address, timeout_s=1.0, retries=0) as client:

            async def time_out() -> None:
                with pytest.raises(RequestTimedOut):
                    await client.lookup(f"{SERVER_ID}-000000000001-000000000000")

            server.misbehave("lookup", Garbage(b""))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(time_out)
                await anyio.sleep(0.1)
                assert await client.ping() > 0
            assert await client.ping() > 0
        assert server.connections == 1

    run(main)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (encode_frame("nonsense"), MalformedFrame),
        (encode_error(0, TooManyConnections("no room")), TooManyConnections),
        (encode_error(0, ShuttingDown("bye")), ConnectionLost),
        (encode_error(0, MalformedFrame("what")), ConnectionLost),
    ],
)
def test_an_error_of_the_connection_reaches_its_requests(
    server: FakeServer, run: Run, data: bytes, error: type[Exception]
) -> None:
    async def main() -> None:
        async with AsyncClient(server.address, retries=0) as client:
            server.misbehave("status", Garbage(data))
            with pytest.raises(error):
                await client.status()
            assert (await client.status())["ready"] is True

    run(main)


def test_requests_in_flight_beside_a_malformed_one_are_retried(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client, anyio.create_task_group() as tasks:

            async def send() -> None:
                assert (await client.send("a", b"", due_ms=1)).due_ms == 1

            server.misbehave("send", Garbage(b""))
            tasks.start_soon(send)
            while not server.messages:
                await anyio.sleep(0.01)
            assert client._connection is not None
            with pytest.raises(ConnectionLost, match="malformed_frame") as raised:
                await client._connection.exchange(2**62, encode_frame([2**62, "send", {"messages": [{1: 2}]}]), 5.0)
            assert isinstance(raised.value.__cause__, MalformedFrame)
        assert [stored.outcome for stored in server.messages] == ["pending", "deduplicated"]

    run(main)


def test_what_must_not_be_repeated_is_not_when_the_server_ends_the_connection(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            server.misbehave("send", Garbage(encode_error(0, ShuttingDown("bye"))))
            with pytest.raises(ConnectionLost):
                await client.send_columns("a", 1, [b""])
        assert len(server.messages) == 1

    run(main)


def test_a_refusal_that_passes_is_retried(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            server.misbehave("send", Fail(NotReady("recovering", retry_after_ms=1)))
            assert (await client.send("a", b"", due_ms=1)).sequence == 0

    run(main)


def test_a_refusal_does_not_hide_that_an_earlier_attempt_may_have_been_stored(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address, retries=1) as client:
            server.misbehave("send", Drop(), Fail(QueueFull("full")))
            with pytest.raises(ConnectionLost, match="queue_full"):
                await client.send("a", b"", due_ms=1)
        assert len(server.messages) == 1

    run(main)


def test_the_batcher_sends_few_frames_and_answers_each_message(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            async with client.batcher("a", batch_messages_max=50, linger_ms=60_000) as batcher:
                handles = [await batcher.send(b"x", due_ms=number) for number in range(120)]
                other = await batcher.send("y", "b", delay_ms=5)
                # Once the last ones linger, only the flush can send them before a minute is over.
                await anyio.sleep(0.05)
                assert not other.done
            assert [(await handle).due_ms for handle in handles] == list(range(120))
            assert (await other).subject == "b"
        assert server.count("send") <= 4

    run(main)


def test_the_batcher_bounds_what_is_not_answered(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address) as client:
            batcher = client.batcher("a", batch_messages_max=5, linger_ms=1, pending_messages_max=10)
            async with batcher:
                for number in range(100):
                    await batcher.send(b"x", due_ms=number)
                    assert batcher._unanswered <= 10
        assert len(server.messages) == 100

    run(main)


def test_the_batcher_puts_errors_where_they_belong(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async with AsyncClient(server.address, retries=0) as client, client.batcher(linger_ms=0) as batcher:
            bad = await batcher.send(b"x", "", due_ms=1)
            good = await batcher.send(b"x", "a", due_ms=1)
            with pytest.raises(SubjectInvalid):
                await batcher.flush()
            with pytest.raises(SubjectInvalid):
                await bad
            assert good.done
            assert (await good).subject == "a"
            server.misbehave("send", Drop())
            lost = await batcher.send(b"x", "a", due_ms=2)
            with pytest.raises(ConnectionLost):
                await batcher.flush()
            with pytest.raises(ConnectionLost):
                await lost
            await batcher.flush()

    run(main)


def test_a_batch_never_exceeds_the_frame_bound(run: Run) -> None:
    async def main() -> None:
        with FakeServer(limits=Limits(frame_bytes_max=10_000)) as server:
            async with AsyncClient(server.address) as client, client.batcher("a", linger_ms=50) as batcher:
                for number in range(20):
                    await batcher.send(bytes(2000), due_ms=number)
            assert len(server.messages) == 20

    run(main)


def test_calls_that_wait_for_one_attempt_to_connect_share_its_failure(server: FakeServer, run: Run) -> None:
    async def main() -> None:
        async def time_out(client: AsyncClient) -> None:
            with pytest.raises(RequestTimedOut):
                await client.ping()

        async with AsyncClient(server.address, timeout_s=1.0, retries=0) as client:
            connection = client._connection
            assert connection is not None
            server.misbehave("hello", Garbage(b""), Garbage(b""))
            server.drop_connections()
            while not connection.closed:
                await anyio.sleep(0.01)
            async with anyio.create_task_group() as tasks:
                for _ in range(20):
                    tasks.start_soon(time_out, client)
            assert server.connections == 2
            # Whoever comes later makes an attempt of its own.
            await time_out(client)
            assert await client.ping() > 0
        assert server.connections == 4

    run(main)
