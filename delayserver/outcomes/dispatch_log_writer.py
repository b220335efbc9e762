"""Writes outcomes to the dispatch_log of this process: the one `OutcomeWriter` of a single server."""

from __future__ import annotations

import trio

from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from store.errors import DiskFullError
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.records.batches import OutcomeBatch


class DispatchLogWriter:
    """Sorts outcomes by file, appends and syncs them in a thread. The only writer of dispatch_log while the server runs."""

    def __init__(self, log: DispatchLog, decided: Decided, runtime: Runtime) -> None:
        self._log = log
        self._decided = decided
        self._workers = runtime.workers
        self._clock = runtime.clock
        self.disk_full = False

    async def write(self, batches: list[OutcomeBatch], _new: list[OutcomeBatch]) -> set[DispatchKey]:
        """As `OutcomeWriter.write`. In a thread, as outcomes are not urgent."""
        parts: list[tuple[DispatchKey, OutcomeBatch]] = []
        done = 0

        def write() -> None:
            if not parts:  # the first try; a hop to a thread costs as much as sorting them
                parts.extend(self._decided.by_file(OutcomeBatch.concatenate(batches)))
            self._append_and_sync(parts, done)

        while True:
            try:
                with trio.CancelScope(shield=True):
                    await self._workers.run(write)
                self.disk_full = False
                return {key for key, _ in parts}
            except _PartlyWrittenError as error:
                done += error.parts
                self.disk_full = True
                self._decided.disk_full.ring()
                # Not shielded: a stop must not wait for free space. The next start finds these messages undecided.
                await self._clock.sleep_ms(200)

    def _append_and_sync(self, parts: list[tuple[DispatchKey, OutcomeBatch]], done: int) -> None:
        """Writes the parts behind the first `done`, which an earlier try wrote, and syncs all parts."""
        try:
            self._log.prepare([key for key, _ in parts[done:]])
        except DiskFullError as error:
            raise _PartlyWrittenError(0) from error
        for count, (key, part) in enumerate(parts[done:]):
            try:
                self._log.append(key, part)
            except DiskFullError as error:
                raise _PartlyWrittenError(count) from error
        try:
            self._log.sync([key for key, _ in parts])
        except DiskFullError as error:  # no descriptor to open a file again with: no sync has failed
            raise _PartlyWrittenError(len(parts) - done) from error


class _PartlyWrittenError(Exception):
    """The disk is full; the first `parts` files of this try were written."""

    def __init__(self, parts: int) -> None:
        super().__init__(parts)
        self.parts = parts
