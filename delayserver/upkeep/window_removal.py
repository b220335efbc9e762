"""The removal of the files of windows that the ledger counts."""

from __future__ import annotations

from collections.abc import Iterable

from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.files import Files
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError, DiskError, FormatError


class WindowRemoval:
    """Removes them. A crash may bring files back; the next start removes them again."""

    def __init__(self, files: Files, windows: Windows, decided: Decided, runtime: Runtime) -> None:
        self._schedule = files.schedule
        self._dispatch = files.dispatch
        self._book = windows.book
        self._cursors = windows.cursors
        self._retired = windows.retired
        self._decided = decided
        self._damage = runtime.damage
        self._workers = runtime.workers

    def finish_interrupted(self) -> None:
        """Removes the files of windows whose removal a crash interrupted after the entry in the ledger."""
        starts = self._book.starts()
        starts |= {key.start_ms for key in self._dispatch.keys() if self._book.is_outcome_file(key)}
        for start in sorted(starts):
            if self._retired.has(start) and self._is_counted(start):
                self.remove(start)
        self._sync_removed()

    def _is_counted(self, start_ms: int) -> bool:
        """Whether the ledger counts all that the files of a window hold."""
        try:
            return self._last_known(start_ms) <= self._retired.up_to(start_ms)
        except DiskError as error:
            self._damage.report(error)
            return False

    def _last_known(self, start_ms: int) -> int:
        """The last sequence of a window, also of its outcomes: a crash may lose a late message in its schedule file, not its
        outcome."""
        try:
            outcomes = self._dispatch.outcomes(self._book.outcome_file(start_ms), damages=[])
        except (CorruptionError, FormatError):
            return 1 << 62  # the file is kept, and a reader that needs it reports the damage
        return max(self._book.last_sequence(start_ms), int(outcomes.sequence.max(initial=0)))

    def remove_retired(self, starts_ms: Iterable[int]) -> None:
        """Removes the windows among these that are in the ledger."""
        for start in starts_ms:
            if self._retired.has(start):
                self.remove(start)

    def remove(self, start_ms: int) -> bool:
        """Removes files of a window that the ledger counts. False where a late message, a load or damage keeps any."""
        if self._cursors.is_loading(start_ms):  # a clock that was ahead is back in the window: a later pass removes it
            return False
        retired_to = self._retired.up_to(start_ms)
        for key in self._book.files(start_ms):
            if key in self._schedule and not self._schedule.remove(key, retired_to, durable=False):
                return False
        outcomes = self._book.outcome_file(start_ms)
        if outcomes in self._dispatch:
            self._dispatch.remove(outcomes, durable=False)
        self._decided.forget(outcomes)
        self._retired.remove(self._book.files(start_ms))
        self._cursors.forget(start_ms)
        self._book.forget(start_ms)
        return True

    async def sync(self) -> None:
        """Makes the removals so far durable."""
        await self._workers.run(self._sync_removed)

    def _sync_removed(self) -> None:
        self._schedule.sync_removed()
        self._dispatch.sync_removed()
