"""The round step that retires windows in a member of a cluster. Their counts are in the ledger already: see `Placing`."""

from __future__ import annotations

import numpy as np

from delayserver.state.replay_round import Round
from delayserver.state.windows.windows import Windows


class RetiredRounds:
    """Round → closed windows, and windows whose files retention removes."""

    def __init__(self, windows: Windows) -> None:
        self._closed = windows.closed
        self._retired = windows.retired

    def publish(self, done: Round) -> None:
        """Accept nothing more for the windows of a round. The primary has closed them before."""
        for batch in done.retired:
            starts: list[int] = np.unique(batch.start_ms).tolist()
            self._closed.close(starts)
            self._retired.entered.update(starts)
