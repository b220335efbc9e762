"""The section `cluster` of `status`: what a member knows of its shard and of the shared log."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.protocol.figures import MemberFigures
from delayserver.runtime.clock import Clock
from delayserver.runtime.damage import DamageReport
from delayserver.state.shard.digest import Digest
from delayserver.state.shard.fronts import Fronts
from delayserver.state.shard.leading import Leading
from delayserver.state.shard.log_health import LogHealth
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a member sees of its log, of the other members, and of its own directory."""

    log: LogHealth
    fronts: Fronts
    damage: DamageReport


class MemberReader:
    """Reads the figures of a member."""

    def __init__(
        self,
        standing: Standing,
        leading: Leading,
        proposals: Proposals,
        outlook: Outlook,
        digest: Digest,
        clock: Clock,
    ) -> None:
        self._standing = standing
        self._leading = leading
        self._proposals = proposals
        self._health, self._fronts, self._damage = outlook.log, outlook.fronts, outlook.damage
        self._digest = digest
        self._clock = clock

    @property
    def log_position(self) -> int:
        """Where the next process would read on."""
        return self._standing.kept.value

    def read(self) -> MemberFigures:
        """The figures of this moment. Those of the log are of its last look."""
        standing, health, log = self._standing, self._health, self._health.described
        lag = standing.lag_records(health.end if health.answers else None)
        unconfirmed_us, fronts = self._leading.unconfirmed_us, self._fronts.own
        return MemberFigures(
            shard=standing.seat.shard,
            member=standing.seat.name,
            role=standing.role,
            epoch=standing.epoch.value,
            lag_records=lag,
            lag_ms=standing.lag_ms(lag, self._clock.now_us()),
            compared_position=self._digest.compared,
            lease_left_ms=self._leading.left_us // 1000,
            beat_age_ms=None if unconfirmed_us is None else unconfirmed_us // 1000,
            proposals=len(self._proposals),
            proposals_bytes=self._proposals.size_bytes,
            unreached=list(fronts.unreached),
            unreached_by=list(self._fronts.unreached_by),
            front_hand_overs=self._fronts.hand_overs,
            front=self._fronts.problem(leads=standing.leads),
            unfit=list(self._fronts.unfit),
            damaged=bool(self._damage.own),
            log_answers=health.answers,
            log_unanswered=health.unanswered,
            log_copies=None if log is None else log.copies,
            log_in_sync=None if log is None else log.in_sync,
            log_in_sync_min=None if log is None else log.in_sync_min,
            log_kept=None if log is None else max(health.end, log.end) - log.first,
            log_faults=[] if log is None else [fault.text for fault in log.faults],
        )
