"""Reads without a group that wait for the next message of a subject. They lease nothing, so they need no order."""

from __future__ import annotations

from collections.abc import Iterable

import trio

from delayserver.broker.queues.queue import QueueKey


class Lookers:
    """An event for each subject that a read waits for."""

    def __init__(self) -> None:
        self._events: dict[int, trio.Event] = {}
        self.waiting = 0

    def wake(self, keys: Iterable[QueueKey]) -> None:
        """Wakes the reads of queues with new messages (`Delivered.arrived`)."""
        if not self._events:
            return
        for subject, target_group in keys:
            event = None if target_group else self._events.pop(subject, None)
            if event is not None:
                event.set()

    async def wait(self, subject: int, wait_ms: int) -> None:
        """Wait until a message of the subject arrives, at most `wait_ms`."""
        event = self._events.setdefault(subject, trio.Event())
        self.waiting += 1
        try:
            with trio.move_on_after(wait_ms / 1000):
                await event.wait()
        finally:
            self.waiting -= 1
            if not event.is_set() and not event.statistics().tasks_waiting:
                self._events.pop(subject, None)
