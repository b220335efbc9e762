"""Clients that behave badly towards others: they do not read, they ask ahead without end, they die in the middle of a frame.

The model knows only which queues they pull from. It does not know which messages they get: to it their pulls are pulls
whose replies were lost.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from delayserver.protocol.frames import encode_request
from tests.simulation.network import Network, SimulatedTransport

# Pulls and other requests that one of them sends ahead.
REQUESTS_MAX = 6
# Its own consumer group.
GROUP = "rude"


class Rude:
    """One connection of it after the other, to one host."""

    def __init__(
        self,
        network: Network,
        address: str,
        chance: Random,
        note: Callable[..., None],
        subjects: tuple[str, ...],
        groups: list[str],
        pulls: Callable[[str, str], None],
    ) -> None:
        """`pulls` gets the subject and the consumer group of each pull, before it is sent."""
        self._network = network
        self._address = address
        self._chance = chance
        self._note = note
        self._subjects = subjects
        self._groups = groups
        self._pulls = pulls

    async def act(self) -> None:
        """Connect, misbehave, and go or be cut off."""
        chance, time = self._chance, self._network.time
        try:
            transport = await self._network.connect(self._address)
        except OSError:
            return
        leave = time.at(time.now_s + chance.choice([0.05, 1.0, 8.0, 8.0]), transport.close)
        try:
            if chance.random() < 0.4:
                await self._send_half_a_frame(transport)
            else:
                await self._pull_ahead(transport)
            await self._read_a_little(transport)
        except OSError as error:
            self._note("rude", "cut off", why=repr(error))
        finally:
            leave.action = None
            transport.close()

    async def _send_half_a_frame(self, transport: SimulatedTransport) -> None:
        frame = encode_request(1, "ping", {"padding": bytes(self._chance.choice([10, 2_000, 20_000, 60_000]))})
        cut = self._chance.randrange(1, len(frame))
        self._note("rude", "half a frame", sent=cut, of=len(frame))
        await self._send(transport, frame[:cut])
        await self._network.time.sleep(self._chance.choice([0.0, 0.5, 10.0]))
        if self._chance.random() < 0.3:
            await self._send(transport, frame[cut:])

    async def _pull_ahead(self, transport: SimulatedTransport) -> None:
        chance = self._chance
        subject = chance.choice(self._subjects)
        # Mostly a group that others leave alone, and that has everything to get.
        group = chance.choice([*self._groups, GROUP, GROUP])
        self._pulls(subject, group)
        pull = {
            "subject": subject,
            "group": group,
            "max_messages": chance.choice([1, 10, 1000]),
            "wait_ms": chance.choice([0, 1_000, 5_000]),
        }
        requests = [("pull", pull), ("status", {})]
        count = chance.randrange(1, REQUESTS_MAX + 1)
        self._note("rude", "pulls ahead", count=count, **pull)
        for number in range(count):
            name, arguments = chance.choices(requests, (4, 1))[0]
            await self._send(transport, encode_request(number + 1, name, arguments))

    async def _send(self, transport: SimulatedTransport, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[transport.send_now(view) :]
            if view:
                await transport.wait_writable()

    async def _read_a_little(self, transport: SimulatedTransport) -> None:
        for _ in range(self._chance.choice([0, 0, 1, 5, 50])):
            if not await transport.receive():
                return
            await self._network.time.sleep(self._chance.choice([0.0, 0.01, 0.5]))
        await self._network.time.sleep(self._chance.choice([0.0, 1.0, 8.0, 8.0]))
