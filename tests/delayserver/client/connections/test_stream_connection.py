"""One asynchronous connection: requests that wait for their turn."""

from __future__ import annotations

import anyio
import pytest

from delayserver.client import AsyncClient
from delayserver.client.connections import stream_connection
from delayserver.protocol.errors import QueueFull
from delayserver.protocol.frames import encode_request
from tests.delayserver.client.both import connection_of
from tests.delayserver.client.fake_server import FakeServer, Wait

pytestmark = pytest.mark.parametrize("backend", ["trio", "asyncio"])


def test_a_request_that_never_got_its_turn_closes_no_connection(
    server: FakeServer, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "REQUESTS_IN_FLIGHT_MAX", 2)
    server.misbehave("pull", Wait(), Wait())

    async def main() -> None:
        async with AsyncClient(server.address, retries=0) as client, anyio.create_task_group() as pulls:
            for _ in range(2):
                pulls.start_soon(client.pull, "a", "g", 1, 60.0)
            while server.count("pull") < 2:
                await anyio.sleep(0.01)
            connection, pings = connection_of(client), server.count("ping")
            with pytest.raises(QueueFull):
                await connection.exchange(2**62, encode_request(2**62, "ping", {}), 0.2)
            assert not connection.closed
            assert server.count("ping") == pings
            pulls.cancel_scope.cancel()

    anyio.run(main, backend=backend)


def test_requests_get_their_turn_one_after_another(
    server: FakeServer, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_connection, "REQUESTS_IN_FLIGHT_MAX", 2)
    monkeypatch.setattr(stream_connection, "UNWRITTEN_BYTES_MAX", 1000)

    server.misbehave("pull", Wait(), Wait())

    async def main() -> None:
        async with AsyncClient(server.address) as client:

            async def send(due_ms: int) -> None:
                assert (await client.send("a", bytes(5000), due_ms=due_ms)).due_ms == due_ms

            async with anyio.create_task_group() as senders:
                for due_ms in range(50):
                    senders.start_soon(send, due_ms)
                # One that is cancelled while it waits gives its turn to the next.
                with anyio.move_on_after(0):
                    await client.send("a", b"", due_ms=50)
            with anyio.fail_after(30):
                async with anyio.create_task_group() as pulls:
                    for _ in range(2):
                        pulls.start_soon(client.pull, "a", "g", 1, 60.0)
                    while server.count("pull") < 2:  # both turns are free again
                        await anyio.sleep(0.01)
                    pulls.cancel_scope.cancel()
        assert {stored.due_ms for stored in server.messages} >= set(range(50))

    anyio.run(main, backend=backend)
