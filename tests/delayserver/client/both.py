"""Both clients behind the face of the blocking one, so that a test of what they share is written once."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial, update_wrapper
from typing import Any, TypeAlias, cast

import anyio
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from delayserver.client import AsyncClient, Client
from delayserver.client.connections.stream_connection import StreamConnection
from delayserver.client.values.timing import ServerClock
from delayserver.protocol.frames import ReplyFrame

LOOPS = ("trio", "asyncio")
KINDS = ("blocking", *LOOPS)
# A client that hangs is a red test.
TEST_S_MAX = 60

Connect: TypeAlias = Callable[..., AbstractContextManager[Client]]


def on_each_loop(test: Callable[..., Awaitable[None]]) -> Any:
    """A test that is a coroutine function, run on each event loop of the client with the fixtures that it names."""

    def run(backend: str, **fixtures: Any) -> None:
        async def bounded() -> None:
            with anyio.fail_after(TEST_S_MAX):
                await test(**fixtures)

        anyio.run(bounded, backend=backend)

    update_wrapper(run, test)
    # pytest reads the names of the fixtures here.
    signature = inspect.signature(test)
    backend = inspect.Parameter("backend", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    run.__dict__.update(__signature__=signature.replace(parameters=[backend, *signature.parameters.values()]))
    return pytest.mark.parametrize("backend", LOOPS)(run)


def clock_of(client: Client | AsyncClient) -> ServerClock:
    """The server's time as a client has learned it. A delay does not show it: where the last answer took long, the client
    first asks again."""
    return client._core.clock


def connection_of(client: AsyncClient) -> StreamConnection:
    """The present connection of a client in its block, to send frames that no method of the client makes, and to see that a
    failure has reached the client."""
    connection = client._connection
    assert isinstance(connection, StreamConnection)
    return connection


def unanswered(client: AsyncClient) -> int:
    """Requests whose replies the connection waits for. One that is kept too long takes memory and shows nowhere else."""
    return len(connection_of(client)._waiters)


def no_notice(notice: ReplyFrame) -> None:
    """For a connection that has not asked for notices."""
    raise AssertionError(f"{notice} was not asked for")


async def _all_of(found: AsyncIterator[Any]) -> list[Any]:
    return [each async for each in found]


class BlockingFace:
    """An object of an event loop, called from threads: coroutines are waited for, a batcher is a plain context manager."""

    def __init__(self, portal: BlockingPortal, behind: Any) -> None:
        self._portal = portal
        self._behind = behind

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._behind, name)
        if inspect.iscoroutinefunction(attribute):
            return lambda *positional, **named: self._portal.call(partial(attribute, *positional, **named))
        if inspect.isasyncgenfunction(attribute):
            return lambda *positional, **named: iter(self._portal.call(_all_of, attribute(*positional, **named)))
        return attribute

    @contextmanager
    def transaction(self, *positional: Any, **named: Any) -> Iterator[BlockingFace]:
        transaction = self._behind.transaction(*positional, **named)
        with self._portal.wrap_async_context_manager(transaction):
            yield BlockingFace(self._portal, transaction)

    @contextmanager
    def batcher(self, *positional: Any, **named: Any) -> Iterator[BlockingFace]:
        batcher = self._portal.call(partial(self._behind.batcher, *positional, **named))
        with self._portal.wrap_async_context_manager(batcher):
            yield BlockingFace(self._portal, batcher)


@contextmanager
def connected(kind: str, address: str, **settings: Any) -> Iterator[Client]:
    """A `Client` in its block, or an `AsyncClient` on this event loop that is called like one."""
    if kind == "blocking":
        with Client(address, **settings) as client:
            yield client
        return
    with start_blocking_portal(kind) as portal:
        behind = portal.call(partial(AsyncClient, address, **settings))
        with portal.wrap_async_context_manager(behind):
            yield cast(Client, BlockingFace(portal, behind))
