"""The leases of deliveries that the caller of a consumer has, and which of them shall be extended. No I/O."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final

from delayserver.client.consuming.extending import EXTENDED_PART

_PRUNE_MIN: Final = 256


class Held:
    """The lease of one delivery. Only its `Received` refers to it, so it ends when the caller drops that."""

    __slots__ = ("__weakref__", "began_s", "ends_s", "number")

    def __init__(self, number: int, ends_s: float) -> None:
        self.number = number
        self.began_s = 0.0
        self.ends_s = ends_s

    def begin(self, now_s: float) -> None:
        """The caller gets the delivery."""
        self.began_s = now_s

    def extend(self, ends_s: float) -> None:
        """The lease ends at this time."""
        self.ends_s = ends_s

    def settle(self) -> None:
        """The delivery is settled."""
        self.ends_s = 0.0


class HeldLeases:
    """The leases of one node."""

    def __init__(self, ack_timeout_s: float, extend_max_s: float) -> None:
        self._ack_timeout_s = ack_timeout_s
        self._extend_max_s = extend_max_s
        self._leases: list[weakref.ref[Held]] = []
        self._prune_at = _PRUNE_MIN

    def __len__(self) -> int:
        """Leases that may have ended are counted, until there are twice as many as at the last look."""
        return len(self._leases)

    def add(self, held: Held, now_s: float) -> None:
        """The caller gets a delivery."""
        held.begin(now_s)
        self._leases.append(weakref.ref(held))
        if len(self._leases) >= self._prune_at:
            self._known(now_s)

    def due(self, now_s: float) -> list[Held]:
        """The leases that shall be extended now."""
        soon_s = now_s + EXTENDED_PART * self._ack_timeout_s
        return [held for held in self._known(now_s) if held.ends_s < soon_s]

    def _known(self, now_s: float) -> list[Held]:
        """The leases that may be extended; forgets the others."""
        begun_s = now_s - self._extend_max_s
        held = [one for each in self._leases if (one := each()) is not None]
        held = [each for each in held if each.ends_s > now_s and each.began_s > begun_s]
        self._leases = [weakref.ref(each) for each in held]
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._leases))
        return held


def unsettled(leases: Sequence[Held]) -> list[Held]:
    """Those whose deliveries the caller has not settled."""
    return [held for held in leases if held.ends_s]
