"""The places a message can lie in, as one ascending table: windows (direct files) and coarse days.

A row of the message_log belongs to exactly one of them, by the state of the days alone (rule 5). The table says how far
each has come (its high-water mark), so that "must be there" is one comparison a row.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.fingerprint import Fingerprints
from store.logs.due_windows import day_of, day_starts, window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import I64

# A day is complete in its minutes: every record that belongs to it is there.
ALL_OF_IT = 1 << 62


class Units:
    """`codes` i64[m]: start_ms * 2, plus 1 for a day. `high_water` i64[m]: last sequence placed there.

    `skipped` bool[m]: nothing can be said (a file that could not be read as one of ours).
    """

    def __init__(self, taken: Capture) -> None:
        self._window_ms = taken.files.window_ms
        self._days = taken.tables.days
        codes = {unit_code(key) for key in taken.files.schedule if key.source != ScheduleSource.FROM_DAY}
        codes |= {day_of(key.start_ms) * 2 + 1 for key in taken.files.schedule if key.source == ScheduleSource.FROM_DAY}
        self.codes: I64 = np.array(sorted(codes), np.int64)
        self.high_water: I64 = np.zeros(len(codes), np.int64)
        self.skipped = np.zeros(len(codes), np.bool_)
        self.placed = Fingerprints(len(codes))
        ledger = taken.tables.ledger.windows() if taken.tables.ledger is not None else np.zeros((0, 2), np.int64)
        self.retired: I64 = ledger[ledger[:, 1] == 0, 0]
        self._ledger = taken.tables.ledger
        # The last sequence that the ledger counts for each of them, -1 until it is needed.
        self._retired_to: I64 = np.full(len(self.retired), -1, np.int64)

    def place(self, code: int) -> int:
        """Where a unit stands in the table."""
        return int(np.searchsorted(self.codes, code))

    def codes_of(self, due_ms: I64, sequence: I64) -> I64:
        """The unit of each message of the message_log, i64[n]."""
        codes: I64 = window_starts(due_ms, self._window_ms) * 2
        coarse = self._days.coarse_rows(due_ms, sequence) if self._days is not None and len(due_ms) else None
        return codes if coarse is None else np.where(coarse, day_starts(due_ms) * 2 + 1, codes)

    def places_of(self, codes: I64) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        """Place of each code intp[n], and whether it is in the table at all bool[n]."""
        if not len(self.codes):
            return np.zeros(len(codes), np.intp), np.zeros(len(codes), np.bool_)
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return places, self.codes[places] == codes

    def is_retired(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """Whether each row is among those that the ledger counts for its window, bool[n]: a message that came while its
        window was retired is behind them, and stays in the files."""
        if not len(self.retired):
            return np.zeros(len(due_ms), np.bool_)
        starts = window_starts(due_ms, self._window_ms)
        places = np.minimum(np.searchsorted(self.retired, starts), len(self.retired) - 1)
        found: NDArray[np.bool_] = self.retired[places] == starts
        for place in np.unique(places[found & (self._retired_to[places] < 0)]).tolist():
            self._retired_to[place] = self.retired_to(int(self.retired[place]))
        found &= sequence <= self._retired_to[places]
        return found

    def retired_to(self, start_ms: int) -> int:
        """The last sequence that the ledger counts for a window, 0 where it was never retired."""
        return self._ledger.last_sequence(start_ms) if self._ledger is not None else 0


def unit_code(key: ScheduleKey) -> int:
    """The unit of a schedule file that has the message_log as its source."""
    return key.start_ms * 2 + int(key.source == ScheduleSource.DAY)
