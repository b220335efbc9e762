"""A standby claims the shard where the log answers, and brings nothing from the primary."""

from __future__ import annotations

from dataclasses import dataclass

import trio

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.runtime.damage import DamageReport
from delayserver.runtime.shared_log import LogLost, LogUnavailable, SharedLog
from delayserver.state.positions.positions import Positions
from delayserver.state.shard.cluster_map import ClusterMap
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing
from store.shared.payload import ClaimNote


@dataclass(frozen=True, slots=True)
class OwnDirectory:
    """What the directory of a member says against its leading."""

    damage: DamageReport
    positions: Positions


class Claiming:
    """Waits for silence, and claims. A member that has found damage in its own directory never does."""

    def __init__(
        self,
        log: SharedLog,
        standing: Standing,
        proposals: Proposals,
        shards: ClusterMap,
        settings: ClusterSettings,
        directory: OwnDirectory,
    ) -> None:
        self._log = log
        self._standing = standing
        self._proposals = proposals
        self._map = shards
        self._settings = settings
        self._directory = directory

    async def run(self) -> None:
        """Return when this process leads. Raises LogUnusable, LogLost."""
        standing, settings = self._standing, self._settings
        while not standing.leads:
            reason = await self._silence()
            if self._directory.damage.forbids_leading():
                await trio.sleep_forever()
            epoch = standing.epoch.value + 1
            seat = standing.seat
            self._proposals.claim(
                epoch,
                ClaimNote(
                    seat.name, seat.address, standing.program, standing.read.value, reason, seat.http, standing.index
                ),
            )
            # Whoever claims this epoch first leads. A claim that is lost with its connection is made once more.
            with trio.move_on_after(settings.silence_ms / 1000):
                await standing.epoch.reached(epoch)

    async def _silence(self) -> str:
        """Return when nothing came for long enough, while the log answers, and this member has taken and replayed all of
        it. Raises LogLost where the log lacks the claim of a primary that the map knows: the log was made anew."""
        standing, settings, positions = self._standing, self._settings, self._directory.positions
        rank_ms = settings.rank_ms * settings.rank
        while True:
            standing.heard.hush()
            heir = standing.heir
            # Without an heir by name all are asked, in the order of their ranks.
            wait_ms = 0 if heir == standing.seat.name else rank_ms if heir == "" else settings.silence_ms + rank_ms
            if wait_ms:
                with trio.move_on_after(wait_ms / 1000):
                    await standing.heard.rung()
                    continue
            # Who leads says so in the map afterwards. So its claim stands below the end that is asked for now.
            led = self._map.epoch
            try:
                end = await self._log.ask()
            except LogUnavailable:  # a log that does not answer is no silence
                continue
            self._require_claims(led, end)
            replayed = positions.replayed.value >= positions.durable.value
            if standing.applied.value >= end and replayed and not standing.heard.is_rung:
                return f"nothing came for {wait_ms} ms" if heir is None else "the primary handed over"
            # Its disk may be slow or full, and a takeover would wait for it: then another member is first.
            await standing.applied.reached(end)
            await positions.replayed.reached(positions.durable.value)

    def _require_claims(self, led: int, end: int) -> None:
        """Raises LogLost where all of the log was read, and it lacks the claim of an epoch in which somebody led."""
        standing = self._standing
        if standing.read.value >= end and standing.epoch.value < led:
            detail = f"it ends in epoch {standing.epoch.value}, and a member has led in epoch {led}"
            raise LogLost(standing.seat.shard, end, end + 1, detail)
