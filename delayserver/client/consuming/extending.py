"""The requests that extend leases at a node. `LeaseKeeper` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import anyio

from delayserver.client.asynchronous.client import AsyncClient

EXTENDED_PART: Final = 2 / 3
"""A lease is extended when less than this part of it is left. So there is time for further attempts if one fails."""

KEPT_PART: Final = 0.5
"""A delivery waits in a consumer or listener for at most this part of its lease. Its caller or handler needs the rest."""

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

    @property
    def in_work(self) -> bool:
        """Whether it is still worked on, and so needs an extension."""

    @property
    def settled(self) -> bool:
        """Whether its ack or nack is at the node."""

    def extend(self, ends_s: float) -> None:
        """Its lease ends at this time."""

    def lose(self) -> None:
        """The node has ended its lease."""


@dataclass(frozen=True, slots=True)
class Extension:
    """Leases of one subject and group at a node. ``outlive_s``: they end so long after their connection; None: they outlive
    it.
    """

    subject: str
    group: str
    ack_timeout_s: float
    leases: Sequence[Lease]
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
        """Extend the leases in work; returns how many. A lease that has ended gets the present time as its end.

        With ``adopts`` all that are not settled are extended, and those that have ended are lost. The node says how many
        have ended, not which. So halves are asked for until that is known. Raises the errors of `AsyncClient.extend`; leases
        of earlier requests are extended then.
        """

        def left(leases: Sequence[Lease]) -> list[Lease]:
            return [lease for lease in leases if (not lease.settled if adopts else lease.in_work)]

        parts, extended = [self.leases], 0
        while parts:
            part = left(parts.pop())
            if not part:
                continue
            asked_s = anyio.current_time()
            numbers = [lease.number for lease in part]
            result = await node.extend(
                self.subject, self.group, numbers, ack_timeout_s=self.ack_timeout_s, outlive_s=self.outlive_s
            )
            if not result.unknown:
                extended += len(part)
                for lease in left(part):
                    lease.extend(asked_s + self.ack_timeout_s)
            elif result.unknown == len(part):
                for lease in left(part):
                    lease.lose() if adopts else lease.extend(anyio.current_time())
            else:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        return extended
