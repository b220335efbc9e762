"""The operation `pending` by message: which messages wait, by pages.

A page reads about `ROWS_SCANNED_MAX` rows of schedule files at most, in worker threads, and then ends where it is.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from typing import Final

import numpy as np

from delayserver.operations.access.access import Access
from delayserver.operations.listing.list_page import ListPage
from delayserver.operations.listing.list_place import ListPlace
from delayserver.operations.listing.list_scan import PART_ROWS, ListSelection, Scanned
from delayserver.operations.listing.list_selecting import ListSelecting, sum_of
from delayserver.operations.listing.list_units import ListUnit, ListUnits
from delayserver.operations.listing.shown_messages import ShownMessages
from delayserver.operations.listing.unsettled import WINDOW_ITEMS, Unsettled
from delayserver.protocol.schema.pending import ListMessages, PendingMessagesPage
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from delayserver.state.files import Files
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.window_book import WindowBook

ROWS_SCANNED_MAX: Final = 262_144
"""Rows that are read for a reply: some 50 ms of work in a thread. A page without a match ends here too."""

FILE_ROWS: Final = 256
"""What a unit costs besides its rows, in rows."""

UNITS_AT_ONCE: Final = 32
"""Units that one call of a thread reads. The first calls of a page read fewer: it may be full soon."""

_ROWS_AT_ONCE: Final = 1_024
"""Rows whose outcomes are looked up in a step."""


class PendingMessages:
    """Lists pending messages."""

    def __init__(
        self,
        files: Files,
        book: WindowBook,
        positions: Positions,
        selecting: ListSelecting,
        unsettled: Unsettled,
        shown: ShownMessages,
        runtime: Runtime,
    ) -> None:
        self._files = files
        self._book = book
        self._positions = positions
        self._selecting = selecting
        self._unsettled = unsettled
        self._shown = shown
        self._workers = runtime.workers

    async def page(self, asked: ListMessages, work: Work, access: Access) -> PendingMessagesPage:
        """The first pending messages behind a place whose subjects are open to the client. All that were accepted before
        the first page, and wait until the last one, are on one page, unless damage hides them.

        Raises InvalidArgument, FilterInvalid, Forbidden."""
        sum_ = sum_of(asked)
        place = None if asked.after is None else ListPlace.parse(asked.after, sum_)
        wanted = await self._selecting.selection(asked, access)
        if wanted is None:
            return PendingMessagesPage([], None, 0 if asked.count else None)
        await self._positions.replayed_sequence.reached(self._positions.accepted_sequence.value)
        units = ListUnits(self._files, self._book, asked.from_ms, asked.to_ms, asked.latest_first)
        page = ListPage(asked.max, asked.count)
        rest = await self._fill(page, units, units.begin() if place is None else place, wanted, work)
        following = page.next or rest
        messages, left_off = await self._shown.messages(page, asked, work)
        if left_off is not None:
            following = left_off
        return PendingMessagesPage(
            messages,
            None if following is None else following.text(sum_),
            page.matching if asked.count else None,
            asked.count and rest is not None,
            page.unreadable,
        )

    async def _fill(
        self, page: ListPage, units: ListUnits, place: ListPlace, wanted: ListSelection, work: Work
    ) -> ListPlace | None:
        """Fills a page from a place on. Returns up to where it has read; None: to the end of the list."""
        spent, at_once = 0, 1
        while spent < ROWS_SCANNED_MAX:
            some = self._some_units(units, place, at_once, ROWS_SCANNED_MAX - spent)
            if not some:
                return None
            at_once = min(2 * at_once, UNITS_AT_ONCE)
            found = await self._workers.run(partial(self._shown.scanner.scan, some, wanted))
            for scanned in found:
                await work.items(WINDOW_ITEMS)
                unit = scanned.unit
                if any(file not in self._files.schedule for file in unit.files):
                    break  # it was drained or retired, and its messages may be elsewhere: look again
                spent += scanned.looked + FILE_ROWS
                page.note_damages(0 if page.is_full else scanned.damages)
                if await self._take(page, scanned, work):
                    return unit.place
                place = (
                    units.behind(unit.place, scanned.listed)
                    if scanned.is_last
                    else unit.place.with_listed(scanned.listed)
                )
        return place

    def _some_units(self, units: ListUnits, place: ListPlace, count_max: int, rows_max: int) -> list[ListUnit]:
        """The next units, with about as many rows as may be read in one go. One at least, if there is any."""
        some: list[ListUnit] = []
        left = min(rows_max, PART_ROWS)
        for unit in islice(units.units_from(place), count_max):
            some.append(unit)
            left -= unit.rows + FILE_ROWS
            if left <= 0:
                break
        return some

    async def _take(self, page: ListPage, scanned: Scanned, work: Work) -> bool:
        """Takes the messages of a part into a page. Whether the page is full, and nothing is to be counted."""
        index = scanned.rows.index
        for start in range(0, len(index), _ROWS_AT_ONCE):
            rows = np.arange(start, min(start + _ROWS_AT_ONCE, len(index)))
            page.take(scanned, rows[await self._unsettled.mask(index.due_ms[rows], index.sequence[rows], work)])
            if page.is_full and not page.counts:
                return True
        return False
