"""A server inside a program, without a socket: on a directory, or in memory for tests and for programs on a device.

``with embedded.open("data") as here:`` for threads, ``async with embedded.open_async() as here:`` for trio and asyncio.
``here`` is a `Client` or an `AsyncClient` with all their calls. The server is the one that `delayserver serve` runs.
"""

from delayserver.embedded.errors import EmbeddedClosed, EmbeddedError, EmbeddedFailed, EmbeddedForked, EmbeddedNotReady
from delayserver.embedded.opening import AsyncEmbedded, Embedded, open, open_async

__all__ = [
    "AsyncEmbedded",
    "Embedded",
    "EmbeddedClosed",
    "EmbeddedError",
    "EmbeddedFailed",
    "EmbeddedForked",
    "EmbeddedNotReady",
    "open",
    "open_async",
]
