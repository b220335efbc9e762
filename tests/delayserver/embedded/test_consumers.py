"""`Consumer` finds the node of an embedded server, over the client that it is given."""

from __future__ import annotations

import anyio
import pytest

from delayserver import embedded
from delayserver.client import Consumer


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
