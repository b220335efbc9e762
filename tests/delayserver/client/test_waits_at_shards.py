"""A pull that waits at all shards, where two of them answer in the same moment."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import anyio
import numpy as np

from delayserver.client.asynchronous.shards import Shards
from delayserver.client.calls.core import Call
from delayserver.client.calls.pull_calls import pull_call
from delayserver.client.values.pulled_columns import PulledColumns
from delayserver.client.values.timing import elapsed_us
from delayserver.protocol.columns import I64, U32, unpack_ragged
from delayserver.protocol.frames import OneWayRefused
from delayserver.protocol.operation_names import NACK
from delayserver.protocol.schema.shard_map import OPEN, ShardMap, ShardPlace
from delayserver.protocol.slots import SLOTS
from tests.delayserver.client.both import on_each_loop

T = TypeVar("T")

MAP = ShardMap(
    1, [[0, SLOTS - 1, 0]], [ShardPlace(n, f"{n:012x}", OPEN, 1, f"127.0.0.1:{n + 1}", []) for n in range(2)]
)


def pulled(count: int) -> PulledColumns:
    numbers, empty = np.zeros(count, I64), unpack_ragged(b"", 0, count, "", "")
    return PulledColumns(
        count=count, subject="a", server_ids=[""], server_index=np.zeros(count, U32), sequence=numbers, due_ms=numbers,
        accepted_us=numbers, dispatched_us=numbers, attempt=np.ones(count, U32), message_ids=empty, properties=empty,
        bodies=empty, delivery=numbers, expires_ms=numbers, position=numbers,
    )  # fmt: skip


class Shard:
    """A client of a shard that has no message at a look, and one at ``come``."""

    def __init__(self, come: anyio.Event, nacked: Callable[[], None]) -> None:
        self._come = come
        self._nacked = nacked

    async def _run(self, call: Call[Any], close_count: int | None = None) -> Any:
        if call.operation == NACK:
            self._nacked()
            return None
        if not call.wait_s:
            return pulled(0)
        await self._come.wait()
        return pulled(1)

    async def _post(self, call: Call[T]) -> None: ...

    def _move_to(self, addresses: str) -> None: ...

    def end_waits(self) -> None: ...

    async def ping(self) -> int:
        return 0

    def take_one_way_refused(self) -> OneWayRefused | None:
        return None


@on_each_loop
async def test_a_caller_that_goes_while_another_shard_gets_its_messages_back_loses_none() -> None:
    come, scope, nacked, got = anyio.Event(), anyio.CancelScope(), list[str](), list[PulledColumns]()

    async def ask(_: Call[ShardMap]) -> ShardMap:
        return MAP

    async def open_client(addresses: str) -> Shard:
        def note() -> None:
            nacked.append(addresses)
            scope.cancel()

        return Shard(come, note)

    def start(task: Callable[[int], Coroutine[Any, Any, None]], shard: int) -> None:
        raise AssertionError

    shards = Shards[Shard](ask, lambda _: None, open_client, start, 1_000, elapsed_us)
    await shards.begin()
    call = pull_call(
        "a", "g", max_messages=1, wait_ms=1_000, ack_timeout_ms=None, max_bytes=None, ack=None
    )  # fmt: skip
    async with anyio.create_task_group() as tasks:

        async def pull() -> None:
            with scope:
                got.append(await shards.run(call))

        tasks.start_soon(pull)
        await anyio.wait_all_tasks_blocked()
        come.set()
    # On trio the caller learns of its end only behind the pull.
    assert scope.cancel_called and len(set(nacked)) + len(got) == 2
