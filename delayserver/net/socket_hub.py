"""Reads all accepted sockets of a listener in one task: whatever has arrived is handed on in one step.

A task for each connection costs a pass of the event loop for each request. Here one pass serves all connections that
are ready, and what they sent becomes one group of the commit, at the end of the same step. Where a step leaves nothing
for other tasks to do, the next one follows without a pass of the event loop, if a request is there or comes at once:
a pass, and waking up from a sleep, take longer than an answer.
"""

from __future__ import annotations

import select
from collections.abc import Callable

import trio

# Connections served in one step; with more of them ready, other tasks run in between.
READY_MAX = 64
# Steps in a row before other tasks run: two or three milliseconds.
STEPS_MAX = 8
# A client that sends the next request when it has its answer takes a hundred microseconds for it; a look takes half of one.
LOOKS = 300
# Where none comes so soon, the next looks are left out: after n failures in a row 2^n of them.
FAILURES_MAX = 6


class SocketHub:
    """Knows which sockets are read, and by whom. Linux: an epoll instance that trio waits for as a whole."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._readers: dict[int, Callable[[], None]] = {}
        # The most that is read of one socket in the present step.
        self.read_bytes = 0
        self._failures = 0
        self._left_out = 0
        # The descriptor that was read alone in the last step, -1 where it was none or several.
        self._alone = -1

    def add(self, fd: int, read: Callable[[], None]) -> None:
        """Call `read` in a step whenever the socket can be read."""
        self._readers[fd] = read
        self._epoll.register(fd, select.EPOLLIN)

    def pause(self, fd: int, ended: Callable[[], None]) -> None:
        """Read a socket that was added no more for now. `ended` is called in a step when its peer has closed or is gone."""
        if fd in self._readers:
            self._readers[fd] = ended
            self._epoll.modify(fd, select.EPOLLRDHUP)

    def resume(self, fd: int, read: Callable[[], None]) -> None:
        """Read a paused socket again; what has arrived meanwhile comes in the next step."""
        if fd in self._readers:
            self._readers[fd] = read
            self._epoll.modify(fd, select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Read it no more; idempotent. To be called before the socket is closed."""
        if self._readers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    async def run(self, begin_step: Callable[[], int], end_step: Callable[[], bool]) -> None:
        """Read until cancelled, with `begin_step` before and `end_step` after all that one step reads. `begin_step` says how
        many bytes are read of one socket, `end_step` whether everything is done, with nothing left to other tasks."""
        while True:
            await trio.lowlevel.wait_readable(self._epoll)
            ready = self._epoll.poll(0, READY_MAX)
            while ready and self._steps(ready, begin_step, end_step):
                await trio.lowlevel.checkpoint()  # half of what another wait costs
                ready = self._epoll.poll(0, READY_MAX)

    def _steps(self, ready: list[tuple[int, int]], begin_step: Callable[[], int], end_step: Callable[[], bool]) -> bool:
        """Steps in a row, from who is ready on. False where nobody was ready for another one."""
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
        """Read who is ready, and who became ready meanwhile, each of them once: what a group costs does not depend much on
        how many are in it."""
        readers = self._readers
        seen: set[int] = set()
        while ready:
            for fd, _ in ready:
                seen.add(fd)
                read = readers.get(fd)  # an earlier one of the same step may have closed it
                if read is not None:
                    read()
            if len(seen) >= min(len(readers), READY_MAX):
                return
            ready = [each for each in self._epoll.poll(0, READY_MAX) if each[0] not in seen]

    def _soon_ready(self, before: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Who can be read now; or within a moment, where one client alone sends one request after the other. Among several
        the time is theirs."""
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
        """Close; the sockets stay open, and nobody reads them any more."""
        self._readers.clear()
        if not self._epoll.closed:
            trio.lowlevel.notify_closing(self._epoll)
            self._epoll.close()
