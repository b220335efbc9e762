"""The hand-over: a primary decides nothing more, settles what it had begun, and says so in the shared log.

From then on this process cannot lead again before its next life, whether the heir claims or not.
"""

from __future__ import annotations

import trio

from delayserver.lead.beating import Beating
from delayserver.protocol.errors import DelayServerError, NotPrimary
from delayserver.receive.group_commit import GroupCommit
from delayserver.server.clean_end import CleanEnd
from delayserver.state.shard.leading import HEIR_MS, Leading
from delayserver.state.shard.proposals import Proposals
from delayserver.state.shard.standing import Standing
from store.errors import StoreError
from store.shared.payload import EndNote

SETTLE_S = 0.25
"""Attempts that have no result after this long stay uncertain for the heir, as after a crash. Clients wait meanwhile."""


class LeadershipEnd:
    """Ends the leadership of this process, once. Who asks may go: what has begun is carried out by a task of the server."""

    def __init__(
        self,
        standing: Standing,
        leading: Leading,
        proposals: Proposals,
        beating: Beating,
        commit: GroupCommit,
        end: CleanEnd,
    ) -> None:
        self._standing = standing
        self._leading = leading
        self._proposals = proposals
        self._beating = beating
        self._commit = commit
        self._end = end
        self._heir = ""
        self._asked = trio.Event()
        self._refused: DelayServerError | None = None
        self._done = trio.Event()

    async def to(self, heir: str) -> int:
        """Hand over to a member by its name; empty: to any. Returns the epoch that has ended. Raises NotPrimary."""
        standing = self._standing
        if self._asked.is_set() or not standing.leads:
            raise NotPrimary("this member hands over already, or leads no longer", retry_after_ms=HEIR_MS)
        epoch, self._heir = standing.epoch.value, heir
        self._asked.set()
        await self._done.wait()
        if self._refused is not None:
            raise NotPrimary("another member leads already", retry_after_ms=HEIR_MS)
        return epoch

    async def finish(self) -> None:
        """For the end of the process: hand over to any member. Where a hand-over has begun, return when it is in the log."""
        if self._standing.leads and not self._asked.is_set():
            self._asked.set()
        if self._asked.is_set():
            await self._done.wait()

    async def run(self) -> None:
        """Hand over when it is asked for. Returns when the log has the end, or will never have it: this life is over."""
        await self._asked.wait()
        self._commit.refuse(self._leading.handing_over())
        settled = await self._settled()
        self._beating.stop()

        def refused(error: DelayServerError) -> None:
            self._refused = error
            self._done.set()

        horizon_ms = 0 if settled else self._standing.horizon_ms
        # The heir may lead before this task goes on: whether this process has handed over is what the log says of its note.
        self._proposals.note(EndNote(self._heir, horizon_ms), lambda _: self._done.set(), refused)
        await self._done.wait()

    async def _settled(self) -> bool:
        """Whether everything that was ever attempted has an outcome in the log."""
        with trio.move_on_after(SETTLE_S):
            try:
                await self._end.settling.messages()
            except (DelayServerError, StoreError):
                return False
            return not self._end.checkpoint.any_uncertain
        return False
