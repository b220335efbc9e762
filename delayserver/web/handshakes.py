"""Connections of TLS before their handshake is done. Each takes 300 KiB for a client that may be silent, so they are few."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

HANDSHAKES_MAX: Final = 256
"""Handshakes at the same time. Beyond it the oldest one gives way: an honest one is done within a round trip or two."""
HANDSHAKE_S: Final = 10.0
"""As long as the head of a request may take."""


class Handshakes:
    """All handshakes that are under way."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self._open: dict[Handshake, None] = {}

    def __len__(self) -> int:
        return len(self._open)

    def of(self, inner: Callable[[], asyncio.Protocol]) -> Handshake:
        """The protocol of a new connection. `inner` makes the one that follows the handshake."""
        return Handshake(self, inner)

    def begin(self, handshake: Handshake) -> None:
        """Count one more, and end the oldest one if there are too many."""
        if len(self._open) >= HANDSHAKES_MAX:
            oldest = next(iter(self._open))
            self.end(oldest)
            oldest.cancel()
        self._open[handshake] = None

    def end(self, handshake: Handshake) -> None:
        """The handshake is done, or given up."""
        self._open.pop(handshake, None)


class Handshake(asyncio.Protocol):
    """One connection. It keeps what the client sends right behind its part of the handshake."""

    def __init__(self, handshakes: Handshakes, inner: Callable[[], asyncio.Protocol]) -> None:
        self._handshakes = handshakes
        self._inner = inner
        self._early: list[bytes] = []
        self._shaking: tuple[asyncio.Transport, asyncio.Task[None]] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin. The transport is the plain one."""
        assert isinstance(transport, asyncio.Transport)
        self._handshakes.begin(self)
        self._shaking = transport, asyncio.get_running_loop().create_task(self._shake(transport))

    def data_received(self, data: bytes) -> None:
        """Keep what comes before the next protocol is there."""
        self._early.append(data)

    def cancel(self) -> None:
        """Give up, and close the connection."""
        assert self._shaking is not None
        plain, task = self._shaking
        # The task may not have begun yet.
        plain.abort()
        task.cancel()

    async def _shake(self, plain: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(HANDSHAKE_S):
                secured = await loop.start_tls(plain, self, self._handshakes.context, server_side=True)
        except (OSError, asyncio.CancelledError):
            plain.abort()
            return
        finally:
            self._handshakes.end(self)
        if secured is None or secured.is_closing():
            plain.abort()
            return
        protocol = self._inner()
        secured.set_protocol(protocol)
        protocol.connection_made(secured)
        if self._early:
            protocol.data_received(b"".join(self._early))
