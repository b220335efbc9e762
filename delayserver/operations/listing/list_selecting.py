"""Reads what a list is to have: names become codes, expressions become filters."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from delayserver.broker.filters.filter import FilterText
from delayserver.operations.access.access import Access
from delayserver.operations.access.patterns import matcher_of
from delayserver.operations.groups.filtering import FilterCompiler
from delayserver.operations.listing.list_scan import ListSelection
from delayserver.protocol.schema.pending import ListMessages
from delayserver.state.counts.subject_counts import SubjectCounts
from store.tables.names import SUBJECT, TAG, Names

_WILD: Final = frozenset("*?[")


class ListSelecting:
    """Makes selections."""

    def __init__(self, names: Names, filters: FilterCompiler, subjects: SubjectCounts) -> None:
        self._names = names
        self._filters = filters
        self._subjects = subjects

    async def selection(self, asked: ListMessages, access: Access) -> ListSelection | None:
        """What is asked for. None if no message can match. Raises FilterInvalid, Forbidden."""
        names = self._names
        may: Callable[[str], object] | None = None if access.everything else access.may
        subject = tag = 0
        if asked.subject is not None and not _WILD.isdisjoint(asked.subject):
            may = _both(matcher_of(asked.subject), may)
        elif asked.subject is not None:
            access.require(asked.subject)
            subject = names.code(SUBJECT, asked.subject)
            if not subject or (self._subjects.is_counted and not self._subjects.pending_of(subject)):
                return None
        if asked.tag is not None:
            tag = names.code(TAG, asked.tag)
            if not tag:
                return None
        where = None
        if asked.where is not None:
            where = (await self._filters.compile(FilterText(None, asked.where))).filter
        return ListSelection(asked.from_ms, asked.to_ms, asked.latest_first, subject, tag, may, where)


def sum_of(asked: ListMessages) -> int:
    """A sum over all of a request that makes the list."""
    fields = asked.subject, asked.from_ms, asked.to_ms, asked.tag, asked.where, asked.latest_first
    return zlib.crc32(repr(fields).encode(errors="replace"))


def _both(one: Callable[[str], object], other: Callable[[str], object] | None) -> Callable[[str], object]:
    return one if other is None else lambda subject: one(subject) and other(subject)
