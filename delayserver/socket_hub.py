"""Reads all accepted sockets of a listener in one task: whatever has arrived is handed on in one step.

A task for each connection costs a pass of the event loop for each request. Here one pass serves all connections that
are ready, and what they sent becomes one group of the commit, at the end of the same step.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

# Connections served in one step; with more of them ready, other tasks run in between.
READY_MAX = 64


class SocketHub:
    """Knows which sockets are read, and by whom. Linux: an epoll instance that trio waits for as a whole."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}

    def add(self, fd: int, read: Callable[[], None]) -> None:
        """Call `read` in a step whenever the socket can be read."""
        self._readers[fd] = read
        self._epoll.register(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Read it no more; idempotent. To be called before the socket is closed."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    async def run(self, begin_step: Callable[[], None], end_step: Callable[[], None]) -> None:
        """Read until cancelled, with `begin_step` before and `end_step` after all that one step reads."""
        readers = self._readers
        while True:
            await trio.lowlevel.wait_readable(self._epoll)
            begin_step()
            try:
                for fd, _ in self._epoll.poll(0, READY_MAX):
                    read = readers.get(fd)  # an earlier one of the same step may have closed it
                    if read is not None:
                        read()
            finally:
                end_step()

    def close(self) -> None:
        """Close; the sockets stay open, and nobody reads them any more."""
        self._readers.clear()
        if not self._epoll.closed:
            trio.lowlevel.notify_closing(self._epoll)
            self._epoll.close()
