"""What several shards answer to one question, as one reply. No I/O.

A subject or a consumer group may be at several shards: its counts are added. A page of such rows has the order of their
names, and its `next` is the last name. `shard_places` has the lists of rows that are at one shard each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Generic, TypeVar

from msgspec.structs import replace

from delayserver.client.calls.core import Call
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.operation_names import GROUPS, PENDING, SUBJECTS
from delayserver.protocol.schema.groups import GROUPS_AT_ONCE_MAX, ConsumerGroup, GroupsPage
from delayserver.protocol.schema.pending import (
    BUCKETS_AT_ONCE_MAX,
    PendingBucket,
    PendingPage,
    PendingSubject,
    PendingSubjectsPage,
)
from delayserver.protocol.schema.subjects import SUBJECTS_AT_ONCE_MAX, SubjectsPage

R = TypeVar("R")
P = TypeVar("P")

Cursor = Any
"""The `after` of a request, and the `next` of a reply."""


def added_buckets(pages: Sequence[PendingPage], count_max: int) -> PendingPage:
    """The first page of the sums of buckets. Each shard's page begins at the same time."""
    ends = [page.next_ms for page in pages if page.next_ms is not None]
    sums: dict[tuple[int, int], int] = {}
    for page in pages:
        for each in page.buckets:
            place = each.start_ms, each.width_ms
            sums[place] = sums.get(place, 0) + each.pending
    starts = sorted({start_ms for start_ms, _ in sums})
    # A page ends between two times, since the next one begins at a time.
    ends += starts[count_max : count_max + 1]
    end_ms = min(ends, default=None)
    buckets = [
        PendingBucket(*place, pending) for place, pending in sorted(sums.items()) if end_ms is None or place[0] < end_ms
    ]
    return PendingPage(buckets, end_ms, sum(page.unplaced for page in pages))


def added_groups(one: ConsumerGroup, other: ConsumerGroup) -> ConsumerGroup:
    """A consumer group at two places. The filter is that of the first one."""
    known = [each.oldest_ms for each in (one, other) if each.oldest_ms is not None]
    sums = {name: getattr(one, name) + getattr(other, name) for name in _GROUP_COUNTS}
    return replace(one, **sums, oldest_ms=min(known, default=None))


_GROUP_COUNTS: Final = (
    "position", "end", "lag", "leased", "retrying", "expired", "waiting_in_place", "redelivery_bytes", "dead_letters",
    "waiting_keys", "filtered",
)  # fmt: skip


def added_subjects(one: PendingSubject, other: PendingSubject) -> PendingSubject:
    """What is pending of a subject at two places."""
    return replace(one, pending=one.pending + other.pending)


def added_acts(acted: Sequence[Any], done: str, left: int) -> Any:
    """What shards did to letters or keys, one after the other. ``done`` names the count."""
    sums = {name: sum(getattr(each, name) for each in acted) for name in (done, *_ALSO_ADDED.get(done, ()))}
    return replace(acted[-1], **sums, left=left)


_ALSO_ADDED: Final = {"resent": ("unreadable",)}


@dataclass(frozen=True)
class NamedRows(Generic[R, P]):
    """A list whose rows have names, which several shards may have.

    ``rows`` and ``next`` read a page of one shard; ``next`` is None after the last one. ``name`` is the order of the merged
    list. ``page`` makes a page of rows, from the cursor and whether more follow.
    """

    rows: Callable[[P], list[R]]
    next: Callable[[P], Cursor]
    name: Callable[[R], Sequence[str]]
    add: Callable[[R, R], R]
    page: Callable[[list[R], Cursor, bool], P]
    max: int

    def merged(self, shards: Iterable[Iterable[R]], arguments: dict[str, Any]) -> P:
        """The page behind the `after` of a request, of all rows of all shards. Raises InvalidArgument."""
        after, count_max = arguments.get("after"), arguments.get("max", self.max)
        behind = self._behind(after)
        of_name: dict[tuple[str, ...], list[R]] = {}
        for rows in shards:
            for row in rows:
                name = tuple(self.name(row))
                if behind is None or name > behind:
                    of_name.setdefault(name, []).append(row)
        names = sorted(of_name)
        chosen = names[:count_max]
        last: Cursor = after
        if chosen:
            last = chosen[-1][0] if len(chosen[-1]) == 1 else list(chosen[-1])
        return self.page([reduce(self.add, of_name[name]) for name in chosen], last, len(names) > len(chosen))

    def _behind(self, after: Cursor) -> tuple[str, ...] | None:
        if after is None or after == 0:
            return None
        name = (after,) if isinstance(after, str) else tuple(after) if isinstance(after, (list, tuple)) else ()
        if not name or not all(isinstance(each, str) for each in name):
            raise InvalidArgument("after is that of one shard: give the `next` of a page of all shards")
        return name


def _subjects_page(rows: list[str], last: Cursor, more: bool) -> SubjectsPage:
    return SubjectsPage(rows, last or 0, more)


NAMED_ROWS: Final[dict[str, NamedRows[Any, Any]]] = {
    SUBJECTS: NamedRows[str, SubjectsPage](
        rows=lambda page: page.subjects,
        next=lambda page: page.next if page.more else None,
        name=lambda row: [row],
        add=lambda one, _: one,
        page=_subjects_page,
        max=SUBJECTS_AT_ONCE_MAX,
    ),
    PENDING: NamedRows[PendingSubject, PendingSubjectsPage](
        rows=lambda page: page.subjects,
        next=lambda page: page.next,
        name=lambda row: [row.subject],
        add=added_subjects,
        page=lambda rows, last, more: PendingSubjectsPage(rows, last if more else None),
        max=SUBJECTS_AT_ONCE_MAX,
    ),
    GROUPS: NamedRows[ConsumerGroup, GroupsPage](
        rows=lambda page: page.groups,
        next=lambda page: page.next,
        name=lambda row: [row.subject, row.group],
        add=added_groups,
        page=lambda rows, last, more: GroupsPage(rows, last if more else None),
        max=GROUPS_AT_ONCE_MAX,
    ),
}
"""By operation. That of `pending` is the form by subject."""


def counts_times(call: Call[Any]) -> bool:
    """Whether the call is `pending` by the time."""
    return call.operation == PENDING and call.arguments["by"] != "subject"


def bucket_max(arguments: dict[str, Any]) -> int:
    """The times of a page at most."""
    return int(arguments.get("max", BUCKETS_AT_ONCE_MAX))
