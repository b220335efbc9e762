"""Up to which due time a primary attempts, by its beats that came back."""

from __future__ import annotations

from delayserver.runtime.marks import Bell
from delayserver.state.shard.leading import Leading


class LeaderHorizon:
    """The `Horizon` of a member. A message that is due later is attempted by none: the next primary may believe that it was
    not. Writer: `Beating`."""

    __slots__ = ("_horizon_ms", "_leading", "earlier")

    def __init__(self, leading: Leading, earlier: Bell) -> None:
        """`earlier` is rung by each beat that came back."""
        self._leading = leading
        self._horizon_ms = 0
        self.earlier = earlier

    @property
    def due_ms(self) -> int:
        """See `Horizon`. Nothing may be attempted when the lease has ended."""
        return self._horizon_ms if self._leading.left_us else 0

    def move(self, horizon_ms: int) -> None:
        """A beat came back, with this horizon or after one with it."""
        self._horizon_ms = horizon_ms
        self.earlier.ring()
