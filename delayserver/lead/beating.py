"""The beats of a primary: by them it keeps its lease, and standbys hear that it lives."""

from __future__ import annotations

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.protocol.errors import DelayServerError
from delayserver.runtime.clock import Clock
from delayserver.runtime.marks import Bell
from delayserver.state.shard.digest import Digest
from delayserver.state.shard.leader_horizon import LeaderHorizon
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing
from store.shared.payload import BeatNote


class Beating:
    """Proposes a beat at a time. Each allows attempts up to its horizon, and service for the time of its lease."""

    def __init__(
        self,
        standing: Standing,
        horizon: LeaderHorizon,
        proposals: Proposals,
        digest: Digest,
        settings: ClusterSettings,
        clock: Clock,
    ) -> None:
        self._standing = standing
        self._horizon = horizon
        self._proposals = proposals
        self._digest = digest
        self._settings = settings
        self._clock = clock
        self._came_back = Bell()
        self._stopped = False

    async def run(self) -> None:
        """Beat while this process leads, from the step of its claim on."""
        standing, settings = self._standing, self._settings
        read = standing.read.value
        while standing.leads and not self._stopped:
            self._came_back.hush()
            self._beat()
            await self._clock.sleep_ms(settings.beat_ms)
            await self._came_back.rung()
            # A disk that hangs applies nothing: then no beat says that all is well.
            await standing.applied.reached(read)
            read = standing.read.value

    def stop(self) -> None:
        """Beat no more: this process hands over."""
        self._stopped = True

    def _beat(self) -> None:
        settings, seat, sent_us = self._settings, self._standing.seat, self._clock.boot_us()
        position, digest = self._digest.last
        beat = BeatNote(
            horizon_ms=self._clock.now_ms() + settings.horizon_ms,
            lease_ms=settings.lease_ms,
            digest=digest,
            position=position,
            address=seat.address,
            http=seat.http,
        )

        def accepted(_: object) -> None:
            self._standing.lease.advance(sent_us + settings.lease_ms * 1000)
            self._horizon.move(self._standing.horizon_ms)
            self._came_back.ring()

        self._proposals.note(beat, accepted, self._given_up)

    def _given_up(self, _: DelayServerError) -> None:
        self._came_back.ring()
