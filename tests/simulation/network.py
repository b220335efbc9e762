"""A simulated network: byte streams that split, delay, break in the middle of a frame, and never lie otherwise.

What was handed over before a connection breaks may arrive in part; nothing arrives twice or out of order (that is TCP).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import trio

from tests.fakes.network import SteppedReads, Steps
from tests.simulation.clocks import SimulatedTime

# What a kernel takes in one go; a seed that wants short writes draws less.
WINDOW_BYTES = 64 * 1024
# What it takes for a peer that does not read; a seed that wants slow readers draws less.
UNREAD_BYTES_MAX = 4 * WINDOW_BYTES
# How an answer to a pull says that the group lost messages to the lag bound.
OUT_OF_RANGE = b"position_out_of_range"


@dataclass(slots=True)
class Weather:
    """How bad the network is: probabilities for each hand-over of bytes, and the longest delay."""

    delay_s_max: float = 0.0
    split: float = 0.0
    drop: float = 0.0
    short_write: float = 0.0


class Pipe:
    """One direction of a connection, for one reader and one writer."""

    __slots__ = ("_reader", "_writer", "broken", "chunks", "closed", "last_s", "out_of_range", "unread_bytes")

    def __init__(self) -> None:
        self.chunks: deque[tuple[float, bytes]] = deque()
        self.last_s = 0.0
        self.closed = False
        self.broken = False
        self.unread_bytes = 0
        # How often the writer has said so, also where it did not arrive.
        self.out_of_range = 0
        self._reader: trio.lowlevel.Task | None = None
        self._writer: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        """Let the reader look again."""
        if self._reader is not None:
            trio.lowlevel.reschedule(self._reader)
            self._reader = None

    def wake_writer(self) -> None:
        """Let the writer look again."""
        if self._writer is not None:
            trio.lowlevel.reschedule(self._writer)
            self._writer = None

    async def read_from(self) -> None:
        """Wait until somebody wakes the writer."""
        assert self._writer is None
        self._writer = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._writer = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    async def changed(self) -> None:
        """Wait until somebody wakes."""
        assert self._reader is None
        self._reader = trio.lowlevel.current_task()

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self._reader = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)


class SimulatedTransport(SteppedReads):
    """A `Transport` of one end."""

    def __init__(
        self, network: Network, incoming: Pipe, outgoing: Pipe, peer: str, dead: Callable[[], bool] = lambda: False
    ) -> None:
        super().__init__(incoming)
        self.peer = peer
        self.here = ""
        self.host = ""
        # Told what this end has sent.
        self.sent: Callable[[bytes], None] | None = None
        self._dead = dead
        self._network = network
        self._incoming = incoming
        self._outgoing = outgoing

    async def receive(self) -> bytes:
        pipe, time = self._incoming, self._network.time
        if not self._closed and not pipe.broken and not pipe.closed and not pipe.chunks:
            await pipe.changed()
        else:
            await trio.lowlevel.checkpoint()
        while True:
            if self._closed:
                raise ConnectionResetError("closed here")
            await self._network.goes_on(self.host)
            if self._network.hung_until_s.get(self.host, 0.0) > time.now_s:
                time.at(self._network.hung_until_s[self.host], pipe.wake)
                await pipe.changed()
                continue
            if pipe.chunks and pipe.chunks[0][0] <= time.now_s:
                return self._take()
            if not pipe.chunks:
                if pipe.broken:
                    raise ConnectionResetError("reset by the peer")
                if pipe.closed:
                    return b""
            await pipe.changed()  # what is under way has a timer

    def _take(self) -> bytes:
        """What has arrived, or the front of it."""
        pipe, network = self._incoming, self._network
        _, data = pipe.chunks.popleft()
        if len(data) > 1 and network.weather.split and network.chance.random() < network.weather.split:
            cut = network.chance.randrange(1, len(data))
            pipe.chunks.appendleft((0.0, data[cut:]))
            data = data[:cut]
        pipe.unread_bytes -= len(data)
        pipe.wake_writer()
        return data

    @property
    def out_of_range(self) -> int:
        """How often the peer has said that a group lost messages to the lag bound, also where that did not arrive."""
        return self._incoming.out_of_range

    def unacknowledged_bytes(self) -> int:
        return self._outgoing.unread_bytes

    def send_now(self, data: bytes | memoryview) -> int:
        pipe, network = self._outgoing, self._network
        pipe.out_of_range += OUT_OF_RANGE in bytes(data)
        if self._dead():
            return len(data)  # the process is gone: its tasks only have not heard of it yet
        if self._closed or pipe.broken or pipe.closed:
            raise ConnectionResetError("the connection is gone")
        weather, chance = network.weather, network.chance
        if self.host in network.stopped:
            return 0
        if self.host in network.silent:
            network.note("answer lost", self.host)
            self.break_now()
            raise ConnectionResetError("the connection broke")
        length = min(len(data), WINDOW_BYTES, network.unread_bytes_max - pipe.unread_bytes)
        if length <= 0:
            return 0
        if weather.short_write and length > 1 and chance.random() < weather.short_write:
            length = chance.randrange(1, length)
        dropped = bool(weather.drop) and chance.random() < weather.drop
        # A kernel that took all of it says so: a send that fails has not sent its last byte.
        sent = bytes(data[: chance.randrange(length) if dropped else length])
        if sent:
            delay_s = chance.random() * weather.delay_s_max if weather.delay_s_max else 0.0
            delay_s += network.slow_s.get(self.host, 0.0)
            pipe.last_s = max(pipe.last_s, network.time.now_s + delay_s)
            pipe.chunks.append((pipe.last_s, sent))
            pipe.unread_bytes += len(sent)
            if pipe.last_s > network.time.now_s:
                network.time.at(pipe.last_s, pipe.wake)
        if self.sent is not None:
            self.sent(sent)
        if dropped:
            network.note("connection broke", self.peer)
            self.break_now()
            raise ConnectionResetError("the connection broke")
        pipe.wake()
        return length

    async def wait_writable(self) -> None:
        # What short writes leave over goes on a moment later.
        await self._network.time.sleep(0.001)
        await self._network.goes_on(self.host)
        pipe = self._outgoing
        while pipe.unread_bytes >= self._network.unread_bytes_max and not (self._closed or pipe.broken or pipe.closed):
            await pipe.read_from()

    def break_now(self) -> None:
        """Both ends see a reset, after what has arrived."""
        for pipe in (self._incoming, self._outgoing):
            pipe.broken = True
            pipe.wake()
            pipe.wake_writer()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outgoing.closed = True
            self._outgoing.wake()
            self._incoming.broken = True
            self._incoming.chunks.clear()
            self._incoming.unread_bytes = 0
            self._outgoing.wake_writer()
            self._incoming.wake()
            self._incoming.wake_writer()


class SimulatedListener(Steps):
    """A `StreamListener`."""

    def __init__(self, network: Network, host: str, port: int, dead: Callable[[], bool]) -> None:
        self.dead = dead
        self.address = (host, port)
        self.addresses: tuple[tuple[str, int], ...] = (self.address,)
        self._network = network
        super().__init__()
        self._send, self._receive = trio.open_memory_channel[SimulatedTransport](4096)
        self.accepted: list[SimulatedTransport] = []

    async def accept(self) -> SimulatedTransport:
        return await self._receive.receive()

    def arrived(self, transport: SimulatedTransport) -> None:
        """A connection for `accept`."""
        self.accepted = [known for known in self.accepted if not known._closed]
        transport.listener = self
        transport.here = f"{self.address[0]}:{self.address[1]}"
        self.accepted.append(transport)
        self._send.send_nowait(transport)

    def close(self) -> None:
        name = f"{self.address[0]}:{self.address[1]}"
        if self._network.listeners.get(name) is self:
            del self._network.listeners[name]
        self._receive.close()

    def cut(self) -> None:
        """The host died: every connection of it is reset."""
        self.close()
        for transport in self.accepted:
            transport.break_now()
            transport.close()


class Network:
    """Connects hosts by address."""

    def __init__(self, time: SimulatedTime, chance: Random, note: Callable[..., None]) -> None:
        self.time = time
        self.chance = chance
        self.note = note
        self.weather = Weather()
        self.unread_bytes_max = UNREAD_BYTES_MAX
        self.listeners: dict[str, SimulatedListener] = {}
        self.unreachable: set[str] = set()
        # Hosts whose answers get lost with the connection, as if they failed after they had done what was asked.
        self.silent: set[str] = set()
        # Hosts whose process stands still until then: connections are accepted, by the kernel, and nothing is read.
        self.hung_until_s: dict[str, float] = {}
        # Hosts whose process is stopped: it neither reads nor sends until the event.
        self.stopped: dict[str, trio.Event] = {}
        # Hosts whose answers take this much longer.
        self.slow_s: dict[str, float] = {}

    def listen(self, host: str, port: int, dead: Callable[[], bool]) -> SimulatedListener:
        """A host begins to listen. `dead` says when its process can send no more."""
        listener = SimulatedListener(self, host, port, dead)
        self.listeners[f"{host}:{port}"] = listener
        return listener

    async def goes_on(self, host: str) -> None:
        """Return when the process of a host runs."""
        while host in self.stopped:
            await self.stopped[host].wait()

    async def connect(self, address: str) -> SimulatedTransport:
        """The `Connect` door. Raises ConnectionRefusedError; to an unreachable host it hangs, and asks again now and
        then, as TCP does."""
        await trio.lowlevel.checkpoint()
        for pause_s in (1, 2, 4, 8, 16, 32, 64):
            if address not in self.unreachable:
                break
            await self.time.sleep(pause_s)
        else:
            raise TimeoutError(f"{address} does not answer")
        listener = self.listeners.get(address)
        if listener is None:
            raise ConnectionRefusedError(f"no host listens on {address}")
        there, back = Pipe(), Pipe()
        client = SimulatedTransport(self, back, there, address)
        accepted = SimulatedTransport(self, there, back, "127.0.0.1:40000", listener.dead)
        accepted.host = address
        listener.arrived(accepted)
        return client
