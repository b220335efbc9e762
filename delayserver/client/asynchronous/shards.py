"""The client of a cluster of several shards: a client of today for each shard, behind the map.

It asks for the map once, and then waits for each change of it. `slot_owners` says where a message belongs, and
`shard_parts` splits requests and joins replies. A shard without a primary delays its own messages alone.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import astuple, replace
from typing import Any, Final, Generic, Protocol, TypeVar, cast

import anyio
import anyio.abc

from delayserver.client.asynchronous.shard_answers import MERGED, ShardAnswers
from delayserver.client.calls.core import Call, described_call, read_joined
from delayserver.client.calls.pull_calls import GIVE_BACK_S, ack_call_of, deliveries_by_shard, of_shard
from delayserver.client.calls.send_calls import new_message_id
from delayserver.client.calls.shard_doubts import ShardDoubts
from delayserver.client.calls.shard_parts import RowParts, Rows, ShardRows, by_shard, parts_of
from delayserver.client.calls.slot_owners import NO_MAP, SlotOwners
from delayserver.client.values.messages import Message
from delayserver.client.values.pulled_columns import PulledColumns
from delayserver.protocol.errors import DelayServerError, InvalidArgument, NotPrimary, ServerNotProven, WrongShard
from delayserver.protocol.frames import OneWayRefused
from delayserver.protocol.operation_names import (
    ACK,
    CANCEL,
    COMMIT,
    EXTEND,
    LOOKUP,
    MAP,
    NACK,
    PREPARE,
    PUBLISH,
    PULL,
    RESCHEDULE,
    ROLLBACK,
    ROUTE,
    SEND,
)
from delayserver.protocol.schema.node_routes import Node, Route, RouteOfShards
from delayserver.protocol.schema.shard_map import AskMap, ShardMap

T = TypeVar("T")

PLACED: Final = frozenset({SEND, PUBLISH, PREPARE})
NAMED: Final = frozenset({CANCEL, LOOKUP, RESCHEDULE, COMMIT, ROLLBACK})
SETTLED: Final = frozenset({ACK, NACK, EXTEND})
SPREAD: Final = PLACED | NAMED | SETTLED | MERGED | {PULL, ROUTE}
"""The operations that are about messages or consumers of all shards. The others are for the server of the client."""

MAP_WAIT_MS: Final = 20_000
"""The client waits so long at the server for a change of the map, and then asks again."""
MAP_AGAIN_S: Final = 1.0
"""The pause before the map is asked for again, if there was no answer or no later one."""
AGAIN_MAX: Final = 50
"""A row that shards refuse as `wrong_shard` is sent so often. A member that is behind reads the map within 100 ms."""
LOOK_S: Final = 0.5
"""A pull looks so long whether a shard has messages, before it looks at the next. Then it waits at all of them."""


class ShardClient(Protocol):
    """The part of `AsyncClient` that this module needs for each shard."""

    async def _run(self, call: Call[T], close_count: int | None = None) -> T: ...

    async def _post(self, call: Call[T]) -> None: ...

    def _move_to(self, addresses: str) -> None: ...

    def end_waits(self) -> None: ...

    async def ping(self) -> int: ...

    def take_one_way_refused(self) -> OneWayRefused | None: ...


C = TypeVar("C", bound=ShardClient)


class Shards(Generic[C]):
    """All shards of a cluster. ``ask`` asks the server of the client for the map, and ``learn`` gets the addresses of all
    members that a map names: any of them can give the next map. ``open_client`` makes a client of the members of a shard, by
    their addresses, which lives as long as this one. ``start`` begins a task that ends with this client.
    """

    def __init__(
        self,
        ask: Callable[[Call[ShardMap]], Awaitable[ShardMap]],
        learn: Callable[[list[str]], None],
        open_client: Callable[[str], Awaitable[C]],
        start: Callable[[Callable[[int], Coroutine[Any, Any, None]], int], object],
        wait_ms_max: int,
        elapsed_us: Callable[[], int],
    ) -> None:
        """``wait_ms_max``: the longest time for which a request may wait at the server. ``elapsed_us``: a clock that only
        grows."""
        self.map = SlotOwners(NO_MAP)
        self._ask = ask
        self._learn = learn
        self._start = start
        self._map_wait_ms = min(MAP_WAIT_MS, wait_ms_max)
        self._open_client = open_client
        self._opening = anyio.Lock()
        self._clients: dict[int, C] = {}
        self._busy: dict[int, int] = {}  # requests on their way
        self._doubts = ShardDoubts(lambda: elapsed_us() / 1e6)
        # Shards that did not answer a look, and have a ping on its way.
        self._pinged: set[int] = set()
        # Of messages that any shard may take, and of looks at all shards. A common one, or one that is raised twice for a
        # message, would give a caller that takes turns at two shards the same one each time.
        self._placed = itertools.count()
        self._looked = itertools.count()
        self._posted: set[int] = set()
        self._answers = ShardAnswers(self._at, lambda: self.map.led)

    @property
    def clients(self) -> list[C]:
        """The clients of the shards that were asked so far."""
        return list(self._clients.values())

    async def each(self) -> dict[int, C]:
        """A client of each shard that has messages, by number."""
        return {shard: await self._client(shard) for shard in self.map.all}

    async def begin(self) -> bool:
        """Read the map, if it was not read yet. Returns whether this call has read it."""
        async with self._opening:
            if self.map.version:
                return False
            self._take(await self._ask(_map_call(0, 0)))
            return True

    async def follow(self) -> None:
        """Read each later version of the map, until cancelled."""
        while True:
            before = self.map.version
            with suppress(DelayServerError):
                self._take(await self._ask(_map_call(before, self._map_wait_ms)))
            if self.map.version == before:
                await anyio.sleep(MAP_AGAIN_S)

    def _take(self, shown: ShardMap) -> None:
        if shown.version <= self.map.version:
            return
        self.map = SlotOwners(shown)
        self._learn(self.map.members)
        for shard, client in self._clients.items():
            if addresses := self.map.from_primary(shard):
                client._move_to(addresses)

    # --- which shard

    def free(self) -> int:
        """The shard for a message that any one may take: the one with the fewest requests of this client on their way."""
        return self._best(self.map.open)

    def prefix(self) -> str:
        """The begin of an id that is made now, and that names a shard."""
        return self.map.prefix(self.free()) if self.map.open else ""

    def placed(self, message: Message) -> tuple[int, Message]:
        """The shard of a message. One that may go to any shard gets an id, which names the shard that is chosen now."""
        key, named = (message.order_key or "").encode(), (message.message_id or "").encode()
        owner = self.map.owner(message.subject, key, named)
        if owner is not None:
            return owner, message
        shard = self.free()
        return shard, replace(message, message_id=new_message_id(self.map.prefix(shard)))

    def _best(self, shards: list[int]) -> int:
        if not shards:
            raise NotPrimary("no shard of the cluster takes new messages", retry_after_ms=1_000)
        turn = next(self._placed)
        rank = {shard: (turn + place) % len(shards) for place, shard in enumerate(shards)}
        return min(shards, key=lambda each: (self._doubts.avoided(each), self._busy.get(each, 0), rank[each]))

    def _in_turn(self) -> list[int]:
        """All shards, another one first each time. Those that failed come last."""
        shards = self.map.all
        begin = next(self._looked) % max(1, len(shards))
        return sorted(shards[begin:] + shards[:begin], key=self._doubts.doubted)

    async def _at(self, shard: int, call: Call[T]) -> T:
        """The result of a call at one shard."""
        self._busy[shard] = self._busy.get(shard, 0) + 1
        begun = self._doubts.begin(shard)
        try:
            result = await (await self._client(shard))._run(call)
        except DelayServerError as error:
            # A server that is not proven has answered nothing. Any other error shows that the shard's server lives.
            if error.retriable or isinstance(error, ServerNotProven):
                self._doubts.fail(shard, begun)
            else:
                self._doubts.trust(shard)
            raise
        except BaseException:
            self._doubts.abandon(shard)
            raise
        finally:
            self._busy[shard] -= 1
        self._doubts.trust(shard)
        return result

    async def _client(self, shard: int) -> C:
        client = self._clients.get(shard)
        if client is None:
            addresses = self.map.from_primary(shard)
            if not addresses:
                raise NotPrimary(f"shard {shard} has no member yet", retry_after_ms=1_000)
            async with self._opening:
                client = self._clients.get(shard)
                if client is None:
                    client = self._clients[shard] = await self._open_client(addresses)
        return client

    async def _look(self, shard: int, call: Call[T]) -> T | None:
        """The result of a call at one shard, or None if there is none within `LOOK_S`."""
        with anyio.move_on_after(LOOK_S) as scope:
            return await self._at(shard, call)
        if scope.cancelled_caught:
            self._doubts.suspect(shard)
            if shard not in self._pinged:
                self._pinged.add(shard)
                self._start(self._ping, shard)
        return None

    async def _ping(self, shard: int) -> None:
        """Reach a shard that did not answer. A look is too short for the end of an attempt to connect, so without this its
        client would dial a dead member each time, and never the next one.
        """
        try:
            with suppress(DelayServerError):
                await (await self._client(shard)).ping()
        finally:
            self._pinged.discard(shard)

    # --- a call

    async def run(self, call: Call[T]) -> T:
        """The result of a call of `SPREAD`."""
        operation = call.operation
        if operation == CANCEL and "count" in call.arguments:
            raise InvalidArgument("several shards have messages of the same sequence: cancel them by their receipts")
        if operation in PLACED or operation in NAMED:
            return await self._rows(call)
        if operation in SETTLED:
            return await self._settle(call)
        if operation == PULL:
            return cast(T, await self._pull(cast(Call[PulledColumns], call)))
        if operation == ROUTE:
            return cast(T, await self._route(cast(Call[Route], call)))
        return cast(T, await self._answers.run(call))

    async def post(self, call: Call[T]) -> None:
        """Send a request of one row that gets no reply."""
        (owner,) = parts_of(call.arguments).owners(self.map)
        shard = self.free() if owner is None else owner
        client = await self._client(shard)
        self._posted.add(shard)
        await client._post(call)

    async def pass_posted(self) -> None:
        """All that was posted so far has reached its shards. Asks all of them, and raises the first error of one."""
        posted, self._posted = self._posted, set()
        errors: list[DelayServerError] = []

        async def ping(shard: int) -> None:
            try:
                await self._clients[shard].ping()
            except DelayServerError as error:
                errors.append(error)

        if posted:
            await _all_of([(ping, (shard,)) for shard in posted])
        if errors:
            raise errors[0]

    async def _rows(self, call: Call[T]) -> T:
        parts = parts_of(call.arguments)
        todo: Rows = list(range(len(parts.owners(self.map))))
        for _ in range(AGAIN_MAX):
            owners = parts.owners(self.map)
            free = call.operation in PLACED and any(owners[row] is None for row in todo)
            chosen = call.shard if call.shard in self.map.open else self.free() if free else self.map.all[0]
            await self._send_parts(call, parts, by_shard(owners, todo, chosen))
            refused = parts.wrong_rows()
            if not refused:
                break
            todo = list(refused)
            await self._newer_map(next(iter(refused.values())))
        if isinstance(parts, RowParts) and call.operation in NAMED:
            await self._ask_others(call, parts)
        error = parts.error()
        if error is not None:
            raise error
        return read_joined(call, parts.result())

    async def _newer_map(self, refusal: WrongShard) -> None:
        """Waits until the refused rows may be sent again: with a later map, or to a member that is behind."""
        if refusal.version > self.map.version:
            # Other rows of the call may be stored: their results are not lost to a failure here.
            with suppress(DelayServerError):
                self._take(await self._ask(_map_call(self.map.version, 1_000)))
                return
        await anyio.sleep((refusal.retry_after_ms or 100) / 1000)

    async def _send_parts(self, call: Call[T], parts: ShardRows, rows_of: dict[int, Rows]) -> None:
        async def part(shard: int, rows: Rows) -> None:
            try:
                taken = Call(call.operation, parts.take(rows), _as_it_is, call.repeatable, doubt=parts.doubt)
                parts.answer(rows, await self._at(shard, taken), self.map.place(shard).server_id)
            except DelayServerError as error:
                parts.fail(rows, error)

        await _all_of([(part, (shard, rows)) for shard, rows in rows_of.items()])

    async def _ask_others(self, call: Call[T], parts: RowParts) -> None:
        """A message with an order key may be at another shard than that of its id. All are asked, also if one fails."""
        unknown = parts.ask_elsewhere()
        if not unknown:
            return
        owners = parts.owners(self.map)
        rows_of = {shard: [row for row in unknown if owners[row] != shard] for shard in self.map.all}
        await self._send_parts(call, parts, {shard: rows for shard, rows in rows_of.items() if rows})

    async def _route(self, call: Call[Route]) -> Route:
        """The route, with a node for each shard in the place of that of the answering one. Looks at one after the other. If
        none answers soon, asks each for as long as a call may last.
        """
        failure: DelayServerError | None = None
        for ask in (self._look, self._at):
            for shard in self._in_turn():
                try:
                    route = await ask(shard, call)
                    if route is not None:
                        return self._all_nodes(route, call.arguments)
                except DelayServerError as error:
                    if not error.retriable:
                        raise
                    failure = error
        raise failure or NotPrimary("the cluster has no shard", retry_after_ms=1_000)

    def _all_nodes(self, route: Route, arguments: dict[str, Any]) -> Route:
        own = next((node for node in route.nodes if node.here), None)
        if own is None:
            return route
        addresses = {shard: self.map.addresses(shard) for shard in self.map.all}
        nodes = [Node(each, own.weight, own.state, own.since_ms, here=True) for each in addresses.values() if each]
        key_node = route.key_node
        if key_node == own.address and arguments.get("subject") is not None:
            owner = self.map.owner(arguments["subject"], arguments["order_key"].encode(), b"")
            key_node = addresses.get(-1 if owner is None else owner, key_node)
        shards = {address: shard for shard, address in addresses.items() if address}
        return RouteOfShards(route.group, [*(node for node in route.nodes if not node.here), *nodes], key_node, shards)

    # --- consumers

    async def _settle(self, call: Call[T]) -> T:
        """Acks, nacks and extensions go where the deliveries came from."""
        results: list[Any] = []
        errors: list[DelayServerError] = []

        async def part(shard: int, arguments: dict[str, Any]) -> None:
            try:
                results.append(await self._at(shard, replace(call, arguments=arguments)))
            except DelayServerError as error:
                errors.append(error)

        await _all_of([(part, each) for each in deliveries_by_shard(call.arguments).items()])
        if errors:
            raise errors[0]
        # Each result is a row of counts.
        added: T = type(results[0])(*map(sum, zip(*map(astuple, results), strict=True)))
        return added

    async def _pull(self, call: Call[PulledColumns]) -> PulledColumns:
        """Looks at one shard after the other, each time another one first. If none has a message, waits at all of them."""
        if call.arguments.get("broadcast"):
            raise InvalidArgument("a broadcast group belongs to a connection to one shard: consume it with a Listener")
        if "ack" in call.arguments:
            await self._settle(ack_call_of(call.arguments))
        arguments = {name: value for name, value in call.arguments.items() if name != "ack"}
        call = replace(call, arguments=arguments)
        look = replace(call, arguments=arguments | {"wait_ms": 0}, wait_s=0.0)
        shards, answered = self._in_turn(), None
        for shard in shards:
            if answered is not None and self._doubts.doubted(shard):
                continue  # The others answer.
            try:
                pulled = await self._look(shard, look)
                if pulled is not None:
                    answered = pulled
                    if answered.count:
                        return of_shard(answered, shard)
            except DelayServerError as error:
                if not error.retriable:
                    raise
        if answered is not None and not call.wait_s:
            return answered
        return await self._wait_at_all(call, shards)

    async def _wait_at_all(self, call: Call[PulledColumns], shards: list[int]) -> PulledColumns:
        """The messages that come first. Others that come in the same moment are given back."""
        taken: list[tuple[PulledColumns, int]] = []
        empty: list[PulledColumns] = []
        errors: list[DelayServerError] = []

        try:
            async with anyio.create_task_group() as tasks:

                async def end_soon() -> None:
                    """The time of the call is over. A shard that fails must not make it longer."""
                    await anyio.sleep(LOOK_S)
                    tasks.cancel_scope.cancel()

                async def wait(shard: int) -> None:
                    try:
                        pulled = await self._at(shard, call)
                    except DelayServerError as error:
                        errors.append(error)
                        pulled = None
                    if pulled is None or not pulled.count:
                        if pulled is not None:
                            empty.append(pulled)
                            tasks.start_soon(end_soon)
                        if len(empty) + len(errors) == len(shards):
                            tasks.cancel_scope.cancel()
                    elif taken:
                        await self._give_back(call, pulled, shard)
                    else:
                        taken.append((pulled, shard))
                        tasks.cancel_scope.cancel()

                for shard in shards:
                    tasks.start_soon(wait, shard)
        except BaseException:
            # The caller has gone while the other pulls ended.
            for pulled, shard in taken:
                await self._give_back(call, pulled, shard)
            raise
        if taken:
            return of_shard(*taken[0])
        if not empty:
            raise errors[0]
        return empty[0]

    async def _give_back(self, call: Call[PulledColumns], pulled: PulledColumns, shard: int) -> None:
        back = None if call.give_back is None else call.give_back(pulled)
        if back is not None:
            with anyio.move_on_after(GIVE_BACK_S, shield=True), suppress(DelayServerError):
                await self._at(shard, back)


def _map_call(after: int, wait_ms: int) -> Call[ShardMap]:
    call = described_call(MAP, AskMap(after=after, wait_ms=wait_ms), ShardMap)
    return replace(call, wait_s=wait_ms / 1000)


def _as_it_is(result: dict[str, Any], _: object) -> dict[str, Any]:
    return result


async def _all_of(calls: list[tuple[Callable[..., Coroutine[Any, Any, None]], tuple[Any, ...]]]) -> None:
    """All at the same time. They raise nothing."""
    if len(calls) == 1:
        (call, arguments), *_ = calls
        await call(*arguments)
        return
    async with anyio.create_task_group() as tasks:
        for call, arguments in calls:
            tasks.start_soon(call, *arguments)
