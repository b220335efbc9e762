"""The gateway as a process: an event loop, a listening socket, and an end."""

from __future__ import annotations

import ipaddress
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import anyio
import uvicorn

from delayserver.client.connections.tls import TLS
from delayserver.config.settings import HttpSettings
from delayserver.logs.setup import silence
from delayserver.metrics.http_figures import HttpFigures
from delayserver.runtime.chance import system_chance
from delayserver.web.clients import Clients
from delayserver.web.door import Door
from delayserver.web.gateway import Gateway
from delayserver.web.http_protocol import HttpConnections
from delayserver.web.scraping import measured
from delayserver.web.secured import Secured
from delayserver.web.sessions import Sessions

NICE = 5
"""The gateway and the server share processors. Where both want one, a delivery goes before an answer over HTTP."""
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


DESCRIPTORS_KEPT = 64
"""File descriptors beside connections: those to the server, the console's files, the libraries."""


def within_descriptors(settings: HttpSettings) -> HttpSettings:
    """Take the file descriptors that the system allows, and no more connections than they suffice for. The share of one
    address stays the same."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    room = settings.connections_max if hard == resource.RLIM_INFINITY else max(hard - DESCRIPTORS_KEPT, 16)
    connections_max = min(room, settings.connections_max)
    of_address_max = max(settings.connections_of_address_max * connections_max // settings.connections_max, 1)
    return replace(settings, connections_max=connections_max, connections_of_address_max=of_address_max)


@dataclass(frozen=True, slots=True)
class Upstream:
    """The server that the gateway is a client of: its address, the token that the gateway reads with itself, and TLS.
    `pid` is its process, if it runs on this machine."""

    server: str
    token: str = ""
    tls: TLS = None
    pid: int | None = None


async def serve_http(
    upstream: Upstream,
    listening: Sequence[socket.socket],
    settings: HttpSettings,
    until: Callable[[], Awaitable[None]],
    secured: Secured,
) -> None:
    """Serve HTTP on listening sockets as a client of ``upstream``, until ``until`` returns."""
    settings = within_descriptors(settings)
    os.nice(NICE)
    # The gateway has its own answers for bad requests. Without this a client could fill the log by sending them.
    silence("uvicorn")
    hosts = [str(each.getsockname()[0]).partition("%")[0] for each in listening]
    async with Clients(upstream.server, upstream.token, upstream.tls) as clients, anyio.create_task_group() as tasks:
        figures = HttpFigures(upstream.pid)
        sessions = Sessions(time.monotonic, system_chance().randbytes)
        gateway, connections = Gateway(clients, sessions, settings, figures), HttpConnections(settings, secured.context)
        door = Door(gateway, sessions, settings, loopback=all(ipaddress.ip_address(host).is_loopback for host in hosts))
        web = GatewayServer(
            uvicorn.Config(
                measured(door, figures),
                http=connections.protocol,  # type: ignore[arg-type]
                ws="none",
                loop="asyncio",
                lifespan="off",
                access_log=False,
                log_config=None,
                server_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=GRACE_S,
            )
        )

        async def stop() -> None:
            await until()
            web.stop()

        tasks.start_soon(secured.run)
        tasks.start_soon(gateway.live.run)
        tasks.start_soon(connections.run)
        tasks.start_soon(stop)
        await web.serve(sockets=list(listening))
        tasks.cancel_scope.cancel()
