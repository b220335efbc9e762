"""Which broker group a subject goes to. Patterns are shell-style (`orders.*`); the first route that matches decides."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import RouteSettings
from store.records.transaction_timer import TIMERS_SUBJECT
from store.tables.names import OWN, Names

# The group of timers of transactions. It is no broker group of the settings and has no name in names.log.
TIMERS_GROUP: Final = 0xFFFF_FFFF


class Routes:
    """Subject codes to group codes, as an array that grows with the table of names."""

    def __init__(self, routes: tuple[RouteSettings, ...], group_codes: dict[str, int], names: Names) -> None:
        self._routes = routes
        self._group_codes = group_codes
        self._names = names
        self._table = np.zeros(1024, dtype=np.uint32)
        # The place of each subject's route, 0 for none.
        self._places = np.zeros(1024, dtype=np.uint32)
        self._known = 0

    @property
    def has_timers(self) -> bool:
        """Whether there may be timers: a transaction was prepared in this directory."""
        return self._names.code(OWN, TIMERS_SUBJECT) != 0

    def match(self, subject: str) -> RouteSettings | None:
        """The route of a subject."""
        for route in self._routes:
            if fnmatchcase(subject, route.pattern):
                return route
        return None

    def groups(self, subjects: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Group codes u32[n] for subject codes u32[n]; 0 where no route matches."""
        self._know(subjects)
        return self._table[subjects]

    def places(self, subjects: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """What tells the subjects of one route from those of another, u32[n]: see `fallbacks`."""
        self._know(subjects)
        return self._places[subjects]

    def _know(self, subjects: NDArray[np.uint32]) -> None:
        highest = int(subjects.max()) if len(subjects) else 0
        if highest > self._known:
            self._extend(highest)

    def _extend(self, highest: int) -> None:
        if highest >= len(self._table):
            self._table = np.concatenate([self._table, np.zeros(highest + 1, dtype=np.uint32)])
            self._places = np.concatenate([self._places, np.zeros(highest + 1, dtype=np.uint32)])
        for code in range(self._known + 1, highest + 1):
            route = self.match(self._names.name(code))
            if code == self._names.code(OWN, TIMERS_SUBJECT):
                self._table[code], self._places[code] = TIMERS_GROUP, len(self._routes) + 1
            elif route is not None:
                self._table[code] = self._group_codes[route.groups[0]]
                self._places[code] = self._routes.index(route) + 1
        self._known = highest

    def fallbacks(self, place: int, group: str) -> list[str]:
        """The other groups of a route in the order in which they take over from `group`: those behind it, then those
        before it, which may be back."""
        if not 0 < place <= len(self._routes) or group not in self._routes[place - 1].groups:
            return []
        groups = self._routes[place - 1].groups
        return [*groups[groups.index(group) + 1 :], *groups[: groups.index(group)]]

    def partners(self, group: str) -> set[str]:
        """All groups that may take over from `group`."""
        return {name for place in range(1, len(self._routes) + 1) for name in self.fallbacks(place, group)}
