"""The gateway's connections to the server. This is the one place where a request gets its client.

A request has a token, or none. The gateway opens connections for each token and lets the server decide what
the token may do.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator, Mapping, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import Any, Final

import anyio
import anyio.abc

from delayserver.client import AsyncClient
from delayserver.client.connections.tls import TLS
from delayserver.protocol.errors import Forbidden, QueueFull, RateLimited, Unauthenticated
from delayserver.protocol.schema.greetings import ServerInfo
from delayserver.protocol.token_text import ADMIN, LOOK
from delayserver.web.bodies import TOKEN
from delayserver.web.idempotency import FirstTries
from delayserver.web.problems import invalid
from delayserver.web.singles import Singles
from delayserver.web.token_routes import TokenRoutes

STRANGE_HOST: Final = "delayserver.strange_host"
"""The entry of an ASGI scope that has the problem of a request under a name that is not this machine's; None for none. It
counts where no token protects the server."""
CHECKS_AT_ONCE_MAX: Final = 16
"""Tokens that are shown to the server for the first time, at the same time. More wait, so that guesses open no flood of
connections."""
CHECKS_OF_ADDRESS_MAX: Final = 4
"""Those of one address. So guesses from one address leave places to all others."""
WAITING_CHECKS_MAX: Final = 32
"""Tokens of one address that wait for their check. Beyond it the gateway answers at once: try again later."""
IN_USE: Final = "delayserver.in_use"
"""The entry of an ASGI scope that has the clients which its request uses."""
TOKENS_MAX: Final = 256
"""Tokens with open connections, two connections each. Of those that no request uses the one that was used least recently is
closed beyond it."""
RETRIES: Final = 2
"""The caller retries too, so that the gateway gives up early."""


class StayingClient(AsyncClient):
    """A client of the one server that this gateway belongs to. Callers go to another member of a cluster, or to another
    shard, themselves."""

    _FOLLOWS = False
    _SPREADS = False


async def at_shard(client: AsyncClient, shard: int | None) -> AsyncClient:
    """The client of one shard, for a request that names it. Raises `Problem`."""
    if shard is None:
        return client
    if isinstance(client, StayingClient):
        raise invalid("this gateway belongs to one server: leave shard out, or ask a gateway of all shards")
    clients = await client.shard_clients()
    if shard not in clients:
        raise invalid(f"the cluster has no shard {shard} with messages; it has {', '.join(map(str, clients))}")
    return clients[shard]


def _kind_for(server: str) -> type[AsyncClient]:
    """A gateway that knows several members goes to the primary for its callers."""
    return AsyncClient if "," in server else StayingClient


class TokenClient:
    """The connections of one token. ``calls`` is for short requests and ``pulls`` for those that wait. ``sends`` folds
    single sends of concurrent requests into few requests of the server's protocol. ``first_tries`` remembers keys, and
    ``routes`` where subjects are consumed.
    """

    def __init__(self, server: str, token: str, tls: TLS) -> None:
        kind = _kind_for(server)
        self.token = token
        self.calls = kind(server, retries=RETRIES, token=token or None, tls=tls)
        self.pulls = kind(server, retries=0, token=token or None, tls=tls)
        self.sends = Singles(self.calls)
        self.first_tries = FirstTries()
        self.routes = TokenRoutes(self.calls, server)
        self.requests = 0
        """How many requests use it now."""
        self._scope = anyio.CancelScope()

    def begin_request(self) -> None:
        """One more request uses it."""
        self.requests += 1

    def end_request(self) -> None:
        """A request that used it has ended."""
        self.requests -= 1

    async def hold(self, *, task_status: anyio.abc.TaskStatus[None]) -> None:
        """Keep the clients usable until `close`."""
        with self._scope:
            async with AsyncExitStack() as stack:
                await stack.enter_async_context(self.calls.unconnected())
                await stack.enter_async_context(self.pulls.unconnected())
                task_status.started()
                await self.sends.run()

    def close(self) -> None:
        """Close the connections."""
        self._scope.cancel()


class Checks:
    """The places for checks of new tokens: some for all, and fewer for each address."""

    def __init__(self) -> None:
        self._all = anyio.Semaphore(CHECKS_AT_ONCE_MAX)
        # By address: its places, and how many checks run or wait. Addresses without any are forgotten.
        self._of_address: dict[str, tuple[anyio.Semaphore, int]] = {}

    @asynccontextmanager
    async def place(self, address: str) -> AsyncIterator[None]:
        """Wait for a place. Raises RateLimited if too many checks of the address wait already."""
        places, count = self._of_address.get(address) or (anyio.Semaphore(CHECKS_OF_ADDRESS_MAX), 0)
        if count >= CHECKS_OF_ADDRESS_MAX + WAITING_CHECKS_MAX:
            raise RateLimited("too many new tokens come from this address", retry_after_ms=1000)
        self._of_address[address] = places, count + 1
        try:
            async with places, self._all:
                yield
        finally:
            places, count = self._of_address.pop(address)
            if count > 1:
                self._of_address[address] = places, count - 1


class Clients:
    """The clients of all tokens. Use it as ``async with``."""

    def __init__(self, server: str, own_token: str = "", tls: TLS = None) -> None:
        """`own_token`: what the gateway reads with itself. `tls`: how it reaches the server."""
        self.server = server
        self._own_token = own_token
        self._tls = tls
        self._own: TokenClient | None = None
        self._without_token: TokenClient | None = None
        self._checks = Checks()
        self._by_token: OrderedDict[str, TokenClient] = OrderedDict()
        self._opening = anyio.Lock()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Clients:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)

    @contextmanager
    def request(self, scope: MutableMapping[str, Any]) -> Iterator[None]:
        """For the time of a request: the clients that it gets are not closed."""
        used: list[TokenClient] = []
        scope[IN_USE] = used
        try:
            yield
        finally:
            for client in used:
                client.end_request()

    async def of_request(self, scope: Mapping[str, Any]) -> TokenClient:
        """The client of a request, by its ASGI scope. On a server without tokens all requests share one. Raises
        Unauthenticated for a token that the server does not take, and for none where it asks for one; `Problem` for a
        strange host on a server without tokens."""
        client = await self._of(scope.get(TOKEN, ""), scope)
        info = await client.calls.connect()  # once: from then on it knows the server's limits, too
        # The server would say so too. Here the body of the request is not read yet.
        if client is self._without_token and info.needs_token and not info.roles:
            raise Unauthenticated("this server asks for a token: give one as Authorization: Bearer")
        return client

    async def who_is(self, token: str, scope: Mapping[str, Any]) -> ServerInfo:
        """The server's `hello` to a client with this token, asked now for a request. Raises Unauthenticated and `Problem`
        as `of_request` does, but for no token."""
        return await (await self._of(token, scope)).calls.hello()

    async def _of(self, token: str, scope: Mapping[str, Any]) -> TokenClient:
        client = await self._find(token, scope)
        used = scope.get(IN_USE)
        if used is not None and client not in used:
            client.begin_request()
            used.append(client)
        return client

    async def _find(self, token: str, scope: Mapping[str, Any]) -> TokenClient:
        if not token:
            return await self._anonymous()
        client = self._by_token.get(token)
        if client is None:
            client = await self._open(token, scope)
            strange_host = scope.get(STRANGE_HOST)
            if client is self._without_token and strange_host is not None:
                raise strange_host
            return client
        self._by_token.move_to_end(token)
        return client

    async def require_look(self, scope: Mapping[str, Any]) -> None:
        """Raises Unauthenticated or Forbidden if the request may not see the figures of all subjects."""
        client = await self.of_request(scope)
        # Asked now: the token may have been revoked, or the server may have got its first token, since the last answer.
        info = await client.calls.hello()
        if not info.needs_token:
            return
        if not info.roles:
            raise Unauthenticated("this server asks for a token: give one with the role look")
        if not {LOOK, ADMIN} & set(info.roles) or "*" not in info.subjects:
            raise Forbidden("the figures of all subjects are for tokens with the role look and the pattern *")

    def of_member(self, client: TokenClient, address: str, answer_s: float) -> AsyncClient:
        """A client of one more member of the cluster, for who uses `client`. It is not connected."""
        token = client.token or None
        return StayingClient(
            address, timeout_s=answer_s, connect_timeout_s=answer_s, retries=0, token=token, tls=self._tls
        )

    async def own(self) -> TokenClient:
        """The gateway's own client, for what it reads itself."""
        if self._own is None:
            async with self._opening:
                if self._own is None:
                    client = TokenClient(self.server, self._own_token, self._tls)
                    await self._tasks.start(client.hold)
                    self._own = client
        return self._own

    async def _anonymous(self) -> TokenClient:
        """The client of all requests without a token."""
        if self._without_token is None:
            async with self._opening:
                if self._without_token is None:
                    client = TokenClient(self.server, "", self._tls)
                    await self._tasks.start(client.hold)
                    self._without_token = client
        return self._without_token

    async def _open(self, token: str, scope: Mapping[str, Any]) -> TokenClient:
        async with self._checks.place(scope["client"][0] if scope.get("client") else ""):
            if token not in self._by_token:
                anonymous = await self._anonymous()
                # Asked now: the server may have got its first token since it said hello to this connection.
                if not (await anonymous.calls.hello()).needs_token:
                    return anonymous
                await self._check(token)
        client = TokenClient(self.server, token, self._tls)
        async with self._opening:
            before = self._by_token.get(token)
            if before is not None:
                return before
            self._make_room()
            await self._tasks.start(client.hold)
            self._by_token[token] = client
        return client

    def _make_room(self) -> None:
        """Closes the client of a token if there are as many as there may be. Raises QueueFull if requests use all."""
        if len(self._by_token) >= TOKENS_MAX:
            idle = next((token for token, client in self._by_token.items() if not client.requests), None)
            if idle is None:
                raise QueueFull(f"requests with {TOKENS_MAX} other tokens run at this gateway", retry_after_ms=1000)
            self._by_token.pop(idle).close()

    async def _check(self, token: str) -> None:
        """Shows a new token to the server on a connection of its own. So a guess takes no place of a token in use. Raises
        Unauthenticated."""
        async with _kind_for(self.server)(self.server, retries=0, token=token, tls=self._tls) as client:
            info = await client.connect()
        if info.needs_token and not info.roles:
            raise Unauthenticated("this token is none that is valid here")
