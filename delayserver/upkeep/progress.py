"""The contents of a checkpoint, captured in one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from delayserver.runtime.believable_clock import BelievableClock
from delayserver.state.counts.balance import Balance
from delayserver.state.counts.waiting_ages import WaitingAges
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.schedule_timers import ScheduleTimerPlace, ScheduleTimers
from delayserver.state.positions.positions import Positions
from delayserver.state.shard.digest import Digest
from delayserver.state.windows.windows import Windows
from store.records.batches import I64


@dataclass(frozen=True, slots=True)
class Captured:
    """How far the stages were at one moment."""

    position: int
    sequence: int
    totals: dict[str, int]
    drains: dict[int, int]
    orphans: dict[int, int]
    believable_us: int
    outcomes: int
    """Outcomes that were decided."""
    subjects: I64 | None
    """Placed messages by subject, see `SubjectCounts.placed_pending`."""
    redeliveries: WaitingAges
    """Redeliveries that are placed and had not ended durably."""
    schedules: Mapping[str, ScheduleTimerPlace]
    """The timers of schedules that are placed."""


class Progress:
    """Reads how far the stages are."""

    def __init__(
        self,
        positions: Positions,
        balance: Balance,
        decided: Decided,
        windows: Windows,
        believable: BelievableClock,
        beside: tuple[ScheduleTimers, Digest | None],
    ) -> None:
        """`beside`: the timers of schedules, and the digest of a member of a cluster."""
        self.positions = positions
        self.decided = decided
        self._balance = balance
        self._windows = windows
        self._believable = believable
        self._schedules, self._digest = beside

    def capture(self) -> Captured:
        """One step. The marks of files may include what replay does later: their high-water marks make the next start skip
        it."""
        return Captured(
            position=self.positions.replayed.value,
            sequence=self.positions.replayed_sequence.value,
            totals={
                "accepted": self._balance.placed,
                "internal": self._balance.internal,
                "replaced": self._balance.replaced,
                "timers_until_ms": self._balance.timers_until_ms,
                **({} if self._digest is None else self._digest.counters),
            },
            drains=dict(self._windows.drains.positions),
            orphans=dict(self._windows.book.orphans),
            believable_us=self._believable.now_us(),
            outcomes=self.outcomes,
            subjects=self._balance.subjects.placed_pending(),
            redeliveries=self._balance.subjects.redeliveries.begin_checkpoint(),
            schedules=self._schedules.all(),
        )

    def ended_subjects(self) -> I64:
        """Messages by subject whose outcomes have become durable since the start."""
        return self._balance.subjects.ended_counts()

    def ended_redeliveries(self) -> WaitingAges:
        """Redeliveries whose outcomes have become durable since the capture."""
        return self._balance.subjects.redeliveries.ended_ages()

    @property
    def outcomes(self) -> int:
        """Outcomes that are decided."""
        return int(self.decided.totals.sum())
