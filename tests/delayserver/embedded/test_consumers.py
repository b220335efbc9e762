"""`Consumer` finds the node of an embedded server, over the client that it is given."""

from __future__ import annotations

import anyio
import pytest

from delayserver import embedded
from delayserver.client import Consumer
from delayserver.protocol.frames import OneWayRefused


@pytest.mark.parametrize("anyio_backend", ["trio", "asyncio"])
def test_a_consumer_pulls_from_an_embedded_server(anyio_backend: str) -> None:
    async def consume() -> list[bytes]:
        bodies = []
        async with embedded.open_async() as here:
            for number in range(3):
                await here.send("orders", b"%d" % number, delay_ms=0)
            with anyio.fail_after(20):
                async with Consumer(here, "orders", "g") as deliveries:
                    assert deliveries.nodes == ["embedded:20801"]
                    async for received in deliveries:
                        bodies.append(received.delivery.body)
                        assert await received.ack()
                        if len(bodies) == 3:
                            break
        return bodies

    assert sorted(anyio.run(consume, backend=anyio_backend)) == [b"0", b"1", b"2"]


@pytest.mark.parametrize("anyio_backend", ["trio", "asyncio"])
def test_the_reply_to_a_cancelled_call_still_reports_refused_messages(anyio_backend: str) -> None:
    async def refused() -> OneWayRefused | None:
        async with embedded.open_async() as here, here.node_client("embedded:20801") as other:

            async def until(waiting: int) -> None:
                while (await other.status())["broker"]["waiting_pulls"] != waiting:
                    await anyio.sleep(0.01)

            with anyio.fail_after(30):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(here.pull, "orders", "g", 1, 60.0)
                    await until(1)
                    await here.publish_one_way("", b"bad")
                    tasks.cancel_scope.cancel()
                await until(0)  # the reply of the pull has left
                await here.ping()
                return here.take_one_way_refused()

    found = anyio.run(refused, backend=anyio_backend)
    assert found is not None and found.messages == 1
