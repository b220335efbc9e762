"""The client of the library, which says how long from now its messages are due, while the clock of the server is stepped.

It is the real `AsyncClient` on the simulated network. Its own clock is the time since the start, which is never stepped. The
client turns each delay into a due time by the server's clock, as section 7 of PROTOCOL.md says. The model compares that due
time with what the clock of the server showed meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

import anyio
import trio
from anyio.abc import ByteStream

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.calls.core import ClientCore
from delayserver.client.calls.retry_policy import RESULT_UNKNOWN
from delayserver.client.connections.server_addresses import cannot_connect
from delayserver.client.values.timing import LONG_EXCHANGES_MAX, ServerClock
from delayserver.protocol.errors import DelayServerError
from tests.simulation.clocks import SimulatedTime
from tests.simulation.failures import SimulationFailure
from tests.simulation.host import Host
from tests.simulation.network import Network, SimulatedTransport
from tests.simulation.workload import Workload

SUBJECT: Final = "delayed"
MESSAGES_MAX: Final = 40
STEPS_MAX: Final = 3
DELAYS_MS: Final = (0, 5_000, 60_000, 1_800_000)
STEPS_S: Final = (-7_200, -3_600, 3_600, 7_200)
# The notice of a step leaves within half a second. Timers of a host end up to 0.25 s late, and the network takes 1 s.
TOLD_S: Final = 2.5


class ClientStream(ByteStream):
    """A stream of anyio over a simulated connection, for one reading and one writing task."""

    def __init__(self, transport: SimulatedTransport) -> None:
        self._transport = transport

    async def receive(self, max_bytes: int = 65_536) -> bytes:
        """What has come, at any length. Raises EndOfStream, BrokenResourceError."""
        try:
            data = await self._transport.receive()
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, item: bytes) -> None:
        """Send all of it. Raises BrokenResourceError."""
        await trio.lowlevel.checkpoint()
        view = memoryview(item)
        try:
            while view:
                view = view[self._transport.send_now(view) :]
                if view:
                    await self._transport.wait_writable()
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def send_eof(self) -> None:
        """Send nothing more: here that closes both directions."""
        self._transport.close()

    async def aclose(self) -> None:
        """Close both directions; may be called again."""
        self._transport.close()
        await trio.lowlevel.checkpoint()


class WatchedClock(ServerClock):
    """The clock of a client, which remembers how long its exchanges took."""

    def __init__(self, time: SimulatedTime) -> None:
        super().__init__(lambda: time.now_us)
        self._round_trips_us: list[int] = []

    def learn(self, server_us: int, sent_us: int) -> None:
        self._round_trips_us = [*self._round_trips_us[1 - LONG_EXCHANGES_MAX :], self.elapsed() - sent_us]
        super().learn(server_us, sent_us)

    @property
    def ahead_us_max(self) -> int:
        """How far the client may be ahead of the server: one of the last exchanges counts."""
        return max(self._round_trips_us, default=0)


class DelayingClient(AsyncClient):
    """A client of a simulated host."""

    def __init__(self, network: Network, address: str) -> None:
        super().__init__(address, retries=0)
        self._network = network
        self._address = address
        self.clock = WatchedClock(network.time)
        self._core = ClientCore("delaying", self.clock)
        self._transport: SimulatedTransport | None = None

    async def _new_stream(self) -> ByteStream:
        try:
            self._transport = await self._network.connect(self._address)
        except OSError as error:
            raise cannot_connect(self._addresses.current, error) from None
        return ClientStream(self._transport)

    def break_connection(self) -> None:
        """As if the network did."""
        if self._transport is not None:
            self._transport.break_now()


@dataclass(slots=True)
class Delayed:
    """One message. `accepted`: None if the books do not know."""

    due_ms: int
    """The lowest that it may have."""
    accepted: bool | None = None


class Delaying(Workload):
    """The client, the steps of the clock and the books."""

    def __init__(
        self,
        network: Network,
        host: Host,
        chance: Random,
        note: Callable[..., None],
        step: Callable[[float], None],
    ) -> None:
        """`step` sets the clock of the server, by so many seconds."""
        super().__init__(host, chance, note)
        self._client = DelayingClient(network, host.address)
        self._time = network.time
        self._step = step
        self._steps_left = chance.randrange(1, STEPS_MAX + 1)
        self._messages: list[Delayed] = []
        self._judged = 0
        self._calm = False

    def calm(self) -> None:
        """Step the clock no more: from here on the clocks of the nodes are right."""
        self._calm = True

    def start(self, nursery: trio.Nursery) -> None:
        """Send until the end is near."""
        nursery.start_soon(self._run)

    async def _run(self) -> None:
        async with self._client.unconnected():
            while not self.ending:
                await self._time.sleep(self._chance.choice([0.1, 3.0, 10.0, 20.0]))
                if not self._host.open.is_set() or self.ending or len(self._messages) >= MESSAGES_MAX:
                    continue
                if self._steps_left and not self._calm and self._chance.random() < 0.3:
                    self._steps_left -= 1
                    await self._send()  # it learns the clock, and keeps it for a minute
                    if self._chance.random() < 0.3:  # no notice comes then
                        self._client.break_connection()
                    step_s = self._chance.choice(STEPS_S) * (0.5 + self._chance.random())
                    if not self._calm:
                        self._step(step_s)
                    await self._time.sleep(self._chance.choice([0.0, TOLD_S + 0.5, 8.0]))
                await self._send()
        self._ended.set()

    async def _send(self) -> None:
        clock, delay_ms = self._host.clock, self._chance.choice(DELAYS_MS)
        steps, told, before_us = clock.step_count, clock.worked_since_step_s > TOLD_S, clock.now_us()
        message = Delayed(before_us // 1000 + delay_ms)
        self._messages.append(message)
        self._note("delaying", "send", delay_ms=delay_ms)
        try:
            result = await self._client.send(SUBJECT, b"d%d." % len(self._messages), delay_ms=delay_ms)
        except RESULT_UNKNOWN as error:
            self._note("delaying", "no answer", why=str(error)[:60])
            return
        except DelayServerError as error:
            message.accepted = False
            self._note("delaying", "refused", error=error.name)
            await self._time.sleep(0.5)
            return
        message.accepted, message.due_ms = True, result.due_ms
        early_us = before_us + delay_ms * 1000 - result.due_ms * 1000
        late_us = result.due_ms * 1000 - clock.now_us() - delay_ms * 1000 - self._client.clock.ahead_us_max
        self._note("delaying", "sent", due_ms=result.due_ms, early_us=early_us, late_us=late_us)
        if steps != clock.step_count or not told:
            return  # the client cannot know of the step yet
        self._judged += 1
        if early_us > 0:
            self._fail(f"a delay of {delay_ms} ms came out short by {early_us} us")
        # The due time is rounded up to a whole millisecond.
        if late_us > 1000:
            self._fail(f"a delay of {delay_ms} ms came out too long by {late_us} us")

    def _fail(self, what: str) -> None:
        self._note("delaying", "FAILURE", promise=what)
        raise SimulationFailure(f"by the clock of the server {what}")

    def due_times_ms(self) -> list[int]:
        """When the messages are due that the server may have."""
        return [message.due_ms for message in self._messages if message.accepted is not False]

    def range_of(self, name: str) -> tuple[int, int]:
        """What these messages add to a count of the status, at least and at most, when no request is under way."""
        possible = sum(message.accepted is not False for message in self._messages)
        if name == "accepted":
            return sum(message.accepted is True for message in self._messages), possible
        return (0, possible) if name in ("delivered", "pending") else (0, 0)

    async def settle(self, leap: Callable[[float], None]) -> None:
        """Let all messages become due."""
        await self._end()
        leap(max(max(self.due_times_ms(), default=0) / 1000 - self._host.clock.now_us() / 1e6, 0))
        await self._time.sleep(2)
        self._note("delaying", "ends", judged=self._judged, of=len(self._messages))
