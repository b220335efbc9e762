"""The clean end of a server: all that is in flight is settled, and the next start has nothing to recover."""

from __future__ import annotations

from functools import partial

from delayserver.server.parts import Parts
from store.errors import DiskFullError
from store.tables.checkpoint import Uncertain


class CleanEnd:
    """Settles what is in flight. Each call may be cancelled: the next start recovers the rest then."""

    def __init__(self, parts: Parts) -> None:
        """All tasks of `parts` run meanwhile."""
        self._parts = parts

    async def settle_messages(self) -> None:
        """Wait until what was accepted is placed, what is attempted has a result, and all of it is durable. Raises
        DiskFullError where the replay waits for room, when the attempts are settled."""
        parts, room = self._parts, self._parts.ground.outside.replay_room
        await parts.receive.commit.stop()
        parts.dispatch.groups.stop()
        replayed, accepted = parts.state.positions.replayed_sequence, parts.state.positions.accepted_sequence.value
        await room.end_when_blocked(partial(replayed.reached, accepted))
        await self.settle_attempts()
        if replayed.value < accepted:
            raise DiskFullError(room.text)

    async def settle_attempts(self) -> None:
        """Let groups begin no more attempts, and wait until each has a result and all of them are durable."""
        parts = self._parts
        parts.dispatch.groups.stop()
        for group in list(parts.state.residency.groups.values()):
            while group.running:
                await group.ended.reached(group.begun)
        await parts.outcomes.recorder.flush()
        await parts.broker.broker_commit.durable()

    async def write_checkpoint(self) -> Uncertain | None:
        """Returns the messages that a process before this one may have delivered without a known result. Raises
        DiskFullError."""
        uncertain = self._uncertain()
        await self._parts.upkeep.checkpointing.write(clean=True, uncertain=uncertain)
        return uncertain

    async def close_broker(self, uncertain: Uncertain | None) -> None:
        """Close the broker, then write that the end was clean. The front takes no requests any more."""
        parts, opened = self._parts, self._parts.opened
        parts.upkeep.segments_ahead.drop()
        await parts.broker.publishing.close()
        await parts.broker.local_broker.close()
        if opened.attempts.attempted.any_unknown:
            return  # the next start must take the end for a crash, and ask
        if uncertain is None:
            opened.sequences.close_clean()
        else:
            opened.sequences.close_orderly()

    def _uncertain(self) -> Uncertain | None:
        """None where all messages of processes before this one have an outcome now. Messages that this process accepted are
        never uncertain."""
        attempted = self._parts.opened.attempts.attempted
        # What a crash took from the minutes of a draining day waits in the file of the day.
        draining = any(day.start_ms < attempted.due_before_ms for day in self._parts.files.days.draining())
        if draining or any(True for _ in self._parts.state.book.incomplete_before(attempted.due_before_ms)):
            return Uncertain(attempted.due_before_ms, attempted.sequence_before)
        return None
