"""The hand-over: a primary decides nothing more, settles what it had begun, and says so in the shared log.

From then on this process cannot lead again before its next life, whether the heir claims or not.
"""

from __future__ import annotations

import trio

from delayserver.lead.beating import Beating
from delayserver.protocol.errors import DelayServerError, NotPrimary, NotReady
from delayserver.receive.group_commit import GroupCommit
from delayserver.server.clean_end import LastCheckpoint, Settling
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing
from store.errors import DiskFullError
from store.shared.payload import EndNote

SETTLE_S = 0.25
"""Attempts that have no result after this long stay uncertain for the heir, as after a crash. Clients wait meanwhile."""
AGAIN_MS = 50


class LeadershipEnd:
    """Ends the leadership of this process, once."""

    def __init__(
        self,
        standing: Standing,
        proposals: Proposals,
        beating: Beating,
        commit: GroupCommit,
        settling: Settling,
        last: LastCheckpoint,
    ) -> None:
        self._standing = standing
        self._proposals = proposals
        self._beating = beating
        self._commit = commit
        self._settling = settling
        self._last = last
        self._begun = False
        # Set when the log has the end: this life is over.
        self.done = trio.Event()

    async def to(self, heir: str) -> int:
        """Hand over to a member by its name; empty: to any. Returns the epoch that has ended. Raises NotPrimary."""
        standing = self._standing
        if self._begun or not standing.leads:
            raise NotPrimary("this member hands over already, or leads no longer", retry_after_ms=AGAIN_MS)
        self._begun = True
        self._commit.refuse(NotReady("the primary hands over", retry_after_ms=AGAIN_MS))
        settled = await self._settled()
        self._beating.stop()
        epoch = standing.epoch.value
        ended = trio.Event()
        failure: list[DelayServerError] = []

        def refused(error: DelayServerError) -> None:
            failure.append(error)
            ended.set()

        horizon_ms = 0 if settled else standing.horizon_ms
        # The heir may lead before this task goes on: whether this process has handed over is what the log says of its note.
        self._proposals.note(EndNote(heir, horizon_ms), lambda _: ended.set(), refused)
        await ended.wait()
        self.done.set()
        if failure:
            raise NotPrimary("another member leads already", retry_after_ms=AGAIN_MS)
        return epoch

    async def _settled(self) -> bool:
        """Whether everything that was ever attempted has an outcome in the log."""
        with trio.move_on_after(SETTLE_S):
            try:
                await self._settling.messages()
            except DiskFullError:
                return False
            return not self._last.any_uncertain
        return False
