"""`open` and `open_async`: a server and a client of it in one block."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Final

import anyio.abc
import sniffio

from delayserver.client.asynchronous.client import AsyncClient
from delayserver.client.blocking.client import Client
from delayserver.client.blocking.line import LineConnection
from delayserver.config.settings import for_memory
from delayserver.config.toml_file import load_settings
from delayserver.embedded.pipe_connection import PipeConnection, PipeStream
from delayserver.embedded.pipe_listener import ADDRESS
from delayserver.embedded.running import Running, ServerThread, in_a_thread, in_this_loop
from store.disk.filesystem import RealFileSystem
from store.disk.memory_filesystem import MemoryFileSystem

_ADDRESS: Final = f"{ADDRESS[0]}:{ADDRESS[1]}"

READY_TIMEOUT_S: Final = 60.0
"""A start after a crash reads back at most `storage.replay_lag_bytes_max`, some seconds. On a full disk a server waits for
room for ever; a program wants to hear of it."""


class EmbeddedClient(Client):
    """A `Client` of an embedded server, for one thread at a time."""

    def __init__(self, running: Running, *, timeout_s: float, retries: int) -> None:
        super().__init__(_ADDRESS, timeout_s=timeout_s, retries=retries)
        self._running = running

    def _new_connection(self) -> LineConnection:
        return PipeConnection(self._running, self._core.take_notice)

    def client(self) -> EmbeddedClient:
        """Another client of the same server, for another thread. Close it, or use it in a ``with`` block."""
        return EmbeddedClient(self._running, timeout_s=self._timeout_s, retries=self._retries.retries)

    def asynchronous(self) -> AsyncClient:
        return AsyncEmbedded(self._running, timeout_s=self._timeout_s, retries=self._retries.retries)

    def _batching_client(self) -> EmbeddedClient:
        return self.client()


class Embedded(EmbeddedClient):
    """A server in a thread of its own, and a client of it. Leaving the ``with`` block, or `close`, stops the server cleanly;
    calls afterwards raise `EmbeddedClosed`. A crash of the server raises `EmbeddedFailed`: in the next call, and at the end
    of the block unless that raises already.
    """

    def __init__(self, thread: ServerThread, *, timeout_s: float, retries: int) -> None:
        super().__init__(thread.running, timeout_s=timeout_s, retries=retries)
        self._thread = thread

    def close(self) -> None:
        """Stop the server cleanly. A call that waits in another thread ends with `ConnectionLost`. Idempotent."""
        super().close()
        self._thread.stop()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, value, trace)
        if value is None:
            self._running.check_end()


class AsyncEmbedded(AsyncClient):
    """An `AsyncClient` of an embedded server."""

    def __init__(self, running: Running, *, timeout_s: float, retries: int) -> None:
        super().__init__(_ADDRESS, timeout_s=timeout_s, retries=retries)
        self._running = running

    async def _new_stream(self) -> anyio.abc.ByteStream:
        return PipeStream(self._running)

    def node_client(self, address: str) -> AsyncClient:
        if address != _ADDRESS:
            return super().node_client(address)
        return AsyncEmbedded(self._running, timeout_s=self._timeout_s, retries=self._retries.retries)


def open(
    directory: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    config: str | None = None,
    timeout_s: float = 10.0,
    retries: int = 3,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> Embedded:
    """Start a server in a thread of its own, on a directory or in memory, and return a client of it when it serves.

    ``settings``: full names of settings and their values, as ``--set`` takes them; ``config``: a TOML file. ``timeout_s``
    and ``retries`` are those of `Client`.
    Raises ConfigError, StoreError's kinds (`LockedError`: another server has the directory), `EmbeddedNotReady`.
    """
    thread = ServerThread(_made(directory, settings, config))
    thread.start(ready_timeout_s)
    return Embedded(thread, timeout_s=timeout_s, retries=retries)


@asynccontextmanager
async def open_async(
    directory: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    config: str | None = None,
    timeout_s: float = 10.0,
    retries: int = 3,
    ready_timeout_s: float = READY_TIMEOUT_S,
) -> AsyncIterator[AsyncEmbedded]:
    """As `open`, for ``async with``. On trio the server runs as a task of the program's own loop, and a crash of it cancels
    the block, which raises `EmbeddedFailed`. On asyncio it runs in a thread, and the crash raises in the next call.
    """
    running = _made(directory, settings, config)
    around: AbstractAsyncContextManager[None]
    if sniffio.current_async_library() == "trio":
        around = in_this_loop(running, ready_timeout_s)
    else:
        around = in_a_thread(running, ready_timeout_s)
    async with around, AsyncEmbedded(running, timeout_s=timeout_s, retries=retries) as here:
        yield here


def _made(directory: str | None, values: Mapping[str, Any] | None, config: str | None) -> Running:
    """A server that is not started. Raises ConfigError."""
    flags = dict(values or {})
    if directory is not None:
        return Running(load_settings(config, flags | {"storage.data_dir": directory}), RealFileSystem())
    settings = for_memory(load_settings(config, flags))
    return Running(settings, MemoryFileSystem(settings.storage.memory_bytes_max))
