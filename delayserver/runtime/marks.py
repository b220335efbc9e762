"""Numbers that only grow, and bells: how a part waits for what another part has done, without knowing that part.

Both are for the event loop. A mark has one writer; a bell may be rung by many and is waited for by one task.
"""

from __future__ import annotations

import trio


class Bell:
    """A task hushes the bell, looks at what there is to do, and waits: a ring since the hush ends the wait at once."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        """There may be something to do."""
        self._event.set()

    def hush(self) -> None:
        """Forget the rings up to now. To be called before the task looks at what there is to do."""
        if self._event.is_set():
            self._event = trio.Event()

    @property
    def is_rung(self) -> bool:
        """Whether the bell was rung since the last hush."""
        return self._event.is_set()

    async def rung(self) -> None:
        """Return when the bell was rung since the last hush."""
        await self._event.wait()


class Mark:
    """A number that only grows. Parts read `value`, or wait until it has reached what they need."""

    __slots__ = ("_waiters", "_wanted", "value")

    def __init__(self, value: int, wanted: Bell | None = None) -> None:
        """`wanted` is rung when a part begins to wait, for a writer that would take its time otherwise."""
        self.value = value
        self._wanted = wanted
        self._waiters: list[tuple[int, trio.Event]] = []

    def advance(self, value: int) -> None:
        """The one writer came as far as `value`; a lower value changes nothing."""
        if value <= self.value:
            return
        self.value = value
        if self._waiters:
            for needed, event in self._waiters:
                if needed <= value:
                    event.set()
            self._waiters = [waiter for waiter in self._waiters if waiter[0] > value]

    @property
    def awaited(self) -> bool:
        """Whether a part waits for a higher value."""
        return bool(self._waiters)

    async def reached(self, value: int) -> None:
        """Return when the mark has come as far as `value`; at once if it has."""
        if value <= self.value:
            return
        waiter = (value, trio.Event())
        self._waiters.append(waiter)
        if self._wanted is not None:
            self._wanted.ring()
        try:
            await waiter[1].wait()
        except BaseException:
            if waiter in self._waiters:
                self._waiters.remove(waiter)
            raise

    def check_invariants(self) -> None:
        """A part waits only for what was not reached."""
        assert all(needed > self.value and not event.is_set() for needed, event in self._waiters)
