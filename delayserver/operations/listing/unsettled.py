"""Which messages of a list have no outcome."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.messages.message_states import MessageStates
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.fair_turns import Work
from store.logs.due_windows import day_starts, window_starts
from store.records.batches import I64
from store.tables.days import DayTable

WINDOW_ITEMS: Final = 16
"""What a look at a window costs, in items."""

_TOO_LATE: Final = int(Outcome.TOO_LATE)


class Unsettled:
    """Looks outcomes up."""

    def __init__(self, states: MessageStates, days: DayTable, window_ms: int) -> None:
        self._states = states
        self._days = days
        self._window_ms = window_ms

    async def mask(self, due_ms: I64, sequence: I64, work: Work) -> NDArray[np.bool_]:
        """True for messages without an outcome, bool[n]. Where damage hides outcomes, that may not be so."""
        code = np.zeros(len(sequence), np.uint8)
        starts = window_starts(due_ms, self._window_ms)
        coarse = self._days.in_day_files(due_ms)
        if coarse is not None:
            starts = np.where(coarse, day_starts(due_ms), starts)
        for start in np.unique(starts).tolist():
            await work.items(WINDOW_ITEMS)
            mine = np.flatnonzero(starts == start)
            code[mine] = await self._states.outcomes(start, sequence[mine])
        is_open: NDArray[np.bool_] = (code == 0) | (code == _TOO_LATE)
        return is_open
