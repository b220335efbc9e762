"""The operation `metrics`: all figures that monitors draw, in one answer. Changes nothing.

It is read in slices: its lists are bounded, and between two parts of them other requests have their turns.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from delayserver.broker.queues.group_cursors import GroupKey
from delayserver.broker.reads import ReadNeeded
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.figures.pending import PendingBySubject
from delayserver.operations.figures.queues import QueuesReader
from delayserver.operations.figures.status import Status
from delayserver.operations.groups.policies import waiting_letters
from delayserver.protocol.figures import ConsumerGroupFigures, Figures, Histogram, LatenessFigures, SubjectFigures
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.stage_times import BOUNDS_US
from delayserver.state.counts.latency import TOLD_BOUNDS_US, Lateness
from delayserver.state.counts.redeliveries import Redeliveries
from store.tables.names import Names

GROUPS_MAX: Final = 1_000
"""Consumer groups of a reply, the first ones by their codes. `groups` lists all of them by pages."""

SUBJECTS_MAX: Final = 1_000
"""Subjects of a reply, those with the most pending messages. `pending` lists all of them by pages."""

GROUPS_AT_ONCE: Final = 64
"""Groups read between two slices: some 150 µs."""

READS_MAX: Final = 64
"""Groups for whose `oldest_ms` one call reads the disk. A later call reads the rest, and the result is kept."""


_Oldest = tuple[tuple[int, int, int, int], int | None]


class GroupsReader:
    """Reads what the consumer groups have before them."""

    def __init__(self, broker: LocalBroker, redeliveries: Redeliveries, names: Names) -> None:
        self._rows = broker.core.group_rows
        self._letters = broker.core.dead_letters
        self._groups = broker.core.state.groups
        self._reads = broker.reads
        self._redeliveries = redeliveries
        self._names = names
        # By group, its place at the last call, and the due time of its oldest message there.
        self._oldest: dict[GroupKey, _Oldest] = {}
        self._reads_left = 0

    async def read(self, count_max: int, work: Work, access: Access) -> list[ConsumerGroupFigures]:
        """The first groups in the order of their codes whose subjects are open to the client."""
        name, known, after = self._names.name, self._oldest, (0, 0)
        found: list[ConsumerGroupFigures] = []
        # A client that sees a part of the groups leaves what is known of the others.
        self._oldest, self._reads_left = {} if access.everything else dict(known), READS_MAX
        while len(found) < count_max and (keys := self._rows.keys(after, 0, GROUPS_AT_ONCE)):
            after = keys[-1]
            await work.items(len(keys))
            part = [key for key in keys if access.may(name(key[0]))]
            backlogs = list(self._rows.backlogs(part[: count_max - len(found)]))
            on_their_way = [self._redeliveries.waiting(each.key) for each in backlogs]  # as of the same step
            for each, waiting in zip(backlogs, on_their_way, strict=True):
                (subject, group), lag, leased, retrying, waiting_keys, place = each
                oldest_ms = None
                if lag:
                    oldest = known.get(each.key)
                    if oldest is None or oldest[0] != place:
                        oldest = await self._read_oldest(each.key, work)
                    if oldest is not None:
                        self._oldest[each.key] = oldest
                        oldest_ms = oldest[1]
                since_ms = self._redeliveries.oldest_ms(each.key)
                if since_ms is not None:
                    oldest_ms = min(since_ms, oldest_ms or since_ms)
                lag, retrying = lag + waiting, max(0, retrying + waiting)
                dead_letters = waiting_letters(self._letters, self._names.code, name(subject), name(group))
                names, kept = (name(subject), name(group)), (dead_letters, waiting_keys)
                found.append(ConsumerGroupFigures(*names, lag, leased, retrying, oldest_ms, *kept))
        return found

    async def _read_oldest(self, key: GroupKey, work: Work) -> _Oldest | None:
        """The due time of the oldest message of a group that has moved since the last call. None: it was not read, or the
        group was removed meanwhile."""
        await work.items()
        try:
            row = self._rows.row(key)
        except ReadNeeded:
            if not self._reads_left:
                return None
            self._reads_left -= 1
            row = await self._reads.answer(partial(self._rows.row, key))
        # It may have moved again while this waited: the place and the due time are of one step.
        place = next((each.oldest_place for each in self._rows.backlogs((key,))), None)
        return None if row is None or place is None else (place, row.oldest_ms)

    def count(self) -> int:
        """All groups."""
        return len(self._groups)


class Metrics:
    """Reads all figures."""

    def __init__(
        self,
        status: Status,
        lateness: Lateness,
        queues: QueuesReader,
        groups: GroupsReader,
        subjects: PendingBySubject,
        runtime: Runtime,
    ) -> None:
        self._status = status
        self._lateness = lateness
        self._queues = queues
        self._groups = groups
        self._subjects = subjects
        self._stages = runtime.stages

    async def read(self, work: Work, access: Access = EVERYTHING) -> Figures:
        """The figures of now, with the groups and subjects that are open to the client. Those of a part belong together;
        between the parts other work may have changed them."""
        await work.items()
        status = self._status.now()
        lateness = {}
        for name, each in self._lateness.groups().items():
            await work.items()
            lateness[name] = LatenessFigures(TOLD_BOUNDS_US, each.told_counts(), each.sum_us, each.early)
        stages = {
            name: Histogram(BOUNDS_US, each.counts, each.sum_us) for name, each in self._stages.histograms().items()
        }
        await work.items()
        queues = self._queues.read()
        groups = await self._groups.read(GROUPS_MAX, work, access)
        counted = self._subjects.is_counted
        await work.items(SUBJECTS_MAX // 8)  # names in columns: some 100 µs
        largest = await self._subjects.largest(SUBJECTS_MAX, work, access)
        subjects = [SubjectFigures(*each) for each in largest.items()]
        return Figures(status, lateness, stages, queues, groups, self._groups.count(), subjects, counted)
