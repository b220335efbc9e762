"""Where consumer groups go on: a position by name or by time, seeks, the start of a new group, removal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from delayserver.broker.actions.group_moves import GroupMoves
from delayserver.broker.actions.group_table import GroupTable
from delayserver.broker.queues.ranges import Range
from delayserver.broker.service.broker_reads import BrokerReads
from delayserver.broker.service.commit import BrokerCommit
from delayserver.broker.service.pulls import TOO_MANY_GROUPS, PullService
from delayserver.protocol.errors import GroupsFull, GroupUnknown, PositionOutOfRange

EARLIEST: Final = "earliest"
LATEST: Final = "latest"
TIME: Final = "time"
POSITION: Final = "position"


@dataclass(frozen=True, slots=True)
class Goal:
    """Where a group shall go on. `kind` is one of the names above. `number`: microseconds since 1970 for a time (the
    first message that was dispatched at or after it), or a position."""

    kind: str
    number: int = 0


class GroupPositions:
    """Moves and removes the groups of a broker. All that it answers is durable."""

    def __init__(
        self,
        positions: GroupMoves,
        groups: GroupTable,
        commit: BrokerCommit,
        pulls: PullService,
        reads: BrokerReads,
    ) -> None:
        self._positions = positions
        self._groups = groups
        self._commit = commit
        self._pulls = pulls
        self._reads = reads

    async def seek(self, subject: int, group: int, goal: Goal) -> int:
        """Move a group; returns its new position. Leases end, and waiting pulls look again.

        Raises GroupUnknown, PositionOutOfRange, and what `BrokerCommit.durable` raises."""
        key = (subject, group)
        if key not in self._groups:
            raise unknown_group()
        position = await self.find(subject, goal)
        if key not in self._groups:  # it was removed meanwhile
            raise unknown_group()
        position = self._checked(subject, goal, position)
        self._positions.seek(key, position)
        self._pulls.wake_group(subject, group)
        await self._commit.durable()
        return position

    async def begin(self, subject: int, group: int, goal: Goal) -> None:
        """Make a group that begins at a goal. Does nothing if the group exists. Raises GroupsFull, and what
        `BrokerCommit.durable` raises."""
        key = (subject, group)
        if key in self._groups:
            return
        position = await self.find(subject, goal)
        if key in self._groups:
            return
        if not self._groups.admits(key):
            raise GroupsFull(TOO_MANY_GROUPS)
        self._positions.begin(key, self._checked(subject, goal, position))
        await self._commit.durable()

    async def remove(self, subject: int, group: int) -> None:
        """Remove a group. Its waiting pulls end without messages. A later pull makes a new group.

        Raises GroupUnknown, and what `BrokerCommit.durable` raises."""
        key = (subject, group)
        if key not in self._groups:
            raise unknown_group()
        self._groups.remove(key)
        self._pulls.end_group(subject, group)
        await self._commit.durable()

    async def at_time(self, subject: int, time_us: int) -> int:
        """The position of the first message that was dispatched at or after a time. Raises StoreError."""
        return await self.find(subject, Goal(TIME, time_us))

    def require_not_passed(self, subject: int, group: int) -> None:
        """Raise PositionOutOfRange once if retention removed messages that the group had not acked."""
        bounds = self._positions.take_passed((subject, group))
        if bounds is not None:
            raise out_of_range(
                bounds,
                "the group lagged by more than the node keeps for it, and messages that it had not acked are removed; "
                f"the next pull goes on at {bounds[0]}",
            )

    async def find(self, subject: int, goal: Goal) -> int:
        """The position of a goal. A named position is not checked. Raises ShuttingDown."""
        first, end = self._positions.bounds(subject)
        if goal.kind == TIME:
            search = self._positions.search(subject, goal.number)
            return first if search is None else await self._reads.finish(search)
        return {EARLIEST: first, LATEST: end}.get(goal.kind, goal.number)

    def _checked(self, subject: int, goal: Goal, position: int) -> int:
        bounds = first, end = self._positions.bounds(subject)
        if goal.kind != POSITION:  # retention may have removed messages during the search
            return min(max(position, first), end)
        if not first <= position <= end:
            raise out_of_range(bounds, f"position {position} is not there: the subject has {first} to {end}")
        return position


def unknown_group() -> GroupUnknown:
    """The error for a group that this node does not have."""
    return GroupUnknown("this node has no such consumer group of this subject; `groups` lists what it has")


def out_of_range(bounds: Range, message: str) -> PositionOutOfRange:
    """The error for a position that is not there, with the bounds of the subject."""
    return PositionOutOfRange(message, details={"first": bounds[0], "end": bounds[1]})
