"""Marks and bells: how a part waits for the progress of another part without knowing it.

Both are for the event loop. A mark is a number that only grows, and has one writer. Many parts may ring a bell, and one
task waits for it.
"""

from __future__ import annotations

from collections.abc import Callable

import trio


class Bell:
    """A task hushes the bell, looks for work, and waits. A ring since the hush ends the wait at once."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        """Wake the task: there may be work."""
        self._event.set()

    def hush(self) -> None:
        """Forget the rings up to now. To be called before the task looks for work."""
        if self._event.is_set():
            self._event = trio.Event()

    @property
    def is_rung(self) -> bool:
        """Whether the bell was rung since the last hush."""
        return self._event.is_set()

    async def rung(self) -> None:
        """Return when the bell has been rung since the last hush."""
        await self._event.wait()


class Mark:
    """A number that only grows. Parts read `value`, or wait until it has reached the value that they need."""

    __slots__ = ("_waiters", "_wanted", "value")

    def __init__(self, value: int, wanted: Bell | None = None) -> None:
        """`wanted` is rung when a part begins to wait, so that the writer hurries."""
        self.value = value
        self._wanted = wanted
        # The value that each waits for, and what wakes it.
        self._waiters: list[tuple[int, Callable[[], object]]] = []

    def advance(self, value: int) -> None:
        """Raise the mark to `value`, and wake the parts that it reaches. A lower value changes nothing."""
        if value <= self.value:
            return
        self.value = value
        if self._waiters:
            for needed, wake in self._waiters:
                if needed <= value:
                    wake()
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > value]

    @property
    def awaited(self) -> bool:
        """Whether a part waits for a higher value."""
        return bool(self._waiters)

    async def reached(self, value: int) -> None:
        """Return when the mark has reached `value`; at once if it already has."""
        if value <= self.value:
            return
        reached = trio.Event()
        waiter = (value, reached.set)
        self._waiters.append(waiter)
        if self._wanted is not None:
            self._wanted.ring()
        try:
            await reached.wait()
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def ring_at(self, value: int, bell: Bell) -> None:
        """Ring a bell once when the mark reaches `value`, for a task that waits for more than this mark. It is noted once,
        however often a task asks; nothing happens if the mark has reached it."""
        waiter = (value, bell.ring)
        if value > self.value and waiter not in self._waiters:
            self._waiters.append(waiter)
            if self._wanted is not None:
                self._wanted.ring()

    def call_at(self, value: int, action: Callable[[], object]) -> None:
        """Call an action once, in the step in which the mark reaches `value`, which it has not yet."""
        assert value > self.value
        self._waiters.append((value, action))

    def check_invariants(self) -> None:
        """Parts wait only for values above the mark."""
        assert all(needed > self.value for needed, _ in self._waiters)
