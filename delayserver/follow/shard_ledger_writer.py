"""Makes the retirement of windows a record of the shared log: the `LedgerWriter` of a member.

All members enter the same windows at the same place of the log, so whether a message is a copy is the same on all of them.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from delayserver.follow.proposing import Proposing
from delayserver.logs.events import EventLogger
from delayserver.state.positions.positions import Positions
from store.records.batches import LedgerBatch

ROWS_MAX = 300_000
"""Rows of one proposal: a row has 80 bytes, and a record of the log at most 32 MiB."""

events = EventLogger()


class ShardLedgerWriter:
    """Proposes what this process counted as the primary. The replay enters it in the ledger."""

    def __init__(self, proposing: Proposing, positions: Positions) -> None:
        self._proposing = proposing
        self._positions = positions
        self._counted: list[LedgerBatch] = []

    @property
    def decides(self) -> bool:
        """Only the primary."""
        return self._proposing.decides

    def append(self, counted: LedgerBatch) -> None:
        """As `LedgerWriter.append`; never raises."""
        self._counted.append(counted)

    async def finish(self) -> None:
        """As `LedgerWriter.finish`. A full disk is waited for, as for all that is replayed."""
        counted, self._counted = self._counted, []
        for rows in counted:
            for part in _parts(rows):  # one by one: a whole day has megabytes
                end = await self._proposing.decide([part])
                await self._positions.replayed.reached(end)


def _parts(counted: LedgerBatch) -> Iterator[LedgerBatch]:
    """The rows in parts that the log takes, each of whole windows: the counts of a window replace those that it had.

    None where one window has too many subjects: it is not retired, and keeps its files."""
    if len(counted) <= ROWS_MAX:
        yield counted
        return
    starts = np.flatnonzero(np.diff(counted.start_ms, prepend=counted.start_ms[0] - 1))
    bounds = [*starts.tolist(), len(counted)]
    longest = int(np.diff(bounds).max())
    if longest > ROWS_MAX:
        events.warning(
            "window_too_large",
            "a window has {subjects} subjects, and one record of the shared log takes {most}: it is not retired",
            subjects=longest,
            most=ROWS_MAX,
        )
        return
    first = 0
    for stop, following in zip(bounds[1:], [*bounds[2:], len(counted) + ROWS_MAX + 1], strict=True):
        if following - first > ROWS_MAX:
            yield counted.slice(first, stop)
            first = stop
