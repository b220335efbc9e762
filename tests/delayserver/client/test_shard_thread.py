"""The thread of a blocking client in a cluster of several shards: a start that fails, and a close beside a call."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator

import pytest

from delayserver.client import AsyncClient
from delayserver.client.blocking.shard_thread import ShardThread
from delayserver.protocol.errors import ConnectionLost

CLOSE_S = 30.0


class FailsOnce(AsyncClient):
    """Its block fails, once for all clients of a test."""

    def __init__(self, failures: Iterator[Exception]) -> None:
        super().__init__("127.0.0.1:1")
        self._failures = failures

    async def _start(self) -> None:
        for failure in self._failures:
            raise failure
        await super()._start()


def made(*failures: Exception) -> Callable[[], AsyncClient]:
    left = iter(failures)
    return lambda: FailsOnce(left)


async def echo(number: int) -> int:
    return number


def echoing(_: AsyncClient) -> Callable[[int], Awaitable[int]]:
    return echo


def test_a_start_that_fails_is_made_again_by_the_next_call() -> None:
    thread = ShardThread(made(OSError("no threads")), CLOSE_S)
    with pytest.raises(OSError, match="no threads"):
        thread.call(echoing, 5)
    assert thread.client is None
    assert thread.call(echoing, 5) == 5
    thread.close()


def test_a_call_beside_a_close_ends_by_name() -> None:
    thread = ShardThread(made(), CLOSE_S)

    def closing(_: AsyncClient) -> Callable[[int], Awaitable[int]]:
        thread.close()
        return echo

    with pytest.raises(ConnectionLost, match="closed"):
        thread.call(closing, 5)
    assert thread.call(echoing, 5) == 5
    thread.close()
