"""A whole server on fakes: its disk, clock and network, one life after the other, and a client to ask it things."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any

import trio
import trio.testing

from delayserver.config.settings import (
    BrokerSettings,
    DispatchSettings,
    GroupSettings,
    ListenSettings,
    MessageSettings,
    NodeSettings,
    RouteSettings,
    Settings,
    StorageSettings,
    TransactionSettings,
    WheelSettings,
)
from delayserver.front.front import SERVER
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.figure_fields import as_map
from delayserver.protocol.frames import FrameDecoder, ReplyFrame, decode_reply, encode_request
from delayserver.runtime.runtime import Runtime
from delayserver.server.delay_server import DelayServer
from delayserver.server.ground import Doors, Membership
from tests.fakes.broker import FakeBroker
from tests.fakes.clock import SimulatedClock
from tests.fakes.disk import FakeDisk, SimulatedCrash
from tests.fakes.invariants import check_server
from tests.fakes.network import FakeListener, FakeNetwork, FakeTransport
from tests.fakes.workers import FakeWorkers

FRAME_BYTES_MAX = 16 << 20
DATA_DIR = "/data"
# Simulated seconds; no test waits longer for anything, so that a server which hangs is a red test.
REPLY_TIMEOUT_S = 70
# `until` looks at each step for a second, then jumps to where the next task wakes, and looks at some steps behind that.
STEP_S = 0.005
LOOKS_AT_FIRST = 200
LOOKS_AFTER_A_JUMP = 5


def small_settings(
    *,
    groups: tuple[GroupSettings, ...] = (GroupSettings(),),
    routes: tuple[RouteSettings, ...] = (RouteSettings(),),
    listen: dict[str, Any] | None = None,
    message: dict[str, Any] | None = None,
    storage: dict[str, Any] | None = None,
    wheel: dict[str, Any] | None = None,
    dispatch: dict[str, Any] | None = None,
    broker: dict[str, Any] | None = None,
    transactions: dict[str, Any] | None = None,
    shutdown_timeout_ms: int = 10_000,
) -> Settings:
    """The defaults, with files that are small enough for a disk in memory, and what a test wants otherwise."""
    small: dict[str, Any] = {
        "data_dir": DATA_DIR,
        "message_log_segment_bytes": 1 << 20,
        "warm_ahead_bytes": 0,
        "free_bytes_min": 0,
        "dispatch_reserve_bytes": 0,
        "clock_hold_ms": 1_000,
    }
    return Settings(
        # Clients of tests connect early, and some say nothing for long.
        listen=ListenSettings(**({"hello_timeout_ms": 86_400_000} | (listen or {}))),
        message=MessageSettings(**(message or {})),
        storage=StorageSettings(**(small | (storage or {}))),
        wheel=WheelSettings(**(wheel or {})),
        dispatch=DispatchSettings(**(dispatch or {})),
        broker=BrokerSettings(**({"segment_bytes": 1 << 18} | (broker or {}))),
        transactions=TransactionSettings(**(transactions or {})),
        groups=groups,
        routes=routes,
        shutdown_timeout_ms=shutdown_timeout_ms,
    )


def fake_group(name: str, *nodes: str) -> GroupSettings:
    """A group whose nodes, by default one of the same name, are `FakeBroker`s: a host makes one for every `fake...:1`."""
    return GroupSettings(name, tuple(NodeSettings(f"{node}:1") for node in nodes or (name,)))


def faked_settings(**parts: Any) -> Settings:
    """`small_settings` with one group of one fake node, for all subjects."""
    return small_settings(groups=(fake_group("fake"),), routes=(RouteSettings("*", ("fake",)),), **parts)


class Client:
    """One connection, one request after the other. For one task."""

    def __init__(self, transport: FakeTransport) -> None:
        self.transport = transport
        self._decoder = FrameDecoder(FRAME_BYTES_MAX)
        # What came and was not asked for yet.
        self.replies: dict[int, ReplyFrame] = {}
        self._last_id = 0

    async def request(self, operation: str, arguments: dict[str, Any] | None = None) -> dict[str, Any]:
        """The result. Raises what the server names, ConnectionResetError."""
        return await self.reply(await self.ask(operation, arguments))

    async def ask(self, operation: str, arguments: dict[str, Any] | None = None) -> int:
        """Send a request without waiting for its reply; returns its id."""
        self._last_id += 1
        await self.send_bytes(encode_request(self._last_id, operation, arguments or {}))
        return self._last_id

    async def send_bytes(self, data: bytes) -> None:
        """Send anything."""
        view = memoryview(data)
        while view:
            view = view[self.transport.send_now(view) :]
            if view:
                await self.transport.wait_writable()

    async def reply(self, request_id: int) -> dict[str, Any]:
        """The reply to a request sent before. Raises what the server names, ConnectionResetError at the end."""
        while request_id not in self.replies:
            await self.take()
        reply = self.replies.pop(request_id)
        if reply.error is not None:
            raise reply.error
        assert reply.result is not None
        return reply.result

    async def take(self) -> None:
        """Read what the server sent next. Raises ConnectionResetError at the end."""
        with trio.fail_after(REPLY_TIMEOUT_S):
            data = await self.transport.receive()
        if not data:
            raise ConnectionResetError("closed by the server")
        for payload in self._decoder.feed(data):
            reply = decode_reply(payload)
            self.replies[reply.id] = reply

    async def refused(self, operation: str, arguments: dict[str, Any]) -> str:
        """The name of the error that a request must meet."""
        try:
            result = await self.request(operation, arguments)
        except DelayServerError as error:
            return error.name
        raise AssertionError(f"{operation} was not refused: {result}")

    # -- what tests ask for all the time

    async def send(self, *messages: dict[str, Any]) -> list[dict[str, Any]]:
        """Send rows; the results, one a message."""
        results: list[dict[str, Any]] = (await self.request("send", {"messages": list(messages)}))["results"]
        return results

    async def put(self, body: str, due_ms: int, subject: str = "s", **rest: Any) -> dict[str, Any]:
        """Send one message, which must be accepted; its result."""
        (result,) = await self.send({"subject": subject, "body": body, "due_ms": due_ms} | rest)
        assert "receipt" in result, result
        return result

    async def cancel(self, *receipts: str) -> list[str]:
        """Cancel by receipts; the outcomes."""
        results = (await self.request("cancel", {"receipts": list(receipts)}))["results"]
        return [result.get("outcome") or result["error"] for result in results]

    async def lookup(self, *receipts: str) -> list[str]:
        """Look up by receipts; the outcomes."""
        results = (await self.request("lookup", {"receipts": list(receipts)}))["results"]
        return [result.get("outcome") or result["error"] for result in results]

    async def find(self, receipt: str) -> dict[str, Any]:
        """The whole row of lookup for one message."""
        result: dict[str, Any] = (await self.request("lookup", {"receipts": [receipt]}))["results"][0]
        return result

    async def pull(self, subject: str = "s", group: str = "g", wait_ms: int = 0, **rest: Any) -> list[dict[str, Any]]:
        """Pull rows."""
        arguments = {"subject": subject, "group": group, "max_messages": 1000, "wait_ms": wait_ms} | rest
        messages: list[dict[str, Any]] = (await self.request("pull", arguments))["messages"]
        return messages

    async def status(self) -> dict[str, Any]:
        """The status map."""
        return await self.request("status")


class Host:
    """Lives of a server on one disk. Faults are asked of `disk`, `clock`, `workers`, `network` and `brokers`."""

    def __init__(
        self,
        nursery: trio.Nursery,
        settings: Settings | None = None,
        *,
        name: str = "host",
        role: str = SERVER,
        disk: FakeDisk | None = None,
        clock: SimulatedClock | None = None,
        network: FakeNetwork | None = None,
        seed: int = 1,
        membership: Callable[[], Membership] | None = None,
    ) -> None:
        """`seed`: of the chance that a process gets; hosts that are to differ need different ones. `membership` gives that
        of each life in a cluster."""
        self._membership = membership
        self._seed = seed
        self.settings = settings or small_settings()
        self.name = name
        self.role = role
        self.disk = disk or FakeDisk()
        self.clock = clock or SimulatedClock()
        self.network = network or FakeNetwork()
        self.workers = FakeWorkers()
        self.brokers: dict[str, FakeBroker] = {}
        self._make_brokers()
        self.died_of: BaseException | None = None
        self.before_run: Callable[[DelayServer], None] = lambda _server: None
        self.server: DelayServer
        self._nursery = nursery
        self._scope = trio.CancelScope()
        self._down = trio.Event()
        self._up = trio.Event()
        self.listener: FakeListener

    def _make_brokers(self) -> None:
        for group in self.settings.groups:
            for node in group.nodes:
                if node.address.startswith("fake"):
                    self.brokers.setdefault(node.address, FakeBroker(self.clock, node.address))

    @property
    def now_ms(self) -> int:
        """Wall time of the host."""
        return self.clock.now_ms()

    @property
    def connections(self) -> int:
        """Connections that the server counts as open."""
        count: int = self.server.connections.open
        return count

    def fake(self, node: str = "fake") -> FakeBroker:
        """The fake that stands for the node `NODE:1`; it lives on when the server dies."""
        return self.brokers[f"{node}:1"]

    async def start(self) -> DelayServer:
        """Open and run; returns when it accepts requests, or has died of an error that is in `died_of`."""
        self.begin()
        await self._up.wait()
        return self.server

    async def start_connected(self) -> Client:
        """As `start`; returns a connection."""
        await self.start()
        return await self.client()

    def begin(self) -> None:
        """As `start`, without waiting for anything."""
        self._scope, self._down, self._up = trio.CancelScope(), trio.Event(), trio.Event()
        self.died_of = None
        self.listener = self.network.listen(self.name)
        self.server = DelayServer(
            self.settings,
            role=self.role,
            runtime=Runtime.on(clock=self.clock, chance=Random(self._seed), workers=self.workers),
            doors=Doors(self.disk, self.network.connect),
            reread=lambda: self.settings,
            membership=None if self._membership is None else self._membership(),
        )
        self._nursery.start_soon(self._live, self.server)

    async def _live(self, server: DelayServer) -> None:
        clean = False
        try:
            with self._scope:
                await server.run(
                    self.listener, lambda _host, _port: self._up.set(), opened=partial(self._opened, server)
                )
                clean = True
        except (SimulatedCrash, Exception) as error:  # noqa: BLE001 - tests look at it
            self.died_of = error
        except BaseExceptionGroup as error:
            self.died_of = error
        finally:
            self.listener.cut()
            self._up.set()
            self._down.set()
        if clean:
            server.close()

    def _opened(self, server: DelayServer) -> None:
        self._replace_nodes(server)
        at = server.parts.dispatch.targets.at
        server.parts.dispatch.targets.at = lambda address: self.brokers.get(address) or at(address)  # type: ignore[method-assign]
        self.before_run(server)

    def _replace_nodes(self, server: DelayServer) -> None:
        for group in server.parts.dispatch.groups:
            for node in group.nodes:
                if node.target.address in self.brokers:
                    node.target = self.brokers[node.target.address]

    async def reload(self, **parts: Any) -> list[str]:
        """These parts of the settings become others, and the server reads them again. A refused reload changes nothing here
        either."""
        before = self.settings
        self.settings = replace(self.settings, **parts)
        self._make_brokers()
        try:
            changes: list[str] = (await (await self.client()).request("reload"))["changes"]
        except DelayServerError:
            self.settings = before
            raise
        return changes

    async def stop(self) -> None:
        """A clean stop."""
        self.server.stop()
        await self.wait_down()
        assert self.died_of is None, self.died_of
        self.disk.kill()

    async def wait_up(self) -> None:
        """Return when it accepts requests, or has died of an error."""
        with trio.fail_after(REPLY_TIMEOUT_S):
            await self._up.wait()

    async def wait_down(self) -> None:
        """Return when the server has died."""
        with trio.fail_after(REPLY_TIMEOUT_S):
            await self._down.wait()

    async def kill(self) -> None:
        """The process dies between two steps; what it wrote stays."""
        await self._die()
        self.disk.kill()

    async def lose_power(self, seed: int = 0) -> None:
        """The machine dies: what was not synced is kept or lost page by page."""
        await self._die()
        self.disk.crash(Random(seed))

    async def _die(self) -> None:
        self.disk.dead = True
        self._scope.cancel()
        await self._down.wait()

    async def client(self) -> Client:
        """A new connection. Raises RuntimeError from the error that the server has died of."""
        if self.died_of is not None:
            raise RuntimeError("the server has died") from self.died_of
        return Client(await self.network.connect(f"{self.name}:1"))

    # -- the next life

    async def restart(self) -> DelayServer:
        """A clean stop, and a start."""
        await self.stop()
        return await self.start()

    async def restart_killed(self) -> DelayServer:
        """The process dies, and starts again."""
        await self.kill()
        return await self.start()

    async def restart_unpowered(self, seed: int = 0) -> DelayServer:
        """The machine dies, and the server starts again."""
        await self.lose_power(seed)
        return await self.start()

    # -- waiting

    async def sleep_ms(self, duration_ms: float) -> None:
        """Let simulated time pass."""
        await trio.sleep(duration_ms / 1000)

    async def until(self, condition: Callable[[], bool], within_ms: int = 5_000, what: str = "") -> None:
        """Let simulated time pass until something holds; fails if it does not within that time."""
        deadline = trio.current_time() + within_ms / 1000
        looks = LOOKS_AT_FIRST
        while not condition():
            assert trio.current_time() < deadline, f"not within {within_ms} ms: {what or condition}"
            looks -= 1
            steps = 1
            if looks < 0:
                # It takes long: to look at every step takes most of a test's time. Little changes before a task wakes.
                await trio.testing.wait_all_tasks_blocked()
                quiet_s = min(
                    trio.lowlevel.current_statistics().seconds_to_next_deadline, deadline - trio.current_time()
                )
                steps = max(steps, math.ceil(quiet_s / STEP_S))
                looks = LOOKS_AFTER_A_JUMP
            await trio.sleep(steps * STEP_S)

    async def settled(self) -> None:
        """Everything accepted is replayed, no attempt runs, and what is decided is on disk."""
        with trio.fail_after(REPLY_TIMEOUT_S):
            positions = self.server.parts.state.positions
            await positions.replayed_sequence.reached(positions.accepted_sequence.value)
        await self.until(lambda: not any(group.running for group in self.server.parts.state.residency.groups.values()))
        await self.server.parts.outcomes.recorder.flush()

    # -- the balance of rule 3

    def status(self) -> dict[str, Any]:
        """What `status` answers now, without asking over the network."""
        return as_map(self.server.parts.figures.status.now())

    def check_balance(self, pending: int | None = None) -> dict[str, Any]:
        """Assert accepted = outcomes + pending in the counts, and that the counts are those of the files."""
        status = self.status()
        outcomes = ("delivered", "cancelled", "dead_lettered", "expired", "deduplicated", "rolled_back")
        assert status["accepted"] == sum(status[name] for name in outcomes) + status["pending"], status
        assert status["pending"] >= 0, status
        assert status["early"] == 0, status
        if pending is not None:
            assert status["pending"] == pending, status
        check_server(self.server)
        return status

    async def balanced(self, pending: int | None = None) -> dict[str, Any]:
        """`check_balance` when all is settled."""
        await self.settled()
        return self.check_balance(pending)


class Boot:
    """Makes hosts that live in one nursery."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self.hosts: list[Host] = []

    def __call__(self, settings: Settings | None = None, **rest: Any) -> Host:
        """A host that is not started yet."""
        self.hosts.append(Host(self._nursery, settings, **rest))
        return self.hosts[-1]

    async def started(self, settings: Settings | None = None, **rest: Any) -> Host:
        """A host whose server runs."""
        host = self(settings, **rest)
        await host.start()
        return host

    async def connected(self, settings: Settings | None = None, **rest: Any) -> tuple[Host, Client]:
        """A host whose server runs, and a connection to it."""
        host = await self.started(settings, **rest)
        return host, await host.client()


def with_settings(settings: Settings, **parts: dict[str, Any]) -> Settings:
    """The same settings with some fields of some parts changed."""
    changes = {name: replace(getattr(settings, name), **fields) for name, fields in parts.items()}
    return replace(settings, **changes)


def texts(messages: Iterable[dict[str, Any]]) -> list[str]:
    """Bodies of pulled rows."""
    return [message["body"].decode() for message in messages]
