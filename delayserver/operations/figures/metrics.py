"""The operation `metrics`: all figures that monitors draw, in one answer. Changes nothing.

It is read in slices: its lists are bounded, and between two parts of them other requests have their turns.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from delayserver.broker.queues.groups import GroupKey
from delayserver.broker.reads import ReadNeeded
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.operations.figures.pending import PendingSubjects, SubjectPending
from delayserver.operations.figures.queues import QueuesReader, QueueUse
from delayserver.operations.figures.status import ServerStatus, Status
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.stage_times import BOUNDS_US
from delayserver.state.counts.latency import TOLD_BOUNDS_US, Lateness
from store.tables.names import Names

GROUPS_MAX: Final = 1_000
"""Consumer groups of a reply, the first ones by their codes. `groups` lists all of them by pages."""

SUBJECTS_MAX: Final = 1_000
"""Subjects of a reply, those with the most pending messages. `pending` lists all of them by pages."""

READS_MAX: Final = 64
"""Groups for whose `oldest_ms` one call reads the disk. A later call reads the rest, and the result is kept."""


@dataclass(frozen=True, slots=True)
class Histogram:
    """`counts` has one more bucket than `bounds_us`: what is longer than the last bound."""

    bounds_us: tuple[int, ...]
    counts: list[int]
    sum_us: int


@dataclass(frozen=True, slots=True)
class LatenessFigures:
    """How late the messages of a broker group were handed over. `early` must be 0."""

    histogram: Histogram
    early: int


@dataclass(frozen=True, slots=True)
class ConsumerGroupFigures:
    """The backlog of a consumer group. `oldest_ms`: the due time of its oldest message that is not acked; None if there
    is none, or if it was not read yet."""

    subject: str
    group: str
    lag: int
    leased: int
    retrying: int
    oldest_ms: int | None


@dataclass(frozen=True, slots=True)
class Figures:
    """All of it."""

    status: ServerStatus
    lateness: dict[str, LatenessFigures]
    stages: dict[str, Histogram]
    queues: list[QueueUse]
    consumer_groups: list[ConsumerGroupFigures]
    consumer_groups_all: int
    subjects: list[SubjectPending]
    subjects_counted: bool


_Place = tuple[int, ...]


class GroupsReader:
    """Reads what the consumer groups have before them."""

    def __init__(self, broker: LocalBroker, names: Names) -> None:
        self._core = broker.core
        self._reads = broker.reads
        self._names = names
        # By group, its place at the last call, and the due time of its oldest message there.
        self._oldest: dict[GroupKey, tuple[_Place, int | None]] = {}
        self._reads_left = 0

    async def read(self, count_max: int, work: Work) -> list[ConsumerGroupFigures]:
        """The first groups in the order of their codes."""
        found, names, known = [], self._names, self._oldest
        self._oldest, self._reads_left = {}, READS_MAX
        for key in self._core.group_keys((0, 0), 0, count_max):
            await work.items()
            row = self._core.group_row(key, with_oldest=False)
            if row is None:
                continue
            oldest_ms = await self._oldest_ms(key, known.get(key)) if row.lag else None
            subject, group = names.name(row.subject), names.name(row.group)
            found.append(ConsumerGroupFigures(subject, group, row.lag, row.leased, row.retrying, oldest_ms))
        return found

    async def _oldest_ms(self, key: GroupKey, known: tuple[_Place, int | None] | None) -> int | None:
        """The due time of the oldest message, from the last call if the group has not moved since."""
        place = self._core.oldest_place(key)
        if known is None or known[0] != place:
            try:
                row = self._core.group_row(key)
            except ReadNeeded:
                if not self._reads_left:
                    return None
                self._reads_left -= 1
                row = await self._reads.answer(partial(self._core.group_row, key))
            if row is None:  # it was removed meanwhile
                return None
            known = place, row.oldest_ms
        self._oldest[key] = known
        return known[1]

    def count(self) -> int:
        """All groups."""
        return self._core.group_count


class Metrics:
    """Reads all figures."""

    def __init__(
        self,
        status: Status,
        lateness: Lateness,
        queues: QueuesReader,
        groups: GroupsReader,
        subjects: PendingSubjects,
        runtime: Runtime,
    ) -> None:
        self._status = status
        self._lateness = lateness
        self._queues = queues
        self._groups = groups
        self._subjects = subjects
        self._stages = runtime.stages

    async def read(self, work: Work) -> Figures:
        """The figures of now. Those of a part belong together; between the parts other work may have changed them."""
        await work.items()
        status = self._status.now()
        lateness = {}
        for name, each in self._lateness.groups().items():
            await work.items()
            histogram = Histogram(TOLD_BOUNDS_US, each.told_counts(), each.sum_us)
            lateness[name] = LatenessFigures(histogram, each.early)
        stages = {
            name: Histogram(BOUNDS_US, each.counts, each.sum_us) for name, each in self._stages.histograms().items()
        }
        await work.items()
        queues = self._queues.read()
        groups = await self._groups.read(GROUPS_MAX, work)
        counted = self._subjects.is_counted
        subjects = await self._subjects.largest(SUBJECTS_MAX, work)
        return Figures(status, lateness, stages, queues, groups, self._groups.count(), subjects, counted)
