"""The loops of clients that act again and again while their server answers, as long as faults come."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

import trio

from delayserver.protocol.errors import DelayServerError
from tests.simulation.client import Client, Lost
from tests.simulation.host import Host

Act = Callable[[], Awaitable[Any]]


class Workload(ABC):
    """Some clients beside those of the model. A subclass has their acts, and the books that judge the answers."""

    def __init__(self, host: Host, chance: Random, note: Callable[..., None]) -> None:
        self._host = host
        self._chance = chance
        self._note = note
        self.ending = False
        self._loops = 0
        self._ended = trio.Event()

    @abstractmethod
    def start(self, nursery: trio.Nursery) -> None:
        """Act until the end is near."""

    @abstractmethod
    async def settle(self, leap: Callable[[float], None]) -> None:
        """Begin nothing more, take what is left, and judge. Called when no more faults come. `leap` lets time pass."""

    def _begin(self, nursery: trio.Nursery, client: Client, act: Act) -> None:
        """Repeat an act of a client, one after the other."""
        self._loops += 1
        nursery.start_soon(self._repeat, client, act)

    async def _repeat(self, client: Client, act: Act) -> None:
        while not self.ending:
            if await self._host.serves():
                await self._guarded(client, act)
        self._loops -= 1
        if not self._loops:
            self._ended.set()

    async def _end(self) -> None:
        """Begin no act any more, and wait for those under way."""
        self.ending = True
        await self._ended.wait()

    async def _guarded(self, client: Client, act: Act) -> Any:
        """The result of an act; None, after a pause, if it had no answer or was refused."""
        try:
            return await act()
        except Lost:
            self._had_no_answer()
            await client.sleep(0.3)
        except DelayServerError as error:
            self._note(client.name, "refused", error=error.name, message=error.message[:60])
            self._was_refused(error)
            await client.sleep(0.5)
        return None

    def _had_no_answer(self) -> None:  # noqa: B027 - most books have nothing to say about it
        """An act had no answer."""

    def _was_refused(self, error: DelayServerError) -> None:  # noqa: B027
        """An act was refused."""
