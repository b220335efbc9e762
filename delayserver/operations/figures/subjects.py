"""The operation `subjects`: the names of the subjects that this node has met, by pages, so that patterns find them."""

from __future__ import annotations

from typing import Final

from delayserver.operations.access.access import Access
from delayserver.operations.access.patterns import matcher_of
from delayserver.protocol.schema.subjects import ListSubjects, SubjectsPage
from delayserver.runtime.fair_turns import Work
from store.tables.names import SUBJECT, Names

SCANNED_MAX: Final = 65_536
"""Names compared for a reply: some 50 ms of work, in slices. A page without a match ends here too."""

_PART: Final = 4096
"""Codes looked at between two slices."""


class Subjects:
    """Lists subjects."""

    def __init__(self, names: Names) -> None:
        self._names = names

    async def page(self, asked: ListSubjects, work: Work, access: Access) -> SubjectsPage:
        """The first subjects that are asked for, in the order in which they became known. Those that are not open to the
        client are left out.

        An `after` that this node never gave, such as one of an older data directory, begins anew."""
        names, matches = self._names, matcher_of(asked.pattern)
        after = asked.after if asked.after <= len(names) else 0
        found: list[str] = []
        stop = after + SCANNED_MAX
        while after < stop:
            codes, reached = names.codes_behind(SUBJECT, after, min(_PART, stop - after))
            for code in codes:
                await work.items()
                name = names.name(code)
                if name.startswith(asked.prefix) and matches(name) and access.may(name):
                    found.append(name)
                    if len(found) == asked.max:
                        return SubjectsPage(found, code, more=code < len(names))
            if reached == after:
                break
            after = reached
        return SubjectsPage(found, after, more=after < len(names))
