"""Records what became of the rows of an attempt: delivered, expired, given up, or maybe delivered. No row moves here."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import DispatchSettings
from delayserver.dispatch.broker_node import BrokerNode
from delayserver.dispatch.delivery import compact_column, outcomes
from delayserver.dispatch.judge import JudgePolicy
from delayserver.logs.events import EventLogger
from delayserver.protocol.outcomes import Outcome
from delayserver.runtime.runtime import Runtime
from delayserver.state.counts.latency import LatencyHistogram
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.attempt_horizon import Horizon
from delayserver.state.memory.attempted import Attempted
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.rows import SEVERAL_NODES
from delayserver.targets.answer import RowAnswer
from store.records.batches import I64, U8, U32
from store.records.expiry import expired_rows
from store.records.shared_column import ATTEMPTS, REDELIVERY
from wheel.due_rows import DueRows

events = EventLogger()


class Verdicts:
    """Records the results of one group's attempts."""

    def __init__(
        self,
        group: GroupRows,
        decided: Decided,
        attempted: Attempted,
        horizon: Horizon,
        lateness: LatencyHistogram,
        settings: DispatchSettings,
        runtime: Runtime,
    ) -> None:
        self._group = group
        self._decided = decided
        self._attempted = attempted
        self._horizon = horizon
        self._lateness = lateness
        self._settings = settings
        self._clock = runtime.clock

    async def wait_for_room(self) -> None:
        """Return when the disk keeps up with what was decided."""
        await self._decided.wait_for_room()

    def may_attempt(self, due_us: int) -> bool:
        """Whether an attempt of rows that are due then may begin now."""
        return due_us <= self._horizon.due_ms * 1000

    def record_expired(self, rows: DueRows, expires_ms: I64, now_us: int) -> NDArray[np.intp] | None:
        """Records the rows that have expired at `now_us`. Returns the places of the others; None if no row has
        expired."""
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

    def policy(self, node: BrokerNode) -> JudgePolicy:
        """What the judge must know of an answer of this node."""
        return JudgePolicy(
            node.health.number,
            self._group.alone,
            node.capabilities.idempotent,
            self._settings.dead_letter_attempts,
            self._attempted.full,
        )

    def dead(self, rows: DueRows, reason: str) -> None:
        """Record rows that are never tried again. `reason`: what the target said."""
        events.warning(
            "messages_dead_lettered",
            "{count} messages of broker group {group} are dead letters: {reason}",
            count=len(rows),
            group=self._group.name,
            reason=reason or "too many attempts",
        )
        self._attempted.forget_delivered(rows.sequence)
        self._give_up(rows, Outcome.DEAD_LETTERED, self._clock.now_us())

    def _give_up(self, rows: DueRows, outcome: Outcome, now_us: int) -> None:
        self._decided.add(
            outcomes(rows, int(outcome), self._group.name_code, queued_us=now_us, dispatched_us=0, settled_us=now_us),
            compact_column(rows.payload["target_group"]),
        )

    def mark_unanswered(self, rows: DueRows, places: NDArray[np.intp], node: int) -> None:
        """Marks the rows at these places as uncertain: the node with this number may have taken them, and their answer
        did not come."""
        if not len(places):
            return
        payload = rows.payload
        where, certain = payload["unanswered_node"][places], payload["uncertain"][places] == 0
        payload["unanswered_node"][places] = np.where(certain | (where == node), node, SEVERAL_NODES)
        payload["unanswered"][places] = np.minimum(
            payload["unanswered"][places].astype(np.int64) + 1, REDELIVERY.unanswered_max
        )
        payload["uncertain"][places] = 1
        self._attempted.note(rows.sequence[places], payload[places])

    def record_delivered(
        self, rows: DueRows, answer: U8, elsewhere: U32 | None, *, queued_us: int, dispatched_us: int
    ) -> None:
        """Records rows that a node has, or whose outcomes it has written. `answer`: its RowAnswer codes u8[n].
        `elsewhere`: what `unanswered_elsewhere` returned."""
        self._attempted.forget_delivered(rows.sequence)
        recorded = answer == int(RowAnswer.RECORDED)
        if recorded.any():
            mine = np.flatnonzero(~recorded)
            if not len(mine):
                return
            rows, answer, elsewhere = rows.take(mine), answer[mine], None if elsewhere is None else elsewhere[mine]
        duplicate = answer == int(RowAnswer.DUPLICATE)
        maybe_twice = 0
        self._lateness.add(_lateness_us(rows, dispatched_us))
        if elsewhere is not None:
            # A hand-over before this start without an answer is found where the node has the message already.
            found = duplicate & (rows.payload["unanswered_node"] == 0)
            elsewhere = np.where(found, 0, elsewhere).astype(np.uint32)
            maybe_twice = int((elsewhere > 0).sum())
            rows.payload["attempts"] = ATTEMPTS.pack(rows.payload["attempts"], elsewhere)
        self._group.counters.count_delivered(len(rows), int(duplicate.sum()), maybe_twice)
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


def _lateness_us(rows: DueRows, dispatched_us: int) -> I64:
    """Since it was due, or accepted if that was later, i64[n]."""
    due_us, accepted_us = rows.due_ms * 1000, rows.payload["accepted_us"]
    lateness_us: I64 = dispatched_us - due_us
    if int(accepted_us.max()) > int(due_us.min()):
        # Handed over at an earlier time than accepted: the clock went back in between, and only before `due` is early.
        lateness_us = np.maximum(dispatched_us - np.maximum(due_us, accepted_us), np.minimum(lateness_us, 0))
    return lateness_us
