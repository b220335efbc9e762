"""Proposes records for tasks that wait until these are part of the directory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import trio

from delayserver.protocol.errors import DelayServerError, InDoubt
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.shard.proposals import Proposals, Refused
from delayserver.state.shard.standing import Standing
from store.logs.message_log import LogEntry
from store.records.segment import Appendable


class Proposing:
    """The proposals of one process, for its tasks. Each task has one on its way at a time."""

    def __init__(self, standing: Standing, proposals: Proposals, accepted: AcceptedLog) -> None:
        self._standing = standing
        self._proposals = proposals
        self._accepted = accepted
        # What tells each task that waits.
        self._waiting: set[Refused] = set()
        self._ended = False

    async def end_with(self, follow: Callable[[], Awaitable[None]]) -> None:
        """Follow the log until that ends. Then nothing comes back any more: who waits is told so, also behind a shield."""
        try:
            await follow()
        finally:
            self._ended = True
            for refuse in list(self._waiting):
                refuse(InDoubt("the server has ended, so the result is unknown"))

    @property
    def decides(self) -> bool:
        """Whether this process leads, and has applied all that came before its claim."""
        return self._standing.took_over.is_set()

    async def propose(self, records: Sequence[Appendable]) -> int:
        """Return when the records came back and are in message_log: the offset behind them there.

        Raises a DelayServerError if this process leads no longer: nobody can say whether they count."""
        ended = trio.Event()
        end = 0
        refused: DelayServerError | None = None

        def accept(entries: list[LogEntry]) -> None:
            nonlocal end
            self._accepted.accept(entries)
            end = entries[-1].end
            ended.set()

        def refuse(error: DelayServerError) -> None:
            nonlocal refused
            refused = error
            ended.set()

        if self._ended:
            raise InDoubt("the server has ended")
        self._proposals.propose(records, accept, refuse)
        self._waiting.add(refuse)
        try:
            await ended.wait()
        finally:
            self._waiting.discard(refuse)
        if refused is not None:
            raise refused
        return end

    async def unless_ended(self, wait: Callable[[], Awaitable[object]]) -> None:
        """Await `wait()`, also behind a shield. Raises InDoubt where the log is followed no longer: what it waits for may
        never come then."""
        if self._ended:
            raise InDoubt("the server has ended")
        with trio.CancelScope() as scope:

            def end(_: DelayServerError) -> None:
                scope.cancel()

            self._waiting.add(end)
            try:
                await wait()
            finally:
                self._waiting.discard(end)
        if scope.cancelled_caught:
            raise InDoubt("the server has ended, so the result is unknown")

    async def decide(self, records: Sequence[Appendable]) -> int:
        """As `propose`, for a task that nobody waits for: it never returns if this process leads no longer, since that ends
        then."""
        try:
            return await self.propose(records)
        except DelayServerError:
            await trio.sleep_forever()
            raise
