"""The due times that a tool looks at."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64


@dataclass(frozen=True, slots=True)
class Range:
    """Due times looked at: [from_ms, to_ms), whole windows."""

    from_ms: int = 0
    to_ms: int = 1 << 62

    @property
    def everything(self) -> bool:
        """Whether nothing is left out."""
        return self.from_ms == 0 and self.to_ms == 1 << 62

    def holds(self, start_ms: int, span_ms: int) -> bool:
        """Whether a window or day has a part in the range."""
        return start_ms < self.to_ms and start_ms + span_ms > self.from_ms

    def mask(self, due_ms: I64) -> NDArray[np.bool_]:
        """Rows in the range, bool[n]."""
        if self.everything:
            return np.ones(len(due_ms), np.bool_)
        mask: NDArray[np.bool_] = (due_ms >= self.from_ms) & (due_ms < self.to_ms)
        return mask
