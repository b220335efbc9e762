"""The leases of deliveries that a consumer or its caller has, and which of them shall be extended. No I/O."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Final

from delayserver.client.consuming.extending import EXTENDED_PART

_PRUNE_MIN: Final = 256


class Held:
    """The lease of one delivery. Only its `Received` refers to it, so it ends when the caller drops that. ``began_s``: when
    the caller got it; None before.
    """

    __slots__ = ("__weakref__", "began_s", "ends_s", "number")

    def __init__(self, number: int, ends_s: float) -> None:
        self.number = number
        self.began_s: float | None = None
        self.ends_s = ends_s

    @property
    def settled(self) -> bool:
        """Whether the caller has settled the delivery, or the node has ended its lease."""
        return not self.ends_s

    @property
    def in_work(self) -> bool:
        """Whether the lease shall go on."""
        return bool(self.ends_s)

    def begin(self, now_s: float) -> None:
        """The caller gets the delivery."""
        self.began_s = now_s

    def extend(self, ends_s: float) -> None:
        """The lease ends at this time."""
        self.ends_s = ends_s

    def lose(self) -> None:
        """The node has ended the lease."""
        self.ends_s = 0.0

    def settle(self) -> None:
        """The delivery is settled."""
        self.ends_s = 0.0


class HeldLeases:
    """The leases of one subject at one node. ``connection``: the number of the connection to which all of them belong."""

    def __init__(self, subject: str, ack_timeout_s: float, extend_max_s: float) -> None:
        self.subject = subject
        self._ack_timeout_s = ack_timeout_s
        self._extend_max_s = extend_max_s
        self._leases: list[weakref.ref[Held]] = []
        self._prune_at = _PRUNE_MIN
        self.connection = 0

    def __repr__(self) -> str:
        return f"HeldLeases({self.subject!r})"

    def __len__(self) -> int:
        """Leases that may have ended are counted, until there are twice as many as at the last look."""
        return len(self._leases)

    def add(self, held: Sequence[Held], connection: int, now_s: float) -> None:
        """Deliveries came over this connection."""
        if not self._leases:
            self.belong(connection)
        self._leases += map(weakref.ref, held)
        if len(self._leases) >= self._prune_at:
            self.known(now_s)

    def belong(self, connection: int) -> None:
        """All leases belong to this connection."""
        self.connection = connection

    def due(self, now_s: float) -> list[Held]:
        """The leases of the caller that shall be extended now."""
        soon_s, begun_s = now_s + EXTENDED_PART * self._ack_timeout_s, now_s - self._extend_max_s
        return [
            held
            for held in self.known(now_s)
            if held.ends_s < soon_s and held.began_s is not None and held.began_s > begun_s
        ]

    def known(self, now_s: float) -> list[Held]:
        """The leases to take over to another connection; forgets the others. A caller that hangs loses them."""
        begun_s = now_s - max(self._extend_max_s, self._ack_timeout_s)
        held = [one for each in self._leases if (one := each()) is not None]
        held = [each for each in held if each.ends_s > now_s and (each.began_s is None or each.began_s > begun_s)]
        self._leases = [weakref.ref(each) for each in held]
        self._prune_at = max(_PRUNE_MIN, 2 * len(self._leases))
        return held
