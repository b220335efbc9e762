"""The loop that keeps leases at their nodes while their messages are worked on. `Consumer` and listeners share it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

import anyio
import anyio.abc

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.consuming.extending import Extension, Lease, look_interval_s
from delayserver.client.consuming.said_lately import SaidLately, held_back_words
from delayserver.logs.events import EventLogger
from delayserver.protocol.errors import DelayServerError, UnknownOperation

events = EventLogger("delayserver.client")


class LeaseSource(Protocol):
    """The leases of one subject at one node. ``connection``: the number of the connection to which all of them belong; 0
    or None: not known.
    """

    @property
    def subject(self) -> str: ...

    @property
    def connection(self) -> int | None: ...

    def due(self, now_s: float) -> Sequence[Lease]:
        """The leases that shall be extended now."""

    def known(self, now_s: float) -> Sequence[Lease]:
        """The leases to take over to another connection."""

    def belong(self, connection: int) -> None:
        """All leases belong to this connection."""


S = TypeVar("S", bound=LeaseSource)


class LeaseKeeper(Generic[S]):
    """Extends the leases of ``sources`` that end soon, and after a lost connection all leases, over the next one.

    It sends one request at a time for a source. A source whose node does not know ``extend`` is asked once. ``outlive_s``:
    leases end so long after their connection; None: they outlive it, and are not taken over.
    """

    def __init__(
        self,
        name: str,
        group: str,
        ack_timeout_s: float,
        outlive_s: float | None,
        sources: Callable[[], Mapping[S, AsyncClient]],
        extended: Callable[[int], object] | None = None,
    ) -> None:
        """``name``: that of the consumer or listener in the log. ``sources`` returns the sources of now, with their nodes.
        ``extended`` gets the count of due leases that were extended, after each request.
        """
        self._name = name
        self._group = group
        self._ack_timeout_s = ack_timeout_s
        self._outlive_s = outlive_s
        self._sources = sources
        self._asking: set[S] = set()
        self._unable: set[S] = set()
        self._said = SaidLately()
        self._extended = extended

    async def run(self, before: Callable[[], None] | None = None) -> None:
        """Look at the leases until cancelled. ``before`` is called before each look."""
        async with anyio.create_task_group() as requests:
            while True:
                await anyio.sleep(look_interval_s(self._ack_timeout_s, self._outlive_s))
                if before is not None:
                    before()
                self.look(requests)

    def look(self, requests: anyio.abc.TaskGroup) -> None:
        """Start a request for each source that needs one."""
        now_s, sources = anyio.current_time(), self._sources()
        self._unable &= sources.keys()
        for source, node in sources.items():
            if source in self._asking or source in self._unable:
                continue
            adopts = self._outlive_s is not None and source.connection != node.connection_number
            leases = source.known(now_s) if adopts else source.due(now_s)
            if leases:
                self._asking.add(source)
                requests.start_soon(self._extend, source, node, leases, adopts)
            elif adopts and node.connection_number:
                source.belong(node.connection_number)

    async def _extend(self, source: S, node: AsyncClient, leases: Sequence[Lease], adopts: bool) -> None:
        extension = Extension(source.subject, self._group, self._ack_timeout_s, leases, self._outlive_s)
        try:
            if adopts:
                source.belong(await extension.adopt(node))
            else:
                count = await extension.make(node)
                if self._extended is not None:
                    self._extended(count)
        except UnknownOperation:
            self._unable.add(source)
            self._tell(source, "its node is older than `extend`")
        except DelayServerError as error:  # the next look tries again
            self._tell(source, str(error))
        finally:
            self._asking.discard(source)

    def _tell(self, source: S, why: str) -> None:
        held_back = self._said.say(repr(source), anyio.current_time())
        if held_back is not None:
            events.warning(
                "lease_not_extended",
                "{handler} could not extend leases of {source}: {reason}" + held_back_words(held_back),
                handler=self._name, source=repr(source), reason=why, held_back=held_back,
            )  # fmt: skip
