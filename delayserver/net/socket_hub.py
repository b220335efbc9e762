"""Reads all accepted sockets of a listener in one task, many of them in one step.

A task for each connection would cost an event-loop iteration for each request. Here one step reads all connections
that are ready, and their requests become one group of the group commit, at the end of the step. If a step leaves no
work to other tasks and the next request is there or comes at once, the next step follows in the same iteration.
An iteration, and waking up from a sleep, take longer than an answer.

At most eight steps follow each other so. The hub waits a moment for a lone client.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

# Connections read in one step. If more are ready, other tasks run in between.
READY_MAX = 64
# Steps in a row before other tasks run: two or three milliseconds.
STEPS_MAX = 8
# A client takes 100 µs to send its next request after an answer. One look takes half a microsecond.
LOOKS = 300
# After n times in a row without a request, the next 2^n times are left out. This bounds n.
FAILURES_MAX = 6


class SocketHub:
    """The sockets to read and their callbacks. Linux only: an epoll instance that trio waits for as a whole."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        # How many bytes the present step reads from one socket at most.
        self.read_bytes = 0
        self._failures = 0
        self._left_out = 0
        # The only descriptor that was ready for the last step; -1 if there were several.
        self._alone = -1

    def add(self, fd: int, read: Callable[[], None]) -> None:
        """Call `read` in a step whenever the socket is readable. Nothing, behind `close`: a connection may come in the step
        that ends its server, and is ended with the others."""
        if self._epoll.closed:
            return
        self._readers[fd] = read
        self._epoll.register(fd, select.EPOLLIN)

    def pause(self, fd: int, ended: Callable[[], None]) -> None:
        """Stop reading a socket for now. A step calls `ended` when its peer has closed or is gone."""
        if fd in self._readers:
            self._readers[fd] = ended
            self._epoll.modify(fd, select.EPOLLRDHUP)

    def resume(self, fd: int, read: Callable[[], None]) -> None:
        """Read a paused socket again. The next step reads the bytes that have arrived meanwhile."""
        if fd in self._readers:
            self._readers[fd] = read
            self._epoll.modify(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Stop reading a socket; idempotent. To be called before the socket is closed."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    async def run(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> None:
        """Read until cancelled. `begin_step` is called before each step, `end_step` after it.

        `begin_step` returns how many bytes to read from one socket at most. `end_step` returns True if the step left no
        work to other tasks."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll)
            ready = self._epoll.poll(0, READY_MAX)
            while ready and self._steps(ready, begin_step, end_step):
                await trio.lowlevel.checkpoint()  # half of what another wait costs
                ready = self._epoll.poll(0, READY_MAX)

    def _steps(self, ready: list[tuple[int, int]], begin_step: Callable[[], int], end_step: Callable[[], bool]) -> bool:
        """Run steps in a row, the first one for the `ready` sockets. False if no socket was ready for another step."""
        for _ in range(STEPS_MAX):
            self.read_bytes = begin_step()
            try:
                self._read(ready)
            finally:
                done = end_step()
            if not done:
                return True
            ready = self._soon_ready(ready)
            if not ready:
                return False
        return True

    def _read(self, ready: list[tuple[int, int]]) -> None:
        """Read the ready sockets, and those that become ready meanwhile, each once: the cost of a commit group hardly
        depends on its size."""
        readers = self._readers
        seen: set[int] = set()
        while ready:
            for fd, _ in ready:
                seen.add(fd)
                read = readers.get(fd)  # an earlier callback of the same step may have removed it
                if read is not None:
                    read()
            if len(seen) >= min(len(readers), READY_MAX):
                return
            ready = [each for each in self._epoll.poll(0, READY_MAX) if each[0] not in seen]

    def _soon_ready(self, before: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """The sockets that are ready now. If one client alone sends request after request, look a moment longer for its
        next one. With several clients that time would be taken from the others."""
        poll = self._epoll.poll
        alone, self._alone = self._alone, before[0][0] if len(before) == 1 else -1
        ready = poll(0, READY_MAX)
        if ready or alone != self._alone or alone < 0:
            return ready
        if self._left_out:
            self._left_out -= 1
            return ready
        for _ in range(LOOKS):
            ready = poll(0, READY_MAX)
            if ready:
                self._failures = 0
                return ready
        self._failures = min(self._failures + 1, FAILURES_MAX)
        self._left_out = 1 << self._failures
        return ready

    def close(self) -> None:
        """Stop reading all sockets. They stay open."""
        self._readers.clear()
        if not self._epoll.closed:
            trio.lowlevel.notify_closing(self._epoll)
            self._epoll.close()
