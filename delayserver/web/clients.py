"""The gateway's connections to the server. This is the one place where a request gets its client.

A request belongs to a token, or to nobody. The gateway opens connections for each token and lets the server decide what
the token may do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any, Final

import anyio
import anyio.abc

from delayserver.client import AsyncClient
from delayserver.client.async_batching import AsyncBatcher
from delayserver.client.messages import SendResult
from delayserver.web.idempotency import FirstTries

TOKENS_MAX: Final = 256
"""Tokens with open connections, two connections each. The one that was used least recently is closed beyond it."""
RETRIES: Final = 2
"""The caller retries too, so that the gateway gives up early."""
BATCH_MESSAGES_MAX: Final = 1000
PENDING_MESSAGES_MAX: Final = 20_000
"""Single sends that wait for the server at the same time. Further requests wait before they are read to the end."""


class TokenClient:
    """The connections of one token. ``calls`` is for short requests and ``pulls`` for those that wait. ``sends`` folds
    single sends of concurrent requests into few requests of the server's protocol. ``first_tries`` remembers keys.
    """

    def __init__(self, server: str) -> None:
        self.calls = AsyncClient(server, retries=RETRIES)
        self.pulls = AsyncClient(server, retries=0)
        # Without a pause: while one batch is on its way, the next one gathers.
        self.sends: AsyncBatcher[SendResult] = self.calls.batcher(
            batch_messages_max=BATCH_MESSAGES_MAX, linger_ms=0, pending_messages_max=PENDING_MESSAGES_MAX
        )
        self.first_tries = FirstTries()
        self._scope = anyio.CancelScope()

    async def hold(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep the clients usable until `close`."""
        with self._scope:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.calls.unconnected())
                await stack.enter_async_context(self.pulls.unconnected())
                await stack.enter_async_context(self.sends)
                task_status.started()
                await anyio.sleep_forever()

    def close(self) -> None:
        """Close the connections."""
        self._scope.cancel()


class Clients:
    """The clients of all tokens. Use it as ``async with``."""

    def __init__(self, server: str) -> None:
        self.server = server
        self._by_token: OrderedDict[str, TokenClient] = OrderedDict()
        self._opening = anyio.Lock()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Clients:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def of_request(self, scope: Mapping[str, Any]) -> TokenClient:
        """The client of a request, by its ASGI scope."""
        client = self._by_token.get("")
        return client if client is not None else await self._open("")

    async def own(self) -> TokenClient:
        """The gateway's own client, for what it reads itself."""
        client = self._by_token.get("")
        return client if client is not None else await self._open("")

    async def _open(self, token: str) -> TokenClient:
        async with self._opening:
            client = self._by_token.get(token)
            if client is None:
                client = TokenClient(self.server)
                await self._tasks.start(client.hold)
                self._by_token[token] = client
                if len(self._by_token) > TOKENS_MAX:
                    self._by_token.popitem(last=False)[1].close()
            return client
