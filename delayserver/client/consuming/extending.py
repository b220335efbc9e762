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
"""Leases are looked at this often, or ten times in a shorter lease."""


class Lease(Protocol):
    """A delivery that is worked on."""

    @property
    def number(self) -> int:
        """The number of the delivery."""

    def extend(self, ends_s: float) -> None:
        """Its lease ends at this time."""


L = TypeVar("L", bound=Lease)


@dataclass(frozen=True, slots=True)
class Extension(Generic[L]):
    """Leases of one subject and group at a node. `alive` gives those that are still worked on."""

    subject: str
    group: str
    ack_timeout_s: float
    leases: Sequence[L]
    alive: Callable[[Sequence[L]], list[L]]

    async def make(self, node: AsyncClient) -> int:
        """Extend the leases; returns how many. A lease that has ended gets the present time as its end.

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
            result = await node.extend(self.subject, self.group, numbers, ack_timeout_s=self.ack_timeout_s)
            if not result.unknown:
                extended += len(part)
                for lease in self.alive(part):
                    lease.extend(asked_s + self.ack_timeout_s)
            elif result.unknown == len(part):
                for lease in self.alive(part):
                    lease.extend(anyio.current_time())
            else:
                half = len(part) // 2
                parts += [part[half:], part[:half]]
        return extended
