"""A `Transport` over TLS, around another `Transport`. Plain connections do not come here.

TLS works on buffers in memory (`ssl.MemoryBIO`). So reading and sending keep their meaning: `feed` pushes, `send_now` never
waits.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Final

import trio

from delayserver.net.certificates import Contexts
from delayserver.net.transport import RECEIVE_BYTES, Connect, Received, StreamListener, Transport, connect_socket

# The bytes that are encrypted at once: so much may wait in memory for a kernel that takes nothing.
WRITE_BYTES: Final = 64 * 1024


class TlsTransport:
    """The plain bytes of an encrypted stream. The handshake is part of `feed`."""

    def __init__(self, inner: Transport, context: ssl.SSLContext, host: str | None = None) -> None:
        """`host`: the name that the certificate of the other end must have; None for the end that accepts."""
        self._inner = inner
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=host is None, server_hostname=host)
        # Encrypted bytes that the kernel has not taken.
        self._unsent = bytearray()
        self._agreed = trio.Event()
        self._received: Received = _nobody
        self.peer = inner.peer
        self.here = inner.here

    async def feed(self, received: Received) -> None:
        self._received = received
        try:
            self._shake_hands()
            await self._inner.feed(self._came)
        finally:
            self._received = _nobody
            self._agreed.set()

    def _came(self, data: bytes) -> None:
        self._incoming.write(data)
        if self._agreed.is_set() or self._shake_hands():
            self._read()

    def _shake_hands(self) -> bool:
        """Goes on with the handshake; returns whether it is complete. Raises ssl.SSLError."""
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            return False
        except ssl.SSLError:
            with contextlib.suppress(OSError):
                self._flush()  # the alert that says why
            raise
        self._flush()
        self._agreed.set()
        return True

    def _read(self) -> None:
        """Hands over what can be decrypted. Raises OSError at the end of the encrypted stream."""
        plain: list[bytes] = []
        end: OSError | None = None
        while True:
            try:
                data = self._tls.read(RECEIVE_BYTES)
            except ssl.SSLWantReadError:
                break
            except ssl.SSLError as error:
                end = error
                break
            if not data:
                end = ConnectionResetError("the peer has ended the encrypted stream")
                break
            plain.append(data)
        if plain:
            self._received(plain[0] if len(plain) == 1 else b"".join(plain))
        if end is not None:
            raise end

    def _flush(self) -> bool:
        """Sends encrypted bytes; returns whether all are sent. Raises OSError."""
        if self._outgoing.pending:
            self._unsent += self._outgoing.read()
        if self._unsent:
            taken = self._inner.send_now(bytes(self._unsent))
            del self._unsent[:taken]
        return not self._unsent

    def send_now(self, data: bytes | memoryview) -> int:
        if not self._agreed.is_set() or not self._flush():
            return 0
        view, taken = memoryview(data), 0
        while taken < len(view):
            taken += self._tls.write(view[taken : taken + WRITE_BYTES])
            if not self._flush():
                break
        return taken

    async def wait_writable(self) -> None:
        await trio.lowlevel.checkpoint()
        await self._agreed.wait()
        while not self._flush():
            await self._inner.wait_writable()

    def unacknowledged_bytes(self) -> int:
        return self._inner.unacknowledged_bytes() + len(self._unsent)

    def limit(self, read_bytes: int) -> None:
        self._inner.limit(read_bytes)

    def pause(self) -> None:
        self._inner.pause()

    def resume(self) -> None:
        self._inner.resume()

    def close(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            self._tls.unwrap()
        with contextlib.suppress(OSError):
            self._flush()
        self._agreed.set()
        self._inner.close()


def _nobody(_data: bytes) -> None:
    """Receives for a stream that is not read."""


class TlsListener:
    """A `StreamListener` whose streams are encrypted."""

    def __init__(self, inner: StreamListener, certificates: Contexts) -> None:
        self._inner = inner
        self._certificates = certificates
        self.address = inner.address
        self.addresses = inner.addresses

    async def accept(self) -> Transport:
        return TlsTransport(await self._inner.accept(), self._certificates.context)

    async def run(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> None:
        await self._inner.run(begin_step, end_step)

    def close(self) -> None:
        self._inner.close()


def connect_tls(certificates: Contexts) -> Connect:
    """Connects to HOST:PORT over TLS; the certificate there must name the host. Raises OSError."""

    async def connect(address: str) -> Transport:
        inner = await connect_socket(address)
        try:
            return TlsTransport(inner, certificates.context, address.rpartition(":")[0].strip("[]"))
        except ValueError as error:
            inner.close()
            raise OSError(f"{address!r:.80} names no host for TLS: {error}") from error

    return connect
