"""The operations `groups`, `group`, `seek` and `remove_group`: consumer groups of this node, and where they go on."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Final

from delayserver.broker.actions.group_backlog import GroupRow
from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.service.group_positions import POSITION, TIME, Goal, unknown_group
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.access.access import Access
from delayserver.operations.groups.policies import waiting_letters
from delayserver.operations.groups.redelivery import Redelivery, commit_errors
from delayserver.protocol.arguments import one_form
from delayserver.protocol.schema.groups import (
    ConsumerGroup,
    GroupRemoved,
    GroupsPage,
    ListGroups,
    RemoveGroup,
    SeekGroup,
    ShowGroup,
    Sought,
)
from delayserver.protocol.schema.structs import arguments_of
from delayserver.runtime.fair_turns import Work

# A group with its backlog costs as much as so many small items.
GROUP_ITEMS: Final = 20


class ConsumerGroups:
    """Shows consumer groups, moves them, and removes them."""

    def __init__(self, broker: LocalBroker, redelivery: Redelivery, names: NameDesk) -> None:
        self._rows = broker.core.group_rows
        self._letters = broker.core.dead_letters
        self._bounds = broker.core.positions.bounds
        self._reads = broker.reads
        self._positions = broker.positions
        self._redelivery = redelivery
        self._names = names

    async def page(self, asked: ListGroups, work: Work, access: Access) -> GroupsPage:
        """The first groups behind `after` that are open to a client. Raises SubjectInvalid."""
        code = 0
        if asked.subject is not None:
            code = self._names.known_subject(asked.subject)
            if not code:
                return GroupsPage([], None)
        subject, group = asked.after or (0, 0)
        keys = self._rows.keys((subject, group), code, asked.max)
        groups = []
        for key in keys:
            await work.items(GROUP_ITEMS)
            row = await self._reads.answer(partial(self._rows.row, key))
            if row is not None and access.may(self._names.name(row.subject)):
                groups.append(self._shown(row))
        return GroupsPage(groups, list(keys[-1]) if len(keys) == asked.max else None)

    async def one(self, asked: ShowGroup) -> ConsumerGroup:
        """One group. Raises SubjectInvalid, GroupUnknown."""
        row = await self._reads.answer(partial(self._rows.row, self._known(asked.subject, asked.group)))
        if row is None:
            raise unknown_group()
        return self._shown(row)

    async def seek(self, asked: SeekGroup) -> Sought:
        """Moves a group, durably. Raises SubjectInvalid, GroupUnknown, PositionOutOfRange, DiskFull, StorageFailed."""
        goal, (subject, group) = _goal(asked), self._known(asked.subject, asked.group)
        with commit_errors():
            position = await self._positions.seek(subject, group, goal)
        return Sought(position, *self._bounds(subject))

    async def remove(self, asked: RemoveGroup) -> GroupRemoved:
        """Removes a group, durably. Raises SubjectInvalid, GroupUnknown, DiskFull, StorageFailed."""
        with commit_errors():
            await self._positions.remove(*self._known(asked.subject, asked.group))
        return GroupRemoved()

    def _shown(self, row: GroupRow) -> ConsumerGroup:
        subject, group = self._names.name(row.subject), self._names.name(row.group)
        letters = waiting_letters(self._letters, self._names.code, subject, group)
        names = {"subject": subject, "group": group, "dead_letters": letters}
        return ConsumerGroup(**asdict(self._redelivery.whole(row)) | names)

    def _known(self, subject: str, group: str) -> GroupKey:
        """The codes of the names. Raises SubjectInvalid, GroupUnknown."""
        codes = self._names.known(subject, group)
        if not all(codes):
            raise unknown_group()
        return codes


def _goal(asked: SeekGroup) -> Goal:
    """Where a seek goes. Raises InvalidArgument."""
    one_form(arguments_of(asked), ("to", "time_ms", "position"))
    if asked.to is not None:
        return Goal(asked.to)
    if asked.time_ms is not None:
        return Goal(TIME, asked.time_ms * 1000)
    assert asked.position is not None
    return Goal(POSITION, asked.position)
