"""Clients of several shards: the real `AsyncClient` on the simulated network, behind the requests of a `Client`.

The library chooses the shards, follows takeovers and the map, and joins what the shards answer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, NoReturn, TypeVar

import anyio
import trio
from anyio.abc import ByteStream
from msgspec.structs import asdict

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.calls.core import Call, ClientCore
from delayserver.client.calls.pull_calls import ack_call, nack_call
from delayserver.client.calls.retry_policy import RESULT_UNKNOWN, CallAttempts, RetryPolicy
from delayserver.client.connections.server_addresses import HostAndPort, cannot_connect, text_of
from delayserver.client.values.messages import Delivery
from delayserver.client.values.timing import ServerClock
from delayserver.protocol.errors import DelayServerError, InDoubt
from delayserver.protocol.operation_names import ACK, CANCEL, FIND, NACK, PULL, RESCHEDULE, SEND, SUBJECTS
from tests.simulation.client import Client, Lost
from tests.simulation.delays import ClientStream
from tests.simulation.network import Network

T = TypeVar("T")

TIMEOUT_S = 5.0
# Messages without an id of the caller to which the client gives one that names an open shard.
NAMING_SHARE = 0.6


class LibraryClient(AsyncClient):
    """A client of simulated hosts. Its clock and its chance are those of the simulation."""

    def __init__(self, network: Network, addresses: str, chance: Random, repeated: list[Any]) -> None:
        """`repeated`: gets what a cancel names that is sent again, though the first one may have worked."""
        super().__init__(addresses, timeout_s=TIMEOUT_S, retries=3)
        self._network = network
        self._chance = chance
        self.repeated = repeated
        self._core = ClientCore("simulated", ServerClock(lambda: network.time.now_us))
        self._retries = _Retries(jitter=chance.randrange, repeated=repeated)

    async def _stream_to(self, place: HostAndPort) -> ByteStream:
        try:
            with anyio.fail_after(self._connect_timeout_s):
                return ClientStream(await self._network.connect(text_of(*place)))
        except OSError as error:
            raise cannot_connect(place, error) from None

    def node_client(self, address: str) -> AsyncClient:
        return _ShardClient(self._network, address, self._chance, self.repeated)

    async def ask(self, operation: str, arguments: dict[str, Any], *, repeatable: bool) -> dict[str, Any]:
        """The result of a request as the wire has it."""
        return await self.carry_out(Call(operation, arguments, _as_it_is, repeatable))

    async def carry_out(self, call: Call[T]) -> T:
        """The result of a call."""
        return await self._run(call)

    async def count_pending(self) -> int:
        """How many messages of all shards wait for their due times, at least."""
        page = await self.pending_page("hour")
        count = page.unplaced + sum(each.pending for each in page.buckets)
        while page.next_ms is not None:
            page = await self.pending_page("hour", from_ms=page.next_ms)
            count += sum(each.pending for each in page.buckets)
        return count

    def new_id(self) -> str:
        """An id for a message that any shard may take. The client chooses its shard."""
        return f"{self._shard_prefix()}{self._chance.getrandbits(64):016x}"

    @property
    def map_version(self) -> int:
        """That of the map by which it chooses; 0 without one."""
        return 0 if self._shards is None else self._shards.map.version


class _ShardClient(LibraryClient):
    _SPREADS = False


@dataclass(frozen=True, slots=True)
class _Retries(RetryPolicy):
    """Notes what is cancelled again."""

    repeated: list[Any] = field(default_factory=list)

    def attempts(self, call: Call[Any]) -> CallAttempts:
        return _Attempts(self, call, self.repeated)


class _Attempts(CallAttempts):
    def __init__(self, policy: RetryPolicy, call: Call[Any], repeated: list[Any]) -> None:
        super().__init__(policy, call)
        self._arguments = call.arguments if call.operation == CANCEL else {}
        self._repeated = repeated

    def pause_s(self, error: DelayServerError, *, sent: bool) -> float | None:
        pause_s = super().pause_s(error, sent=sent)
        if sent and pause_s is not None and isinstance(error, RESULT_UNKNOWN):
            self._repeated += [each for name in ("receipts", "messages") for each in self._arguments.get(name, ())]
        return pause_s


class ShardsClient(Client):
    """A `Client` whose requests the library carries out."""

    def __init__(self, network: Network, addresses: Sequence[str], name: str, chance: Random) -> None:
        super().__init__(network, addresses[0], name)
        self._naming = chance
        self.library = LibraryClient(network, ",".join(addresses), chance, [])

    async def hold(self, task_status: trio.TaskStatus[None]) -> None:
        """Keep the client of the library, until cancelled."""
        async with self.library.unconnected():
            task_status.started()
            await trio.sleep_forever()

    async def request(self, operation: str, arguments: dict[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
        """As of a `Client`. A row that has an error has the name of it."""
        try:
            return await self._carry_out(operation, arguments)
        except DelayServerError as error:
            self.fail(error)

    @staticmethod
    def fail(error: DelayServerError) -> NoReturn:
        """Raises an error as a `Client` does."""
        if isinstance(error, InDoubt):
            raise Lost(str(error), sent=True) from error
        raise error

    async def _carry_out(self, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        library = self.library
        if operation == PULL:
            found = await library.pull(
                arguments["subject"], arguments["group"], arguments["max_messages"], arguments["wait_ms"] / 1000
            )
            return {"messages": [_row_of(delivery) for delivery in found]}
        if operation in (ACK, NACK):
            make: Any = ack_call if operation == ACK else partial(nack_call, delay=None)
            call = make(arguments["subject"], arguments["group"], [])
            # A repeated one would count deliveries as unknown that it settled itself.
            call = replace(call, arguments=arguments, repeatable=False)
            return dataclasses.asdict(await library.carry_out(call))
        if operation == FIND:
            messages = await library.find(arguments["message_id"], subject=arguments["subject"])
            return {"messages": [asdict(each) for each in messages]}
        if operation == SUBJECTS:
            page = await library.subjects_page(arguments["pattern"], after=arguments["after"])
            return {"subjects": page.subjects, "next": page.next, "more": page.more}
        if operation == SEND:
            await library.connect()
            arguments = arguments | {"messages": [self._named(each) for each in arguments["messages"]]}
        # The books know one sequence of each message that was sent: a producer sends it again by itself.
        result = await library.ask(operation, arguments, repeatable=operation not in (SEND, RESCHEDULE))
        if "results" in result:
            return result | {"results": [_with_name(row) for row in result["results"]]}
        return result

    def _named(self, message: dict[str, Any]) -> dict[str, Any]:
        if "message_id" in message or self._naming.random() >= NAMING_SHARE:
            return message
        return message | {"message_id": self.library.new_id()}


def _row_of(delivery: Delivery) -> dict[str, Any]:
    """A message as a row of a reply."""
    row = {name: getattr(delivery, name) for name in Delivery.__slots__}
    return row | {"position": -1 if delivery.position is None else delivery.position}


def _with_name(row: dict[str, Any]) -> dict[str, Any]:
    """A row of a result, with the name of its error where the library has the error itself."""
    error = row.get("error")
    if not isinstance(error, DelayServerError):
        return row
    return {"error": InDoubt.error if isinstance(error, InDoubt) else error.name, "message": error.message}


def _as_it_is(result: dict[str, Any], _: object) -> dict[str, Any]:
    return result
