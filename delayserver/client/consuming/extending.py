"""Extends leases at a node for as long as their messages are worked on. `Consumer` and listeners share it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

import anyio

from delayserver.client.asynchronous.client import AsyncClient

EXTENDED_PART: Final = 2 / 3
"""A lease is extended when less than this part of it is left. So there is time for further attempts if one fails."""

LOOK_S: Final = 1.0
"""Leases are looked at this often, or ten times in a shorter lease, or five times in a shorter time to outlive."""

LOOK_MIN_S: Final = 0.05
"""Leases are not looked at more often because they outlive their connection for a very short time."""

OUTLIVE_S: Final = 5.0
"""The leases of consumers and listeners outlive their connection for so long. It is enough to connect again after a short
break, and to extend them over the new connection. After the end of a consumer its messages wait no longer."""


def look_interval_s(ack_timeout_s: float, outlive_s: float | None) -> float:
    """The pause between two looks at leases."""
    outlived_s = LOOK_S if not outlive_s else max(outlive_s / 5, LOOK_MIN_S)
    return min(LOOK_S, ack_timeout_s / 10, outlived_s)


class Lease(Protocol):
    """A delivery that is worked on."""

    @property
    def number(self) -> int:
        """The number of the delivery."""

    def extend(self, ends_s: float) -> None:
        """Its lease ends at this time."""

    def lose(self) -> None:
        """The node has ended its lease."""


L = TypeVar("L", bound=Lease)


@dataclass(frozen=True, slots=True)
class Extension(Generic[L]):
    """Leases of one subject and group at a node. `alive` gives those that are still worked on. ``outlive_s``: they end so
    long after their connection; None: they outlive it.
    """

    subject: str
    group: str
    ack_timeout_s: float
    leases: Sequence[L]
    alive: Callable[[Sequence[L]], list[L]]
    outlive_s: float | None

    async def adopt(self, node: AsyncClient) -> int:
        """Extend the leases over the present connection, or a new one, to which they belong then. Returns its number, or 0
        if some may belong to another one. Leases that have ended are lost. Raises as `make` does.
        """
        if not node.connection_number:
            await node.ping()  # it connects
        number = node.connection_number
        await self.make(node, adopts=True)
        return number if number == node.connection_number else 0

    async def make(self, node: AsyncClient, *, adopts: bool = False) -> int:
        """Extend the leases; returns how many. A lease that has ended gets the present time as its end, or is lost.

        The node says how many have ended, not which. So halves are asked for until that is known. Raises the errors of
        `AsyncClient.extend`; leases of earlier requests are extended then.
        """
        parts, extended = [self.leases], 0
        while parts:
            part = self.alive(parts.pop())
            if not part:
                continue
            asked_s = anyio.current_time()
            numbers = [lease.number for lease in part]
            result = await node.extend(
                self.subject, self.group, numbers, ack_timeout_s=self.ack_timeout_s, outlive_s=self.outlive_s
            )
            if not result.unknown:
                extended += len(part)
                for lease in self.alive(part):
                    lease.extend(asked_s + self.ack_timeout_s)
            elif result.unknown == len(part):
                for lease in self.alive(part):
                    lease.lose() if adopts else lease.extend(anyio.current_time())
            else:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        return extended
