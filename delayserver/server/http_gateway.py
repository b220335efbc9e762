"""The HTTP gateway as a child process: it listens, starts the child, starts it again when it ends, and stops it.

The parent owns the listening socket. So a port that is taken is an error of the start, and requests that arrive while the
child starts again wait in the kernel. The child reads a pipe. When the pipe ends, the parent is gone.
"""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
from typing import Final, Self

import trio

from delayserver.config.settings import Settings
from delayserver.logs.events import EventLogger

events = EventLogger()

PAUSE_S: Final = 0.5
"""The pause before the first restart of the child. It doubles up to `PAUSE_S_MAX`, and begins anew once a child has run
for `STEADY_S`."""
PAUSE_S_MAX: Final = 30.0
STEADY_S: Final = 60.0
STOP_S: Final = 5.0
"""A child that has not ended so long after the end of its pipe is killed."""
BACKLOG: Final = 1024


class HttpAddressError(OSError):
    """The gateway cannot listen on the address of `http.host` and `http.port`."""


class HttpGateway:
    """The listening socket and the child that serves it."""

    def __init__(self, listening: socket.socket, settings: Settings) -> None:
        self._socket = listening
        self._settings = settings

    @classmethod
    def listen(cls, settings: Settings) -> Self:
        """Bind the address. Raises `HttpAddressError`."""
        http = settings.http
        family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
        try:
            listening = socket.create_server((http.host, http.port), family=family, backlog=BACKLOG)
        except OSError as error:
            raise HttpAddressError(error.errno, error.strerror) from error
        return cls(listening, settings)

    @property
    def host(self) -> str:
        """The address that it listens on."""
        return str(self._socket.getsockname()[0])

    async def run(self, server: str, token: str) -> None:
        """Keep a child running until cancelled. ``server`` is the address of the server's own protocol. With ``token`` the
        child reads for itself."""
        pause_s = PAUSE_S
        while True:
            begin_s = trio.current_time()
            code = await self._run_child(server, token)
            if trio.current_time() - begin_s > STEADY_S:
                pause_s = PAUSE_S
            events.error(
                "http_gateway_ended",
                "the HTTP gateway ended with code {code}; it starts again in {pause_s} s",
                code=code,
                pause_s=pause_s,
            )
            await trio.sleep(pause_s)
            pause_s = min(pause_s * 2, PAUSE_S_MAX)

    async def _run_child(self, server: str, token: str) -> int:
        """Run one child to its end, and return its exit code. When cancelled, end it."""
        descriptor = self._socket.fileno()
        child = await trio.lowlevel.open_process(
            [sys.executable, "-m", "delayserver.web.child", str(descriptor)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            pass_fds=(descriptor,),
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
        self._socket.close()
