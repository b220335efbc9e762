"""Which rows of an uncertain hand-off are stored already. The keys of a window may have to be read from the store first.

A window's keys are read as they lie in the store at one moment. What is stored for the window later, while the read runs
or while another window is read, is compared in the step that stores it. So the answer is true in the step that uses it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.broker.actions.delivered_batch import KnownKeys, contains, delivery_keys, window_keys
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.queues.window_table import Window, by_window
from delayserver.broker.reads import KEYS, ReadPlan, Steps
from store.records.batches import I64, StoredBatch

# So often a hand-over fails where the disk cannot read the keys of a window. Its server pauses before each further one, some
# seconds for all of these.
READ_TRIES = 5


class Presence:
    """The check of one batch."""

    def __init__(self, batch: StoredBatch) -> None:
        self._keys = delivery_keys(batch.sequence, batch.redelivery)
        self._rows: dict[Window, Any] = {
            window: slice(None) if rows is None else rows
            for window, rows in by_window(batch.server_id, batch.window_ms)
        }
        self.present = np.zeros(len(batch), bool)
        self._read: set[Window] = set()

    def add_stored(self, batch: StoredBatch) -> None:
        """Marks rows as present that were stored while the check goes on."""
        keys = delivery_keys(batch.sequence, batch.redelivery)
        for window, rows in by_window(batch.server_id, batch.window_ms):
            if window in self._rows:
                place = self._rows[window]
                self.present[place] |= np.isin(self._keys[place], keys if rows is None else keys[rows])

    def look(self, state: BrokerState, known: KnownKeys) -> Steps[None]:
        """Compare with everything that is stored. Raises StoreError if the disk fails."""
        for window, place in self._rows.items():
            while (found := known.present(window, self._keys[place])) is None and window not in self._read:
                if not state.windows.of(window):  # nothing of it is stored, as of most windows after a downtime
                    known.begin(window)
                    known.finish(window, [])
                    continue
                yield self._plan(state, known, window)
                state.files.reads.find(KEYS, window)  # raises the error of the read
            if found is not None:
                self.present[place] |= found

    def _plan(self, state: BrokerState, known: KnownKeys, window: Window) -> ReadPlan:
        """A read of the window's keys. Messages of damaged records are stored again: no consumer can pull those. The first
        times that the disk cannot read them, the plan fails: later it may."""
        place = self._rows[window]
        keys, rows_max = self._keys[place], known.rows_max
        spans = [(extent.start, extent.stop) for extent in state.windows.of(window)]
        told: list[str] = []
        first = max(min([start for start, _ in spans], default=state.files.store.end), state.files.store.first)
        patient = state.files.reads.failures(KEYS, first) + 1 < READ_TRIES

        def read() -> dict[str, Any]:
            found = np.zeros(len(keys), bool)
            parts: list[I64] | None = []
            rows = 0
            for start, stop in spans:
                records = state.files.store.readable_columns(start, stop, told.append, patient=patient)
                for part in window_keys((record.columns for record in records), window):
                    found |= contains(part, keys)
                    rows += len(part)
                    parts = None if parts is None or rows > rows_max else [*parts, part]
            return {"found": found, "parts": parts}

        def put(result: dict[str, Any]) -> None:
            for text in told:
                state.damages.add(text)
            known.finish(window, result.get("parts"))
            if result:
                self._mark(window, place, result["found"])

        known.begin(window)
        return ReadPlan(KEYS, window, (first, state.files.store.end), state.limits.read_ahead_bytes, read, put)

    def _mark(self, window: Window, place: Any, found: NDArray[np.bool_]) -> None:
        self.present[place] |= found
        self._read.add(window)
