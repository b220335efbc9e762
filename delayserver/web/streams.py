"""The bounds of long streams: how many there are, and how many bytes wait for their clients.

A stream pulls only what its client is about to read: it waits until the connection has taken what was sent. Messages
that find no room go back to their group.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from delayserver.protocol.errors import QueueFull
from delayserver.web.bodies import TOKEN, Scope
from delayserver.web.request_memory import Holding, RequestMemory

AT_END: Final = "delayserver.at_end"
"""The entry of an ASGI scope that has the `ExitStack` which ends with the request."""
TAKEN: Final = "delayserver.taken"
"""The entry of an ASGI scope with a call that returns once the client has taken the answer so far, but for 64 KiB."""
SMALL_BYTES: Final = 64 * 1024
"""A stream whose client does not read holds so much whatever others hold: with `http.streams_max` of them 64 MiB."""
ROOM_BYTES: Final = 64 * 1024 * 1024
"""Room for larger messages, of all streams together. The largest message takes some MiB as JSON."""
PULL_BYTES: Final = 32 * 1024
"""A stream asks its group for so much at a time. As JSON it nearly always stays below `SMALL_BYTES`. A larger message
comes alone."""


class Streams:
    """Counts the streams that run, and what they hold."""

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._running = 0
        self._room = RequestMemory("messages that other streams have not read", ROOM_BYTES, SMALL_BYTES)

    @property
    def running(self) -> int:
        """How many streams run."""
        return self._running

    @property
    def held_bytes(self) -> int:
        """Bytes of large messages that clients have not taken."""
        return self._room.held_bytes

    def begin(self, scope: Scope) -> StreamPlace:
        """A place for the stream of a request, from now until the request ends. Raises `QueueFull`."""
        if self._running >= self._streams_max:
            raise QueueFull(f"{self._streams_max} streams run already (http.streams_max)", retry_after_ms=5000)
        at_end: ExitStack = scope[AT_END]
        at_end.enter_context(self._counted())
        return StreamPlace(at_end.enter_context(self._room.holding(scope.get(TOKEN, ""))), scope[TAKEN])

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._running += 1
        try:
            yield
        finally:
            self._running -= 1


class StreamPlace:
    """The place of one stream."""

    def __init__(self, holding: Holding, taken: Callable[[], Awaitable[None]]) -> None:
        self._holding = holding
        self._taken = taken

    def hold(self, size: int) -> None:
        """Count the bytes that are about to be sent. Raises `QueueFull`."""
        self._holding.hold(size)

    async def wait_taken(self) -> None:
        """Waits until the client has taken what was sent, but for 64 KiB."""
        await self._taken()
        self._holding.hold(0)
