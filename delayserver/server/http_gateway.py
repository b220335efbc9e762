"""The HTTP gateway as a child process: it listens, starts the child, starts it again when it ends, and stops it.

The parent owns the listening socket. So a port that is taken is an error of the start, and requests that arrive while the
child starts again wait in the kernel. The child reads a pipe. When the pipe ends, the parent is gone.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
from typing import Final, Self

import trio

from delayserver.config.settings import Settings
from delayserver.logs.events import EventLogger
from delayserver.net.listening import AddressError, listening_sockets
from delayserver.runtime.child_process import child_command

events = EventLogger()

PAUSE_S: Final = 0.5
"""The pause before the first restart of the child. It doubles up to `PAUSE_S_MAX` while children end soon after their start:
they cannot serve, and each start costs a second of a processor."""
PAUSE_S_MAX: Final = 30.0
STEADY_S: Final = 5.0
"""A child that has run for so long could serve. Its end, such as a kill, is no reason to keep clients waiting."""
STOP_S: Final = 5.0
"""A child that has not ended so long after the end of its pipe is killed."""


def next_pause_s(before_s: float, ran_s: float) -> float:
    """Seconds to wait before the next child. The last one ran for `ran_s`, after a wait of `before_s` (0 for the first)."""
    return PAUSE_S if ran_s >= STEADY_S or not before_s else min(before_s * 2, PAUSE_S_MAX)


class HttpAddressError(AddressError):
    """The gateway cannot listen on an address of `http.hosts` and `http.port`."""


class HttpGateway:
    """The listening sockets and the child that serves them."""

    def __init__(self, listening: list[socket.socket], settings: Settings) -> None:
        self._sockets = listening
        self._settings = settings

    @classmethod
    def listen(cls, settings: Settings) -> Self:
        """Bind the addresses. Raises `HttpAddressError`."""
        http = settings.http
        try:
            listening = listening_sockets(http.all_hosts, http.port)
        except AddressError as error:
            raise HttpAddressError(error, error.host) from error
        return cls([each for sockets in listening for each in sockets], settings)

    @property
    def hosts(self) -> list[str]:
        """The addresses that it listens on."""
        return [str(each.getsockname()[0]) for each in self._sockets]

    async def run(self, server: str, token: str) -> None:
        """Keep a child running until cancelled. ``server`` is the address of the server's own protocol. With ``token`` the
        child reads for itself."""
        pause_s = 0.0
        while True:
            begin_s = trio.current_time()
            code = await self._run_child(server, token)
            pause_s = next_pause_s(pause_s, trio.current_time() - begin_s)
            events.error(
                "http_gateway_ended",
                "the HTTP gateway ended with code {code}; it starts again in {pause_s} s",
                code=code,
                pause_s=pause_s,
            )
            await trio.sleep(pause_s)

    async def _run_child(self, server: str, token: str) -> int:
        """Run one child to its end, and return its exit code. When cancelled, end it."""
        descriptors = [each.fileno() for each in self._sockets]
        child = await trio.lowlevel.open_process(
            child_command("delayserver.web.child", *map(str, descriptors)),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=descriptors,
        )
        assert child.stdin is not None
        try:
            http, log = dataclasses.asdict(self._settings.http), self._settings.log
            orders = {
                "server": server,
                "token": token,
                "http": http,
                "log": [log.format, log.level],
                "tls": dataclasses.asdict(self._settings.tls),
            }
            try:
                await child.stdin.send_all(json.dumps(orders).encode() + b"\n")
            except trio.BrokenResourceError:
                pass  # The child has ended; its code says more.
            return await child.wait()
        finally:
            with trio.CancelScope(shield=True):
                await child.stdin.aclose()
                with trio.move_on_after(STOP_S):
                    await child.wait()
                if child.returncode is None:
                    child.kill()
                    await child.wait()

    def close(self) -> None:
        """Stop listening."""
        for each in self._sockets:
            each.close()
