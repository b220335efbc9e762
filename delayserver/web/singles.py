"""Single sends of concurrent requests, folded into few requests of the server's protocol."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final, NoReturn

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.calls.batch_queue import fitting
from delayserver.client.calls.send_calls import check_message
from delayserver.client.values.messages import Message, SendResult
from delayserver.protocol.errors import ConnectionLost, DelayServerError, copied

BATCH_MESSAGES_MAX: Final = 1000
BATCH_S: Final = 0.001
"""The time between the begins of two batches, at least, while requests come side by side: each batch costs the server a
sync, for which deliveries wait."""
PENDING_MESSAGES_MAX: Final = 20_000
"""Single sends that wait for the server at the same time. Further requests wait before they are sent."""

Answer = asyncio.Future[SendResult]


class Singles:
    """While one batch is on its way, the next one gathers. `run` sends them."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._waiting: deque[tuple[Message, Answer]] = deque()
        self._places = asyncio.Semaphore(PENDING_MESSAGES_MAX)
        self._arrived = asyncio.Event()
        self._ended = False

    async def send(self, message: Message) -> SendResult:
        """Send one message with a due time. Raises the named errors of the server, and of a message that cannot be sent."""
        # Before it waits: its whole batch would fail.
        check_message(message)
        async with self._places:
            if self._ended:
                raise _abandoned()
            answer: Answer = asyncio.get_running_loop().create_future()
            self._waiting.append((message, answer))
            self._arrived.set()
            return await answer

    async def run(self) -> NoReturn:
        """Send until cancelled. Messages without an answer are abandoned then."""
        sending: Sequence[tuple[Message, Answer]] = ()
        now_s = asyncio.get_running_loop().time
        try:
            while True:
                await self._arrived.wait()
                self._arrived.clear()
                while self._waiting:
                    next_s = now_s() + BATCH_S
                    sending = self._take()
                    _settle(sending, await self._outcomes([message for message, _ in sending]))
                    if len(sending) > 1 and now_s() < next_s:
                        await asyncio.sleep(next_s - now_s())
        finally:
            self._ended = True
            left = [*sending, *self._waiting]
            _settle(left, [_abandoned()] * len(left))

    def _take(self) -> list[tuple[Message, Answer]]:
        count = fitting((message for message, _ in self._waiting), BATCH_MESSAGES_MAX, self._client.limits)
        return [self._waiting.popleft() for _ in range(count)]

    async def _outcomes(self, messages: list[Message]) -> Sequence[SendResult | DelayServerError]:
        try:
            return await self._client.send_many(
                messages, tell_duplicates=any(message.message_id for message in messages)
            )
        except DelayServerError as error:
            return [error] * len(messages)


def _settle(batch: Sequence[tuple[Message, Answer]], outcomes: Sequence[SendResult | DelayServerError]) -> None:
    for (_, answer), outcome in zip(batch, outcomes, strict=True):
        if answer.done():
            continue  # Its request was cancelled.
        if isinstance(outcome, DelayServerError):
            answer.set_exception(copied(outcome))
        else:
            answer.set_result(outcome)


def _abandoned() -> ConnectionLost:
    return ConnectionLost("the gateway gave up its connection: the message may or may not be there")
