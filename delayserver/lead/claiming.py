"""A standby claims the shard where the log answers, and brings nothing from the primary."""

from __future__ import annotations

import trio

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.runtime.damage import DamageReport
from delayserver.runtime.shared_log import LogUnavailable, SharedLog
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing
from store.shared.payload import ClaimNote


class Claiming:
    """Waits for silence, and claims. A member that has found damage in its own directory never does."""

    def __init__(
        self,
        log: SharedLog,
        standing: Standing,
        proposals: Proposals,
        settings: ClusterSettings,
        damage: DamageReport,
    ) -> None:
        self._log = log
        self._standing = standing
        self._proposals = proposals
        self._settings = settings
        self._damage = damage

    async def run(self) -> None:
        """Return when this process leads. Raises LogUnusable."""
        standing, settings = self._standing, self._settings
        while not standing.leads:
            reason = await self._silence()
            if self._damage.forbids_leading():
                await trio.sleep_forever()
            epoch = standing.epoch.value + 1
            seat = standing.seat
            self._proposals.claim(
                epoch, ClaimNote(seat.name, seat.address, standing.program, standing.read.value, reason, seat.http)
            )
            # Whoever claims this epoch first leads. A claim that is lost with its connection is made once more.
            with trio.move_on_after(settings.silence_ms / 1000):
                await standing.epoch.reached(epoch)

    async def _silence(self) -> str:
        """Return when nothing came for long enough, while the log itself answers, and this member has taken all of it."""
        standing, settings = self._standing, self._settings
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
            try:
                end = await self._log.ask()
            except LogUnavailable:  # a log that does not answer is no silence
                continue
            if standing.applied.value >= end and not standing.heard.is_rung:
                return f"nothing came for {wait_ms} ms" if heir is None else "the primary handed over"
            # Its disk may be slow: then another member is first.
            await standing.applied.reached(end)
