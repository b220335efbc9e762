"""A server inside a program, without a socket: on a directory, or in memory for tests and for programs on a device.

``with embedded.open("data") as here:`` for threads, ``async with embedded.open_async() as here:`` for trio and asyncio.
``here`` is a `Client` or an `AsyncClient` with all their calls. The server is the one that `delayserver serve` runs.

The two meet at the byte stream, not at the operations. Over frames in memory each operation has the same bounds,
back-pressure, fairness and errors as over a socket, future ones too. Encoding and decoding take a fifth of the time
of a send of one message, and in columns next to nothing.

A crash is the program's. On trio it cancels the block. Elsewhere the next call and the end of the block raise it. An
interrupt that trio raises amid the server's work is a crash for the server, and the program gets the interrupt.
"""

from delayserver.embedded.embedded_errors import (
    EmbeddedClosed,
    EmbeddedError,
    EmbeddedFailed,
    EmbeddedForked,
    EmbeddedNotReady,
)
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
