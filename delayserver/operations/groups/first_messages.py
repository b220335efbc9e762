"""Waits for the first message of a subject: pulls and reads of a subject that nobody has sent to yet.

They wait within the same bounds as those of a known subject: of the node, and of one consumer group.
"""

from __future__ import annotations

from collections import Counter

from delayserver.broker.service.local_broker import LocalBroker
from delayserver.config.settings import BrokerSettings
from delayserver.names.name_desk import NameDesk
from delayserver.protocol.errors import QueueFull
from delayserver.runtime.runtime import Runtime


class FirstMessages:
    """The waits, counted by subject and group."""

    def __init__(self, broker: LocalBroker, names: NameDesk, settings: BrokerSettings, runtime: Runtime) -> None:
        self._broker = broker
        self._names = names
        self._settings = settings
        self._clock = runtime.clock
        # By the names of subject and group; "" for reads, which have no group.
        self._waiting: Counter[tuple[str, str]] = Counter()
        self.waiting = 0

    def require_place(self) -> None:
        """Raises QueueFull if the node has as many waiting pulls and reads as it may."""
        broker = self._broker
        if self.waiting + broker.pulls.waiting + broker.lookers.waiting >= self._settings.waiting_pulls_max:
            raise QueueFull("too many pulls wait already; pull again later, or raise waiting_pulls_max")

    async def wait(self, subject: str, group: str, wait_ms: int) -> tuple[int, int]:
        """Waits for the first message of a subject. Its code, 0 if none comes in time, and the milliseconds left. Raises
        QueueFull."""
        if not wait_ms:
            return 0, 0
        self.require_place()
        key = (subject, group)
        if group and self._waiting[key] >= self._settings.mailbox_pulls_max:
            raise QueueFull(
                "too many pulls of this group wait already; pull again later, or raise broker.mailbox_pulls_max"
            )
        began_us = self._clock.monotonic_us()
        self._waiting[key] += 1
        self.waiting += 1
        try:
            code = await self._names.first_message(subject, wait_ms)
        finally:
            self.waiting -= 1
            self._waiting[key] -= 1
            if not self._waiting[key]:
                del self._waiting[key]
        return code, max(wait_ms - (self._clock.monotonic_us() - began_us) // 1000, 0)
