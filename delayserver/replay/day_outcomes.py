"""The outcomes that messages of a sealed day got while they lay in its coarse file (cancels, suppressed copies).

They are read when the day is sealed, and at a start. They stay in the overlays until the day is drained: the loader and
cancel ask for them there.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial

import numpy as np

from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.day_overlays import DayOverlays
from delayserver.state.files import Files
from delayserver.state.windows.drains import Drains
from store.errors import CorruptionError, DiskError, FormatError, UnreadableError
from store.indexes.outcome_index import OutcomeIndex
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import window_starts
from store.records.batches import I64, OutcomeBatch
from store.tables.days import SealedDay

# The outcomes of a day and their end in its file, or the error of a disk that refused them.
ReadOutcomes = tuple[OutcomeIndex, int] | DiskError


class DayOutcomes:
    """Files of sealed days in dispatch_log → overlays. A day is held back while its outcomes cannot be read."""

    def __init__(self, files: Files, overlays: DayOverlays, drains: Drains, window_ms: int, runtime: Runtime) -> None:
        self._days = files.days
        self._dispatch = files.dispatch
        self._overlays = overlays
        self._drains = drains
        self._window_ms = window_ms
        self._workers = runtime.workers
        self._damage = runtime.damage
        # Days whose outcomes the disk refused to give: it is asked again.
        self._refused: set[int] = set()

    def open(self, *, patient: bool) -> I64:
        """After a start: read the outcomes of days in between. Returns how many of them a crash left in both places, by
        outcome (i64[16]).

        With `patient` raises UnreadableError where the disk cannot read outcomes; without, those of there count twice."""
        twice = np.zeros(16, dtype=np.int64)
        for day in self._days.draining():
            written = self._take(day, patient=patient)
            for start in np.unique(window_starts(written.due_ms, self._window_ms)).tolist():
                both = np.isin(written.sequence, self._of_minute(start, patient=patient).sequence)
                twice += np.bincount(written.outcome[both], minlength=16)
                moved = int(np.count_nonzero(both))
                self._drains.moved[day.start_ms] = self._drains.moved.get(day.start_ms, 0) + moved
        return twice

    def show(self, start_ms: int) -> None:
        """The logs have all outcomes of a day, and they can be read: the day is held back no more."""
        self._overlays.show(start_ms)
        self._drains.free(start_ms)

    async def read(self, starts: list[int]) -> dict[int, ReadOutcomes]:
        """Read the outcomes of days in threads. Days with damage are left out, because `take_sealed` meets it again."""
        found: dict[int, ReadOutcomes] = {}
        for start in starts:
            end = self._end(start)
            try:
                with suppress(CorruptionError):
                    found[start] = await self._workers.run(partial(self._index_up_to, start, end)), end
            except DiskError as error:
                found[start] = error
        return found

    def take_sealed(self, day: SealedDay, known: ReadOutcomes | None) -> None:
        """Put the outcomes of a day into the overlays. `known`: the result of `read`, which counts if no more came since."""
        try:
            if isinstance(known, DiskError):
                raise known
            if known is not None and known[1] == self._end(day.start_ms):
                self._overlays.put(day.start_ms, known[0])
            else:
                self._take(day)
        except DiskError as error:
            self._hide(day, error)

    async def take_refused(self) -> None:
        """Ask once more for the outcomes of days that the disk did not give."""
        for day in [day for day in self._days.draining() if day.start_ms in self._refused]:
            known = None
            try:
                end = self._end(day.start_ms)
                known = await self._workers.run(partial(self._index_up_to, day.start_ms, end)), end
            except (DiskError, UnreadableError) as error:
                self._damage.report(error)
                continue
            except CorruptionError:
                pass  # `take_sealed` meets it again
            if self._days.is_draining(day.start_ms):  # it may have been drained meanwhile
                # Before they are taken: where they are damaged, `take_sealed` holds the day back again.
                self.show(day.start_ms)
                self._refused.discard(day.start_ms)
                self.take_sealed(day, known)

    def of(self, key: DispatchKey) -> OutcomeBatch:
        """The outcomes in a file. Raises CorruptionError where it is damaged, or of another server. For any thread."""
        try:
            return self._dispatch.outcomes(key)
        except FormatError as error:
            raise error.as_damage() from error

    def _end(self, start_ms: int) -> int:
        return self._dispatch.end(DispatchKey(start_ms, True))

    def _index_up_to(self, start_ms: int, end: int) -> OutcomeIndex:
        try:
            return self._dispatch.index(DispatchKey(start_ms, True), end)
        except FormatError as error:
            raise error.as_damage() from error

    def _of_minute(self, start_ms: int, *, patient: bool) -> OutcomeBatch:
        key = DispatchKey(start_ms, False)
        try:
            return self.of(key)
        except CorruptionError as error:
            if patient and isinstance(error, UnreadableError):
                raise
            self._damage.report(error)
            return self._left(key)

    def _take(self, day: SealedDay, *, patient: bool = False) -> OutcomeBatch:
        """Loads the outcomes of a sealed day. If they are damaged, the day is held back: a client may have been answered
        `cancelled` for one of its messages. If the disk cannot read them, it is asked again."""
        key = DispatchKey(day.start_ms, True)
        try:
            written = self.of(key)
        except CorruptionError as error:
            if patient and isinstance(error, UnreadableError):
                raise
            self._hide(day, error)
            written = self._left(key)
        self._overlays.put(day.start_ms, OutcomeIndex.of([written]))
        return written

    def _left(self, key: DispatchKey) -> OutcomeBatch:
        """Rows that can be read around damage are true."""
        with suppress(CorruptionError, FormatError):  # already reported
            return self._dispatch.outcomes_left(key)
        return OutcomeBatch.filled(0)

    def _hide(self, day: SealedDay, error: CorruptionError | DiskError) -> None:
        self._overlays.hide(day.start_ms, day.sequence)
        if isinstance(error, (DiskError, UnreadableError)):
            self._refused.add(day.start_ms)
        self._drains.hold(day.start_ms)
        self._damage.report(error)
