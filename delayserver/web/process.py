"""The gateway as a process: an event loop, a listening socket, and an end."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import anyio
import uvicorn

from delayserver.config.settings import HttpSettings
from delayserver.logs.setup import silence
from delayserver.web.clients import Clients
from delayserver.web.gateway import Gateway

GRACE_S = 2
"""Requests that are still running so long after the end was asked for are cancelled."""


class GatewayServer(uvicorn.Server):
    """A server of uvicorn whose end is asked for by a call instead of a signal."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leaves signals to the process."""
        yield

    def stop(self) -> None:
        """Finish the requests that run, then end."""
        self.should_exit = True


async def serve_http(
    server: str, listening: socket.socket, settings: HttpSettings, until: Callable[[], Awaitable[None]]
) -> None:
    """Serve HTTP on a listening socket as a client of ``server``, until ``until`` returns."""
    # The gateway has its own answers for bad requests. Nobody may fill the log by sending them.
    silence("uvicorn")
    async with Clients(server) as clients, anyio.create_task_group() as tasks:
        gateway = Gateway(clients, settings)
        web = GatewayServer(
            uvicorn.Config(
                gateway,
                http="httptools",
                ws="none",
                loop="asyncio",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=max(settings.idle_timeout_ms // 1000, 1),
                timeout_graceful_shutdown=GRACE_S,
            )
        )

        async def stop() -> None:
            await until()
            web.stop()

        tasks.start_soon(gateway.live.run)
        tasks.start_soon(stop)
        await web.serve(sockets=[listening])
        tasks.cancel_scope.cancel()
