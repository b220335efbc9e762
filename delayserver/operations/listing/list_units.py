"""The units of a list of pending messages, in their order, as days and windows stand now. Reads no file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from delayserver.operations.listing.list_place import NOTHING, Listed, ListPlace
from delayserver.state.files import Files
from delayserver.state.windows.window_book import WindowBook
from store.logs.due_windows import DAY_MS, day_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource

_WINDOWS_AT_ONCE: Final = 16


@dataclass(frozen=True, slots=True)
class ListUnit:
    """A unit at its place, with the files that have its rows, in the order of their sequences, and about how many rows."""

    place: ListPlace
    files: tuple[ScheduleKey, ...]
    rows: int


class ListUnits:
    """Lists units that may have pending messages due in [from_ms, to_ms), the latest first if `latest`."""

    def __init__(self, files: Files, book: WindowBook, from_ms: int, to_ms: int, latest: bool) -> None:
        self._schedule = files.schedule
        self._days = files.days
        self._book = book
        self._from_ms = from_ms
        self._to_ms = to_ms
        self._latest = latest
        days = [day for day in self._schedule.days() if from_ms - DAY_MS < day < to_ms]
        # A day never gets a file of its own later on, unless its messages came after the list began.
        self._own = sorted([day for day in days if self._has_own_file(day)], reverse=latest)

    def begin(self) -> ListPlace:
        """The place before all units."""
        return ListPlace(day_of(max(self._to_ms - 1, 0) if self._latest else self._from_ms))

    def _has_own_file(self, day_ms: int) -> bool:
        """Whether the day's own file has its rows. A day on its way to minutes has them in both, and its own file counts."""
        whole = self._days.is_whole(day_ms)
        if whole and not self._book.incomplete_between(day_ms, day_ms + 1, 1):
            return False
        counts = whole or day_ms >= self._days.fine_until_ms or self._days.is_draining(day_ms)
        return counts and ScheduleKey(day_ms, ScheduleSource.DAY) in self._schedule

    def units_from(self, place: ListPlace) -> Iterator[ListUnit]:
        """The units at a place and behind it. To be gone through in one step."""
        passed = place.day_ms if place.start_ms >= 0 else None
        days = (
            day
            for day in self._own
            if day != passed and not self._is_behind(place.day_ms, day) and self._has_own_file(day)
        )
        windows = self._windows_from(place)
        day, window = next(days, None), next(windows, None)
        while day is not None or window is not None:
            if window is None or (day is not None and not self._is_behind(day, day_of(window))):
                assert day is not None
                yield self._day(day, place)
                day = next(days, None)
            else:
                yield self._window(window, place)
                window = next(windows, None)

    def behind(self, place: ListPlace, listed: Listed) -> ListPlace:
        """The place behind a unit of which so much was listed."""
        if place.start_ms >= 0:
            step = -1 if self._latest else 1
            return ListPlace(place.day_ms, max(place.start_ms + step, 0), of_day=place.of_day)
        start_ms = place.day_ms + (DAY_MS - self._book.window_ms if self._latest else 0)
        return ListPlace(place.day_ms, start_ms, of_day=listed)

    def _is_behind(self, one_ms: int, other_ms: int) -> bool:
        """Whether one day or window comes behind another one."""
        return one_ms < other_ms if self._latest else one_ms > other_ms

    def _windows_from(self, place: ListPlace) -> Iterator[int]:
        """Windows with messages without an outcome. Whole days are left out."""
        first, stop = self._from_ms - self._book.window_ms + 1, self._to_ms
        if self._latest:
            stop = min(stop, place.day_ms + DAY_MS if place.start_ms < 0 else place.start_ms + 1)
        else:
            first = max(first, place.day_ms if place.start_ms < 0 else place.start_ms)
        while starts := self._book.incomplete_between(first, stop, _WINDOWS_AT_ONCE, latest=self._latest):
            yield from [start for start in starts if not self._days.is_whole(start)]
            if self._latest:
                stop = starts[-1]
            else:
                first = starts[-1] + 1

    def _day(self, day_ms: int, place: ListPlace) -> ListUnit:
        listed = place.listed if (place.day_ms, place.start_ms) == (day_ms, -1) else NOTHING
        file = ScheduleKey(day_ms, ScheduleSource.DAY)
        return ListUnit(ListPlace(day_ms, -1, listed), (file,), self._schedule.rows(file))

    def _window(self, start_ms: int, place: ListPlace) -> ListUnit:
        sources = [ScheduleSource.DIRECT]
        if not self._days.is_draining(start_ms):
            sources.insert(0, ScheduleSource.FROM_DAY)  # its sequences are the lower ones
        files = [ScheduleKey(start_ms, source) for source in sources]
        files = [file for file in files if file in self._schedule]
        listed = place.listed if place.start_ms == start_ms else NOTHING
        at = ListPlace(day_of(start_ms), start_ms, listed, _of_day(day_of(start_ms), place))
        return ListUnit(at, tuple(files), sum([self._schedule.rows(file) for file in files]))


def _of_day(day_ms: int, place: ListPlace) -> Listed:
    """The listed rows of the own file of a day, for its windows."""
    if place.day_ms != day_ms:
        return NOTHING
    return place.listed if place.start_ms < 0 else place.of_day
