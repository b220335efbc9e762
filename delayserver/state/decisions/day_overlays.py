"""Outcomes that messages of a draining day got while they lay in the file of the day (cancels, suppressed copies).

They move to the minutes when the day is drained. Until then the files of the minutes do not have them. A part that asks
whether a message of such a day is decided asks here too. Writers: `DayOutcomes`; `DayEnd` removes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.outcomes import Outcome
from store.indexes.outcome_index import OutcomeIndex
from store.logs.due_windows import day_of
from store.records.batches import I64, U8

_TOO_LATE = np.uint8(Outcome.TOO_LATE)


class DayOverlays:
    """Outcomes by day. For the event loop."""

    __slots__ = ("_indexes", "_unknown")

    def __init__(self) -> None:
        self._indexes: dict[int, OutcomeIndex] = {}
        # Days whose coarse outcomes cannot be read, up to the sequence at which they were sealed.
        self._unknown: dict[int, int] = {}

    def __contains__(self, start_ms: int) -> bool:
        """Whether the outcomes of this day are here, or known to be hidden."""
        return start_ms in self._indexes or start_ms in self._unknown

    def __bool__(self) -> bool:
        """Whether there is any such day."""
        return bool(self._indexes or self._unknown)

    def put(self, start_ms: int, index: OutcomeIndex) -> None:
        """The outcomes of a sealed day, as far as they can be read. No part adds to them any more."""
        self._indexes[start_ms] = index

    def hide(self, start_ms: int, sealed_at: int) -> None:
        """Some outcomes of a day cannot be read: a message up to this sequence may have one that is not here."""
        self._unknown[start_ms] = sealed_at

    def show(self, start_ms: int) -> None:
        """Shows the outcomes of the day again: all of them are known."""
        self._unknown.pop(start_ms, None)

    def remove(self, start_ms: int) -> None:
        """The day is drained: its outcomes lie in the files of the minutes."""
        self._indexes.pop(start_ms, None)

    def outcomes(self, start_ms: int, sequences: I64) -> U8:
        """Outcome codes u8[n] of messages of one window, of what they got while they were coarse; 0 for none, `too_late`
        where damage hides them."""
        index = self._indexes.get(day_of(start_ms))
        codes = np.zeros(len(sequences), dtype=np.uint8) if index is None else index.lookup(sequences)
        sealed_at = self._unknown.get(day_of(start_ms))
        if sealed_at is not None:
            codes[(codes == 0) & (sequences <= sealed_at)] = _TOO_LATE
        return codes

    def not_done(self, start_ms: int, sequences: I64) -> NDArray[np.bool_]:
        """True where a message of one window has no such outcome, bool[n]."""
        undone: NDArray[np.bool_] = self.outcomes(start_ms, sequences) == 0
        return undone

    def check_invariants(self) -> None:
        """Days bear their starts."""
        assert all(day_of(start) == start for start in {*self._indexes, *self._unknown})
