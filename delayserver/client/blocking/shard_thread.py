"""The blocking client of a cluster of several shards: the asynchronous one, in a thread of its own.

It takes calls of all threads at the same time. A client of one server needs no thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any, TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.protocol.errors import ConnectionLost

T = TypeVar("T")


class ShardThread:
    """Starts at the first call, and again at the first one after `close` or a fork."""

    def __init__(self, make: Callable[[], AsyncClient], close_s: float) -> None:
        """`close` waits so long for the end of the thread."""
        self._make = make
        self._close_s = close_s
        # By process. `setdefault` is one step for all threads, and needs no lock that a fork could leave locked.
        self._running: dict[int, _Running] = {}

    @property
    def client(self) -> AsyncClient | None:
        """The asynchronous client, if it runs."""
        running = self._running.get(os.getpid())
        return None if running is None else running.client

    def call(self, method: Callable[[AsyncClient], Callable[..., Awaitable[T]]], *arguments: Any) -> T:
        """The result of a method of the client. Raises its errors, and `ConnectionLost` if the client is closed meanwhile.

        If the caller is interrupted, the call is cancelled."""
        running = self._running.get(os.getpid()) or self._start()
        try:
            portal = running.portal()
        finally:
            if running.failed:
                self._forget(running)
        try:
            future = portal.start_task_soon(method(running.client), *arguments)
        except RuntimeError:  # the loop has ended
            self._forget(running)
            raise ConnectionLost("the client was closed") from None
        try:
            return future.result()
        except CancelledError:
            raise ConnectionLost("the client was closed") from None
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """End all calls in progress. One-way messages arrive before."""
        running = self._running.pop(os.getpid(), None)
        if running is not None:
            running.stop(self._close_s)

    def _forget(self, running: _Running) -> None:
        """The next call starts another one."""
        if self._running.get(os.getpid()) is running:
            self._running.pop(os.getpid(), None)

    def _start(self) -> _Running:
        made = _Running(self._make())
        running = self._running.setdefault(os.getpid(), made)
        if running is not made:  # another thread was faster
            made.stop(self._close_s)
        return running


class _Running:
    """An event loop with the client in its block. It is a daemon, so that a client which nobody closes holds no process."""

    def __init__(self, client: AsyncClient) -> None:
        self.client = client
        self._portal: Future[BlockingPortal] = Future()
        self._thread = threading.Thread(target=self._run, name="delayserver-shards", daemon=True)
        self._thread.start()

    def portal(self) -> BlockingPortal:
        """The way into the loop, when it runs. Raises the error of a start that failed."""
        return self._portal.result()

    @property
    def failed(self) -> bool:
        """Whether the start has failed."""
        return self._portal.done() and self._portal.exception() is not None

    def stop(self, within_s: float) -> None:
        """End the loop with all calls in it, unless it has ended by itself."""
        with suppress(Exception):
            portal = self.portal()
            portal.start_task_soon(portal.stop, True)
        self._thread.join(within_s)

    def _run(self) -> None:
        try:
            anyio.run(self._serve, backend="asyncio")
        except BaseException as error:
            if self._portal.done():
                raise
            self._portal.set_exception(error)

    async def _serve(self) -> None:
        async with self.client.unconnected(), BlockingPortal() as portal:
            self._portal.set_result(portal)
            await portal.sleep_until_stopped()
