"""The round step that ends messages: outcomes of cancels, and in a cluster those that another member decided. Steps that
find other outcomes add them here.

While a start replays what a crash left, outcomes wait here. Dispatch_log may have kept them though the crash took the
schedule file or the checkpoint, and each must be recorded once.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from delayserver.protocol.outcomes import Outcome
from delayserver.replay.outcome_groups import OutcomeGroups
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.decisions.outcome_rows import cancelled_outcomes, suppressed_outcomes
from delayserver.state.replay_round import Round
from delayserver.state.shard.digest import DERIVED, Digest
from delayserver.state.windows.windows import Windows
from store.errors import CorruptionError
from store.logs.dispatch_log import DispatchKey
from store.logs.schedule_log import ScheduleKey, ScheduleLog
from store.records.batches import I64, U8, U32, CancelBatch, MessageBatch, OutcomeBatch
from store.records.column_batch import has_any


class RoundOutcomes:
    """Round → decided."""

    def __init__(
        self,
        decided: Decided,
        windows: Windows,
        groups: OutcomeGroups,
        runtime: Runtime,
        schedule: ScheduleLog | None,
        digest: Digest | None,
    ) -> None:
        """`schedule`: where a member finds the copies whose outcomes its last process did not write. All members show the
        same counts, whichever leads. None: a single server, which finds them when it loads their windows. `digest`: of a
        member."""
        self._decided = decided
        self._retired = windows.retired
        self._book = windows.book
        self._clock = runtime.clock
        self._damage = runtime.damage
        self._waiting: list[OutcomeBatch] | None = []
        self._groups = groups
        self._schedule = schedule
        self._workers = runtime.workers
        self._digest = digest
        # Of a start of a member: messages with ids whose rows are not written again; and copies that were met.
        self._skipped: list[tuple[ScheduleKey, I64]] = []
        self._copies: list[I64] = []

    @property
    def recovering(self) -> bool:
        """Whether a start replays: its messages may have an outcome already, or may have been attempted."""
        return self._waiting is not None

    def publish(self, done: Round) -> None:
        """Add the outcomes of a round and of its cancels, whose holds it releases."""
        if self._waiting is not None and self._schedule is not None:
            self._skipped += done.skipped
        for outcomes, groups in zip(done.outcomes, done.outcome_groups, strict=True):
            self.add(outcomes, groups)
        for batch in done.cancels:
            self.derive(cancelled_outcomes(batch, self._clock.now_us()))
            self._decided.holds.release(batch.sequence)

    def derive(self, batch: OutcomeBatch) -> None:
        """Take outcomes that each member finds by itself: of cancels and of copies."""
        if self._digest is not None:
            self._sum_up(batch, self._digest)
        self.add(batch)

    def _sum_up(self, batch: OutcomeBatch, digest: Digest) -> None:
        digest.add(DERIVED, batch.sequence, batch.outcome)
        if self._waiting is not None:
            self._copies.append(batch.sequence[batch.outcome == int(Outcome.DEDUPLICATED)])

    def add(self, batch: OutcomeBatch, groups: U32 | None = None) -> None:
        """Take outcomes that a round has brought. `groups`: as `Decided.add` has them."""
        if self._waiting is not None:
            self._waiting.append(batch)
        else:
            self._decided.add(batch, groups)

    async def finish_recovery(self) -> None:
        """Record what the first replay met again, as far as the outcomes are not in the files already."""
        copies = await self._skipped_copies() if self._skipped else []
        batches, self._waiting = [*(self._waiting or ()), *self._decided.copies_ahead(), *copies], None
        if batches:
            await self._record_missing(OutcomeBatch.concatenate(batches))

    async def _skipped_copies(self) -> list[OutcomeBatch]:
        """The outcomes of copies that the files of messages had before this start."""
        schedule, found, now_us = self._schedule, list[MessageBatch](), self._clock.now_us()
        assert schedule is not None and self._digest is not None
        missing = False

        def read() -> None:
            nonlocal missing
            for key, sequences in self._skipped:
                rows = MessageBatch.filled(0)
                if key in schedule:
                    rows = schedule.read_ids(key, sequences, damages=[])  # whoever needs damaged ones reports it
                    found.append(rows.take(np.flatnonzero(rows.duplicate_of)))
                missing |= len(rows) < len(sequences)

        await self._workers.run(read)
        self._skipped.clear()
        copies = [suppressed_outcomes(rows, now_us) for rows in found if len(rows)]
        if copies:
            # Of a round that met a full disk, rows were placed and then skipped.
            _, first = np.unique(
                np.concatenate([*self._copies, *[each.sequence for each in copies]]), return_index=True
            )
            new = first[first >= sum(map(len, self._copies))] - sum(map(len, self._copies))
            self._sum_up(OutcomeBatch.concatenate(copies).take(new), self._digest)
        if missing:  # retention took them, or a drained day
            self._digest.distrust()
        return copies

    async def record_missing_cancels(self, cancels: CancelBatch) -> None:
        """Record those of these cancels that have no outcome which can be read."""
        await self._record_missing(cancelled_outcomes(cancels, self._clock.now_us()))

    async def _record_missing(self, met: OutcomeBatch) -> None:
        places: dict[DispatchKey, list[int]] = {}
        for place, due in enumerate(met.due_ms.tolist()):
            places.setdefault(self._decided.key_of(due), []).append(place)
        groups_met = None
        if self._schedule is not None and has_any(met.origin_sequence):  # a single server has these of copies alone
            groups_met = await self._workers.run(partial(self._groups.of, met))
        for key in sorted(places):
            rows = met.take(np.array(places[key], dtype=np.intp))
            groups = None if groups_met is None else groups_met[places[key]]
            try:
                async with self._decided.pinned(key) as index:
                    self._record_undone(key, rows, groups, self._decided.outcome_of(key, index, rows.sequence))
            except CorruptionError as error:
                self._damage.report(error)
                told = await self._decided.readable_codes(key, rows.sequence)
                # Others may have been decided while the file was read.
                undecided = np.flatnonzero(self._decided.is_unknown(rows.due_ms, rows.sequence))
                groups = None if groups is None else groups[undecided]
                self._record_undone(key, rows.take(undecided), groups, told[undecided])

    def _record_undone(self, key: DispatchKey, rows: OutcomeBatch, groups: U32 | None, known: U8) -> None:
        """`known`: outcome codes u8[n], TOO_LATE where damage hides whether there is one. Those are recorded once more
        rather than not at all: a cancel that is forgotten would be delivered when the file is repaired."""
        open_rows = (known == 0) | (known == int(Outcome.TOO_LATE))
        if self._book.is_outcome_file(key):
            open_rows = open_rows & (rows.sequence > self._retired.up_to(key.start_ms))
        undone = np.flatnonzero(open_rows)
        _, first = np.unique(rows.sequence[undone], return_index=True)
        if len(first):
            self._decided.add(rows.take(undone[first]), None if groups is None else groups[undone[first]])
