"""Asynchronous handlers that raise what is no `Exception`, in the task of the listener."""

from __future__ import annotations

import asyncio

import anyio
import pytest

from delayserver import embedded
from delayserver.client import Delivery, Listener

ERRORS = (SystemExit(3), GeneratorExit(), asyncio.CancelledError(), BaseExceptionGroup("g", [SystemExit(1)]))


@pytest.mark.parametrize("anyio_backend", ["trio", "asyncio"])
def test_an_asynchronous_handler_may_raise_anything_but_an_interrupt_of_the_user(anyio_backend: str) -> None:
    attempts: list[int] = []
    listener = Listener("g", concurrency=1)

    @listener("s")
    async def handle(message: Delivery) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise ERRORS[int(message.body)]

    async def main() -> None:
        async with embedded.open_async() as here:
            for number in range(len(ERRORS)):
                await here.send("s", b"%d" % number, delay_ms=0)
            with anyio.fail_after(60):
                async with listener.running(here) as running:
                    while running.stats[0].acked < len(ERRORS):
                        await anyio.sleep(0.01)
                    assert running.stats[0].failed == len(ERRORS)

    anyio.run(main, backend=anyio_backend)
    assert sorted(attempts)[: len(ERRORS)] == [1] * len(ERRORS)
