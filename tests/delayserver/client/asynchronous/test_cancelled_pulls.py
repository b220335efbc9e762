"""What a cancelled pull was handed comes back at once, at whatever moment the caller gives up."""

from __future__ import annotations

import anyio
import pytest

from delayserver.client import AsyncClient, Client
from tests.delayserver.cli.conftest import Server
from tests.delayserver.client.both import on_each_loop
from tests.delayserver.client.fake_server import FakeServer, Swap
from tests.delayserver.client.listening.listeners import until

BACKENDS = pytest.mark.parametrize("backend", ["trio", "asyncio"])


async def pull_and_be_cancelled(server: FakeServer, client: AsyncClient) -> None:
    """A pull whose caller is cancelled when the server has the request."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.pull, "a", "g", 3)
        while not server.count("pull"):
            await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()


@on_each_loop
async def test_a_reply_that_comes_behind_the_cancel_is_given_back(server: FakeServer) -> None:
    server.leases = True
    with Client(server.address) as sender:
        sender.send_columns("a", 1, [b""] * 3)
    server.misbehave("pull", Swap())  # it answers behind the `cancel_wait`
    async with AsyncClient(server.address) as client:
        await pull_and_be_cancelled(server, client)
        with anyio.fail_after(30):
            while not server.count("nack"):
                await anyio.sleep(0.01)
    (nack,) = [request.arguments for request in server.requests if request.operation == "nack"]
    assert (nack["count"], nack["delay_ms"], nack["unseen"]) == (3, 0, True)


@on_each_loop
async def test_an_empty_reply_behind_the_cancel_is_dropped(server: FakeServer) -> None:
    server.misbehave("pull", Swap())
    async with AsyncClient(server.address) as client:
        await pull_and_be_cancelled(server, client)
    assert server.count("cancel_wait") == 1 and not server.count("nack")


@BACKENDS
@pytest.mark.parametrize("where", ["while the client lives on", "as its block ends"])
def test_no_message_is_lost_to_a_caller_that_gives_up_at_any_moment(node: Server, backend: str, where: str) -> None:
    subject, rounds = f"cancelled-{backend}-{len(where)}", 120

    async def pull_and_give_up(client: AsyncClient, number: int) -> int:
        with anyio.move_on_after(number % 12 / 2000):
            deliveries = await client.pull(subject, "g", 5, wait_s=20, ack_timeout_s=86_400)
            with anyio.CancelScope(shield=True):
                return (await client.ack(subject, "g", deliveries)).acked
        return 0

    async def main() -> None:
        acked = 0
        async with AsyncClient(node.address) as living:
            for number in range(rounds):
                await living.send(subject, b"%d" % number, delay_ms=0)
                if where == "as its block ends":
                    async with AsyncClient(node.address) as client:
                        acked += await pull_and_give_up(client, number)
                else:
                    acked += await pull_and_give_up(living, number)
            with anyio.fail_after(60):
                while acked < rounds:
                    deliveries = await living.pull(subject, "g", rounds, wait_s=20)
                    acked += (await living.ack(subject, "g", deliveries)).acked

    anyio.run(main, backend=backend)
    with Client(node.address) as client:
        until(lambda: [group.lag for group in client.groups(subject)] == [0])
