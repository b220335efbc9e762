"""The meaning of an attempt for its rows: delivered, expired, given up, or maybe delivered. No row moves here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import DispatchSettings
from delayserver.dispatch.delivery import compact_column, outcomes
from delayserver.protocol.outcomes import DeliverOutcome, Outcome
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.latency import LatencyHistogram
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.attempted import Attempted
from delayserver.state.memory.due_records import RECORDED
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.rows import SEVERAL_NODES
from store.records.batches import I64, U8, U32
from store.records.expiry import expired_rows
from store.records.redelivery import ATTEMPTS, REDELIVERY
from wheel.due_rows import DueRows


class Verdicts:
    """Records the results of one group's attempts."""

    def __init__(
        self,
        group: GroupRows,
        decided: Decided,
        attempted: Attempted,
        lateness: LatencyHistogram,
        settings: DispatchSettings,
        runtime: Runtime,
    ) -> None:
        self._group = group
        self._decided = decided
        self._attempted = attempted
        self._lateness = lateness
        self._settings = settings
        self._clock = runtime.clock

    async def wait_for_room(self) -> None:
        """Return when the disk keeps up with what was decided."""
        await self._decided.wait_for_room()

    def expired(self, rows: DueRows, expires_ms: I64, now_us: int) -> NDArray[np.intp] | None:
        """Record the rows that have expired at `now_us`; returns the places of the others, None if no row has expired."""
        expired = expired_rows(expires_ms, now_us)
        if expired is None:
            return None
        # An uncertain row may be delivered already: the node must say. A row for one consumer group is a redelivery:
        # the broker judges it, because the broker counts what expires for each of its groups.
        expired &= (rows.payload["uncertain"] == 0) & (rows.payload["target_group"] == 0)
        if not expired.any():
            return None
        self._give_up(rows.take(np.flatnonzero(expired)), Outcome.EXPIRED, now_us)
        return np.flatnonzero(~expired)

    def dead(self, rows: DueRows) -> DueRows:
        """Record the rows that had as many attempts as the settings allow; returns the others."""
        limit = self._settings.dead_letter_attempts
        if not limit:
            return rows
        dead = (rows.payload["attempts"] >= limit) & (rows.payload["uncertain"] == 0)
        if not dead.any():
            return rows
        self._give_up(rows.take(np.flatnonzero(dead)), Outcome.DEAD_LETTERED, self._clock.now_us())
        return rows.take(np.flatnonzero(~dead))

    def _give_up(self, rows: DueRows, outcome: Outcome, now_us: int) -> None:
        self._decided.add(
            outcomes(rows, int(outcome), self._group.name_code, queued_us=now_us, dispatched_us=0, settled_us=now_us),
            compact_column(rows.payload["target_group"]),
        )

    def unanswered(self, rows: DueRows, node: int) -> None:
        """The node with this number may have taken the rows: its answer did not come."""
        where, certain = rows.payload["unanswered_node"], rows.payload["uncertain"] == 0
        rows.payload["unanswered_node"] = np.where(certain | (where == node), node, SEVERAL_NODES)
        rows.payload["unanswered"] = np.minimum(
            rows.payload["unanswered"].astype(np.int64) + 1, REDELIVERY.unanswered_max
        )
        rows.payload["uncertain"] = 1
        self._attempted.note(rows.sequence, rows.payload)

    def unanswered_elsewhere(self, rows: DueRows, node: int, *, uncertain: bool) -> U32 | None:
        """How many hand-overs of each row had no answer, u32[n], where one of them went to another node than this; None
        where none did. Hand-overs before this start are not known, and count as one."""
        if not uncertain or self._group.alone:
            return None
        other = rows.payload["unanswered_node"] != node
        counts: U32 = np.where(other, np.maximum(rows.payload["unanswered"], 1), 0).astype(np.uint32)
        return counts if counts.any() else None

    def delivered(
        self, rows: DueRows, answer: U8, elsewhere: U32 | None, *, queued_us: int, dispatched_us: int
    ) -> None:
        """A node has the rows. `answer`: its DeliverOutcome codes u8[n]; `elsewhere`: what `unanswered_elsewhere` said."""
        self._attempted.settled(rows.sequence)
        duplicate = answer == int(DeliverOutcome.DUPLICATE)
        maybe_twice = 0
        self._lateness.add(_lateness_us(rows, dispatched_us))
        if elsewhere is not None:
            # A hand-over before this start without an answer is found where the node has the message already.
            found = duplicate & (rows.payload["unanswered_node"] == 0)
            elsewhere = np.where(found, 0, elsewhere).astype(np.uint32)
            maybe_twice = int((elsewhere > 0).sum())
            rows.payload["attempts"] = ATTEMPTS.pack(rows.payload["attempts"], elsewhere)
        self._group.counters.were_delivered(len(rows), int(duplicate.sum()), maybe_twice)
        self._decided.add(
            outcomes(
                rows,
                int(Outcome.DELIVERED),
                self._group.name_code,
                queued_us=queued_us,
                dispatched_us=dispatched_us,
                settled_us=self._clock.now_us(),
            ),
            compact_column(rows.payload["target_group"]),
        )


class InternalVerdicts(Verdicts):
    """Records what became of the records of an internal group, but for those whose answer has their outcome."""

    def delivered(
        self, rows: DueRows, answer: U8, elsewhere: U32 | None, *, queued_us: int, dispatched_us: int
    ) -> None:
        """As `Verdicts.delivered`."""
        self._attempted.settled(rows.sequence)
        mine = np.flatnonzero(answer != RECORDED)
        if len(mine):
            super().delivered(rows.take(mine), answer[mine], None, queued_us=queued_us, dispatched_us=dispatched_us)


def _lateness_us(rows: DueRows, dispatched_us: int) -> I64:
    """Since it was due, or accepted if that was later, i64[n]."""
    due_us, accepted_us = rows.due_ms * 1000, rows.payload["accepted_us"]
    lateness_us: I64 = dispatched_us - due_us
    if int(accepted_us.max()) > int(due_us.min()):
        # Handed over at an earlier time than accepted: the clock went back in between, and only before `due` is early.
        lateness_us = np.maximum(dispatched_us - np.maximum(due_us, accepted_us), np.minimum(lateness_us, 0))
    return lateness_us
