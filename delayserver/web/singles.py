"""Single sends of concurrent requests, folded into few requests of the server's protocol."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NoReturn

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.calls.batch_queue import fitting
from delayserver.client.calls.lane_places import LanePlaces
from delayserver.client.calls.send_calls import check_message
from delayserver.client.values.messages import Message, SendResult
from delayserver.protocol.errors import ConnectionLost, DelayServerError, copied

BATCH_MESSAGES_MAX: Final = 1000
BATCH_S: Final = 0.001
"""The time between the begins of two batches, at least, while requests come side by side: each batch costs the server a
sync, for which deliveries wait."""
PENDING_MESSAGES_MAX: Final = 20_000
"""Single sends that wait at the same time, over all shards. Further requests wait before they are sent."""

Answer = asyncio.Future[SendResult]


class Singles:
    """Sends the messages of each shard in a lane of their own, so that a shard without a primary delays no others. `run`
    sends them. `LanePlaces` shares the places out.
    """

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.places = LanePlaces(PENDING_MESSAGES_MAX, lambda: client.several_shards)
        self._short = 0
        """Requests that wait for a place."""
        self._freed = asyncio.Event()
        self._lanes: dict[int, _Lane] = {}
        self._new: deque[_Lane] = deque()
        self._added = asyncio.Event()
        self._ended = False

    async def send(self, message: Message) -> SendResult:
        """Send one message with a due time. Raises the named errors of the server, and of a message that cannot be sent."""
        # Before it waits: its whole batch would fail.
        check_message(message)
        if self._ended:
            raise _abandoned()
        shard, placed = self._client.placed(message)
        lane = self._lanes.get(shard)
        if lane is None:
            lane = self._lanes[shard] = _Lane(self._client)
            self._new.append(lane)
            self._added.set()
        await self._place(shard)
        try:
            return await lane.send(placed, named=message.message_id is not None)
        finally:
            self.places.free(shard, 1)
            if self._short:
                self._freed.set()
                self._freed = asyncio.Event()

    async def _place(self, shard: int) -> None:
        """Take a place, when there is one. Those that wait come in their order."""
        while self.places.full(shard):
            self._short += 1
            try:
                await self._freed.wait()
            finally:
                self._short -= 1
        self.places.take(shard)

    async def run(self) -> NoReturn:
        """Send until cancelled. Messages without an answer are abandoned then."""
        try:
            async with asyncio.TaskGroup() as tasks:
                while True:
                    await self._added.wait()
                    self._added.clear()
                    while self._new:
                        tasks.create_task(self._new.popleft().run())
        finally:
            self._ended = True
            for lane in self._lanes.values():
                lane.end()


class _Lane:
    """While one batch is on its way, the next one gathers."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        # Whether the caller chose the id: then it is told of duplicates.
        self._waiting: deque[tuple[Message, bool, Answer]] = deque()
        self._sending: Sequence[tuple[Message, bool, Answer]] = ()
        self._arrived = asyncio.Event()
        self._ended = False

    async def send(self, message: Message, *, named: bool) -> SendResult:
        if self._ended:
            raise _abandoned()
        answer: Answer = asyncio.get_running_loop().create_future()
        self._waiting.append((message, named, answer))
        self._arrived.set()
        return await answer

    async def run(self) -> NoReturn:
        now_s = asyncio.get_running_loop().time
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                next_s = now_s() + BATCH_S
                self._sending = self._take()
                _settle(self._sending, await self._outcomes(self._sending))
                if len(self._sending) > 1 and now_s() < next_s:
                    await asyncio.sleep(next_s - now_s())

    def end(self) -> None:
        """Abandon what has no answer."""
        self._ended = True
        left = [*self._sending, *self._waiting]
        _settle(left, [_abandoned()] * len(left))

    def _take(self) -> Sequence[tuple[Message, bool, Answer]]:
        count = fitting((message for message, *_ in self._waiting), BATCH_MESSAGES_MAX, self._client.limits)
        return [self._waiting.popleft() for _ in range(count)]

    async def _outcomes(self, batch: Sequence[tuple[Message, bool, Answer]]) -> Sequence[SendResult | DelayServerError]:
        try:
            return await self._client.send_many(
                [message for message, *_ in batch], tell_duplicates=any(named for _, named, _ in batch)
            )
        except DelayServerError as error:
            return [error] * len(batch)


def _settle(batch: Sequence[tuple[Message, bool, Answer]], outcomes: Sequence[SendResult | DelayServerError]) -> None:
    for (*_, answer), outcome in zip(batch, outcomes, strict=True):
        if answer.done():
            continue  # Its request was cancelled.
        if isinstance(outcome, DelayServerError):
            answer.set_exception(copied(outcome))
        else:
            answer.set_result(outcome)


def _abandoned() -> ConnectionLost:
    return ConnectionLost("the gateway gave up its connection: the message may or may not be there")
