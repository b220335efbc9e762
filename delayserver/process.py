"""A server as a process: sockets, signals, the event loop. `DelayServer` itself knows none of them."""

from __future__ import annotations

import signal
import sys

import trio

from delayserver.clock import Clock
from delayserver.front import BROKER, SERVER
from delayserver.server import DelayServer, Ready
from delayserver.settings import Settings
from delayserver.transport import SocketListener
from store.filesystem import FileSystem

# A worker thread that holds the interpreter gives it up after this long: the event loop waits no longer than that.
SWITCH_INTERVAL_S = 0.001


async def serve(
    settings: Settings,
    *,
    role: str = SERVER,
    clock: Clock | None = None,
    fs: FileSystem | None = None,
    ready: Ready | None = None,
    signals: bool = False,
) -> None:
    """Open, serve until cancelled (or, with `signals`, until SIGTERM or SIGINT), stop cleanly.

    Raises StoreError (data directory locked, damaged, disk), OSError (the address is taken).
    """
    listener = SocketListener(settings.listen.host, settings.listen.port)
    server = DelayServer(settings, role=role, clock=clock, fs=fs)
    try:
        server.open()
    except BaseException:
        listener.close()
        raise
    try:
        async with trio.open_nursery() as nursery:
            if signals:
                nursery.start_soon(_stop_on_signal, server)
            await server.run(listener, ready)
            nursery.cancel_scope.cancel()
    finally:
        listener.close()
        server.close()


async def _stop_on_signal(server: DelayServer) -> None:
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        async for _ in received:
            server.stop()


def run_server(settings: Settings, *, role: str = SERVER, ready: Ready | None = None) -> int:
    """Run until a signal; returns the exit code of a clean stop. Raises what `serve` raises; the command line tells it."""
    # A worker thread that holds the interpreter gives it up after this long: the event loop waits no longer than that.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    trio.run(lambda: serve(settings, role=role, ready=ready, signals=True))
    return 0


def run_broker(settings: Settings, *, ready: Ready | None = None) -> int:
    """`run_server` as a lone node of a broker group."""
    return run_server(settings, role=BROKER, ready=ready)
