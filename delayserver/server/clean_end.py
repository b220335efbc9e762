"""The clean end of a server: all that is in flight is settled, and the next start has nothing to recover.

Each step may be cancelled: the next start recovers the rest then. All tasks of the server run meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.broker.service.publishing import Publishing
from delayserver.dispatch.broker_groups import BrokerGroups
from delayserver.outcomes.outcome_recorder import OutcomeRecorder
from delayserver.receive.group_commit import GroupCommit
from delayserver.runtime.room_wait import RoomWait
from delayserver.startup.directory_opening import Opened
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.window_book import WindowBook
from delayserver.upkeep.checkpointing import Checkpointing
from delayserver.upkeep.segments_ahead import SegmentsAhead
from store.errors import DiskFullError
from store.tables.checkpoint import Uncertain


class Settling:
    """What is accepted or attempted gets its result, and the result becomes durable."""

    def __init__(
        self,
        commit: GroupCommit,
        positions: Positions,
        room: RoomWait,
        groups: BrokerGroups,
        recorder: OutcomeRecorder,
        broker: BrokerCommit,
    ) -> None:
        self._commit = commit
        self._positions = positions
        self._room = room
        self._groups = groups
        self._recorder = recorder
        self._broker = broker

    async def messages(self) -> None:
        """Wait until what was accepted is placed, what is attempted has a result, and all of it is durable. Raises
        DiskFullError where the replay waits for room, when the attempts are settled."""
        self._groups.stop()
        await self._commit.stop()
        replayed, accepted = self._positions.replayed_sequence, self._positions.accepted_sequence.value
        await self._room.end_when_blocked(partial(replayed.reached, accepted))
        await self.attempts()
        if replayed.value < accepted:
            raise DiskFullError(self._room.text)

    async def attempts(self) -> None:
        """Let groups begin no more attempts, and wait until each has a result and all of them are durable."""
        await self._groups.settle()
        await self._recorder.flush()
        await self._broker.durable()


class LastCheckpoint:
    """The checkpoint that a clean end leaves, with the messages whose delivery is uncertain."""

    def __init__(self, checkpointing: Checkpointing, opened: Opened, book: WindowBook) -> None:
        self._checkpointing = checkpointing
        self._attempted = opened.attempts.attempted
        self._days = opened.files.days
        self._book = book

    async def write(self) -> Uncertain | None:
        """Returns the messages that a process before this one may have delivered without a known result. Raises
        DiskFullError."""
        uncertain = self._uncertain()
        await self._checkpointing.write(clean=True, uncertain=uncertain)
        return uncertain

    @property
    def any_uncertain(self) -> bool:
        """Whether a message may have been attempted without a known result."""
        return self._attempted.any_unknown or self._uncertain() is not None

    def _uncertain(self) -> Uncertain | None:
        """None where all messages of processes before this one have an outcome now. Messages that this process accepted are
        never uncertain."""
        attempted = self._attempted
        # What a crash took from the minutes of a draining day waits in the file of the day.
        draining = any(day.start_ms < attempted.due_before_ms for day in self._days.draining())
        if draining or any(True for _ in self._book.incomplete_before(attempted.due_before_ms)):
            return Uncertain(attempted.due_before_ms, attempted.sequence_before)
        return None


class BrokerEnd:
    """The broker closes, and then the directory says that the end was clean."""

    def __init__(
        self, segments_ahead: SegmentsAhead, publishing: Publishing, local_broker: LocalBroker, opened: Opened
    ) -> None:
        self._segments_ahead = segments_ahead
        self._publishing = publishing
        self._local_broker = local_broker
        self._attempted = opened.attempts.attempted
        self._sequences = opened.sequences

    async def close(self, uncertain: Uncertain | None) -> None:
        """Close the broker, then write that the end was clean. The front takes no requests any more."""
        self._segments_ahead.drop()
        await self._publishing.close()
        await self._local_broker.close()
        if self._attempted.any_unknown:
            return  # the next start must take the end for a crash, and ask
        if uncertain is None:
            self._sequences.close_clean()
        else:
            self._sequences.close_orderly()


@dataclass(frozen=True, slots=True)
class CleanEnd:
    """The steps of a clean end, in their order."""

    settling: Settling
    checkpoint: LastCheckpoint
    broker: BrokerEnd
