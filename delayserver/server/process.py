"""A server as a process: sockets, signals, the event loop. `DelayServer` itself knows none of them."""

from __future__ import annotations

import gc
import resource
import signal
import sys
from contextlib import suppress
from dataclasses import replace

import trio

from delayserver.config.settings import Settings
from delayserver.front.front import BROKER, SERVER
from delayserver.logs.events import EventLogger
from delayserver.net.transport import SocketListener
from delayserver.operations.reload import Reread
from delayserver.protocol.errors import DelayServerError
from delayserver.runtime.runtime import Runtime
from delayserver.server.delay_server import DelayServer, Ready
from store.disk.filesystem import FileSystem
from store.errors import StoreError

# A worker thread that holds the interpreter gives it up after this long: the event loop waits no longer than that.
SWITCH_INTERVAL_S = 0.001
COLLECTION_THRESHOLDS = (50_000, 20, 50)
# Descriptors beside connections and the files of windows: logs, sockets of nodes, files of a checkpoint, the libraries.
DESCRIPTORS_KEPT = 96
CONNECTIONS_LEAST = 16

events = EventLogger()


async def serve(
    settings: Settings,
    *,
    role: str = SERVER,
    runtime: Runtime | None = None,
    fs: FileSystem | None = None,
    ready: Ready | None = None,
    signals: bool = False,
    reread: Reread | None = None,
) -> None:
    """Open, serve until cancelled (or, with `signals`, until SIGTERM or SIGINT), stop cleanly. A `reload` and, with
    `signals`, SIGHUP take over what `reread` gives.

    Raises StoreError (data directory locked, damaged, disk), OSError (the address is taken).
    """
    settings = within_descriptors(settings)
    listener = SocketListener(settings.listen.host, settings.listen.port)
    again = None if reread is None else lambda: within_descriptors(reread())
    server = DelayServer(settings, role=role, runtime=runtime, fs=fs, reread=again)
    failure: StoreError | OSError | None = None
    try:
        async with trio.open_nursery() as nursery:
            if signals:
                await nursery.start(_stop_on_signal, server)
            if signals and reread is not None:
                await nursery.start(_reload_on_signal, server)
            try:
                await server.run(listener, ready)
            except (StoreError, OSError) as error:  # for the caller as it is, not in a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
    finally:
        listener.close()
        server.close()


def within_descriptors(settings: Settings) -> Settings:
    """Take the file descriptors that the system allows, and no more connections than they suffice for.

    Otherwise clients that open connections take the descriptors of the files, and the server has to stop.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard == resource.RLIM_INFINITY:
        return settings
    room = max(hard - settings.storage.open_files_max - DESCRIPTORS_KEPT, CONNECTIONS_LEAST)
    if room >= settings.listen.connections_max:
        return settings
    events.warning(
        "connections_limited",
        "{descriptors} file descriptors leave room for {connections} connections, not listen.connections_max = "
        "{connections_max}; raise the limit (ulimit -n)",
        descriptors=hard,
        connections=room,
        connections_max=settings.listen.connections_max,
    )
    return replace(settings, listen=replace(settings.listen, connections_max=room))


async def _stop_on_signal(server: DelayServer, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """From its start on, a signal is a stop, also while the server opens its files or waits for room."""
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as received:
        task_status.started()
        async for _ in received:
            server.stop()


async def _reload_on_signal(server: DelayServer, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """SIGHUP is a `reload`. The log says what has changed, or what is wrong."""
    with trio.open_signal_receiver(signal.SIGHUP) as received:
        task_status.started()
        async for _ in received:
            if not server.is_open:
                events.error(
                    "reload_refused",
                    "the configuration was not taken over: {reason}",
                    reason="the server opens its files; send SIGHUP again later",
                )
                continue
            with suppress(DelayServerError):
                await server.reload.reload()


def run_server(
    settings: Settings,
    *,
    role: str = SERVER,
    ready: Ready | None = None,
    fs: FileSystem | None = None,
    reread: Reread | None = None,
) -> int:
    """Run until a signal; returns the exit code of a clean stop. Raises what `serve` raises; the command line tells it."""
    # A worker thread that holds the interpreter gives it up after this long: the event loop waits no longer than that.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # What was made by now stays for good. Requests leave no cycles behind, so the rest is looked through rarely.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*COLLECTION_THRESHOLDS)
    trio.run(lambda: serve(settings, role=role, fs=fs, ready=ready, signals=True, reread=reread))
    return 0


def run_broker(settings: Settings, *, ready: Ready | None = None) -> int:
    """`run_server` as a lone node of a broker group."""
    return run_server(settings, role=BROKER, ready=ready)
