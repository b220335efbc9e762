"""A running embedded server: in a thread of its own, or as a task of the program's trio loop."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import TypeVar

import anyio
import anyio.to_thread
import trio

from delayserver.config.settings import Settings
from delayserver.embedded.embedded_errors import EmbeddedClosed, EmbeddedFailed, EmbeddedForked, EmbeddedNotReady
from delayserver.embedded.pipe import PipeBell
from delayserver.embedded.pipe_listener import PipeListener, PipeTransport
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.workers import ThreadWorkers
from delayserver.server.delay_server import DelayServer
from delayserver.server.ground import Doors
from store.disk.filesystem import FileSystem
from store.errors import SyncFailedError

T = TypeVar("T")


class _Waiting(ThreadWorkers):
    """Worker threads that are always waited for. A program lives on when its server was stopped in the middle of a start: a
    thread that goes on opening the directory would keep it locked."""

    async def run(self, work: Callable[[], T], *, abandon_on_cancel: bool = False) -> T:
        return await super().run(work)


class Running:
    """The server and its listener, and what became of it. `connect` and `check` are for any thread."""

    def __init__(self, settings: Settings, fs: FileSystem) -> None:
        self.server = DelayServer(settings, doors=Doors(fs), trusting=True, runtime=Runtime.on(workers=_Waiting()))
        self.ready = False
        self.failure: BaseException | None = None
        self._listener = PipeListener()
        self._process = os.getpid()

    async def serve(self, settled: Callable[[], None]) -> None:
        """Open, serve until `DelayServer.stop`, stop cleanly. Calls `settled` when requests are served, and at the end. A
        crash becomes `failure`."""

        def begin(_host: str, _port: int) -> None:
            self.ready = True
            settled()

        try:
            # A cancelled program still stops its server cleanly: the server's own bound ends that.
            with trio.CancelScope(shield=True):
                await self.server.run(self._listener, begin)
        except BaseException as error:  # noqa: BLE001 - a crash belongs to the program, which hears of it by `check`
            self.failure = _leaf(error)
        finally:
            self._listener.cut()
            self.server.close()
            settled()

    def connect(self, reader: PipeBell, writer: PipeBell) -> PipeTransport:
        """A connection to the server. Raises EmbeddedError's kinds."""
        self.check()
        try:
            return self._listener.connect(reader, writer)
        except ConnectionRefusedError:
            self.check()
            raise

    def check(self) -> None:
        """Raises EmbeddedForked, EmbeddedFailed or EmbeddedClosed if a call cannot reach the server any more."""
        if self._process != os.getpid():
            raise EmbeddedForked(f"the embedded server runs in process {self._process}, from which this one was forked")
        if self.failure is not None:
            raise EmbeddedFailed(f"the embedded server ended: {self.failure!r}") from self.failure
        if self._listener.closed:
            raise EmbeddedClosed("the embedded server was closed")

    def check_start(self, timeout_s: float) -> None:
        """After `settled` or the time: raises the error of the start as it is, or EmbeddedNotReady."""
        if self.failure is not None:
            raise self.failure
        if not self.ready:
            reason = self.server.readiness.reason
            raise EmbeddedNotReady(f"the embedded server did not begin to serve within {timeout_s:g} s: {reason}")

    def check_end(self) -> None:
        """When it has ended after a start: raises EmbeddedFailed if it crashed."""
        if self.failure is not None:
            raise EmbeddedFailed(f"the embedded server ended: {self.failure!r}") from self.failure


def _leaf(error: BaseException) -> BaseException:
    """The one error of a group that a nursery made. A task that waits for a sync when the server ends fails as well."""
    if isinstance(error, BaseExceptionGroup):
        error = error.split(SyncFailedError)[1] or error
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


class ServerThread:
    """Runs a server in a thread. The thread ends with the process: then the server ends as by a kill, and the next open
    recovers."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self._settled = threading.Event()
        self._stop_asked = False
        self._token: trio.lowlevel.TrioToken | None = None
        self._thread = threading.Thread(target=self._main, name="delayserver", daemon=True)
        self._process = os.getpid()

    def start(self, timeout_s: float) -> None:
        """Return when it serves. Raises what its start raises (StoreError and its kinds), EmbeddedNotReady."""
        self._thread.start()
        try:
            self._settled.wait(timeout_s)
            self.running.check_start(timeout_s)
        except BaseException:
            self.stop()
            raise

    def _main(self) -> None:
        trio.run(self._serve)

    async def _serve(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        if not self._stop_asked:
            await self.running.serve(self._settled.set)

    def stop(self) -> None:
        """Stop cleanly and wait for the end. Idempotent; in a forked process, where no server is, it does nothing."""
        if self._process != os.getpid():
            return
        self._stop_asked = True
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self.running.server.stop, idempotent=True)
        if self._thread is not threading.current_thread():
            self._thread.join()


@asynccontextmanager
async def in_a_thread(running: Running, timeout_s: float) -> AsyncIterator[None]:
    """A block of asyncio (or any loop) that has the server in a thread."""
    thread = ServerThread(running)
    try:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(thread.start, timeout_s)
        yield
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(thread.stop)
    running.check_end()


@asynccontextmanager
async def in_this_loop(running: Running, timeout_s: float) -> AsyncIterator[None]:
    """A block of trio that has the server as a task. A crash of the server cancels the block and raises EmbeddedFailed.

    An interrupt (Ctrl-C) amid the work of the server ends it as a kill does, and is raised as it is."""
    raised: BaseException | None = None
    async with trio.open_nursery() as nursery:
        settled, ended, block = trio.Event(), trio.Event(), trio.CancelScope()

        async def serve() -> None:
            await running.serve(settled.set)
            ended.set()
            if running.failure is not None:
                block.cancel()

        nursery.start_soon(serve)
        try:
            with trio.move_on_after(timeout_s):
                await settled.wait()
            running.check_start(timeout_s)
            with block:
                yield
        # The nursery would put the block's own error into a group.
        except BaseException as error:  # noqa: BLE001 - raised below
            raised = error
        finally:
            running.server.stop()
            with trio.CancelScope(shield=True):
                await ended.wait()
    if isinstance(running.failure, KeyboardInterrupt):
        raise running.failure
    if raised is not None:
        raise raised
    running.check_end()
