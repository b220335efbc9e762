"""Which broker group a subject goes to. Patterns are shell-style (`orders.*`); the first route that matches decides."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import RouteSettings
from delayserver.state.memory.internal_groups import INTERNAL_GROUPS, ROUTE_NUMBER_FIRST, InternalGroup
from store.tables.names import Names


class Routes:
    """Subject codes to group codes, as an array that grows with the table of names. Writer: the topology."""

    def __init__(
        self,
        routes: tuple[RouteSettings, ...],
        group_codes: dict[str, int],
        names: Names,
        before: Routes | None = None,
    ) -> None:
        """`group_codes`: codes of all groups by their names. The first group gets the subjects that match no route.
        `before`: the routes that these will replace, see `adopt`."""
        self._names = names
        self._routes = routes
        self._group_codes = group_codes
        # A route keeps its number as long as this process lives, also while it is not in the settings.
        self._number_of: dict[RouteSettings, int] = dict(before._number_of) if before is not None else {}
        for route in routes:
            self._number_of.setdefault(route, ROUTE_NUMBER_FIRST + len(self._number_of))
        self._current = {self._number_of[route]: route for route in routes}
        self._table = np.zeros(1024, dtype=np.uint32)
        # The number of each subject's route.
        self._route_numbers = np.zeros(1024, dtype=np.uint32)
        self._known = 0
        # Whether subjects have changed their way since the start.
        self.have_changed = False
        self._differs = False
        if before is not None:
            self._extend(len(names))
            self._differs = self._differs_from(before, 1, self._known)

    def adopt(self, other: Routes) -> bool:
        """Takes the routes of `other`, which was made with these as `before`, by any thread. Returns whether a known
        subject goes another way than until now."""
        # Rows of subjects that were never asked about may be in memory too: a lone group takes all without a question.
        differs = other._differs or other._differs_from(self, other._known + 1, len(self._names))
        self._routes, self._group_codes = other._routes, other._group_codes
        self._number_of, self._current = other._number_of, other._current
        self._table, self._route_numbers, self._known = other._table, other._route_numbers, other._known
        self.have_changed |= differs
        return differs

    def _differs_from(self, other: Routes, first: int, last: int) -> bool:
        """Whether some of these names go different ways."""
        return not all(map(np.array_equal, self._matched(first, last), other._matched(first, last)))

    @property
    def names(self) -> Names:
        """The table of names that codes are of."""
        return self._names

    def is_in_use(self, group: InternalGroup) -> bool:
        """Whether there may be records of an internal group: its subject has a code in this directory."""
        return self._names.code(group.name_kind, group.subject) != 0

    def match(self, subject: str) -> RouteSettings | None:
        """The route of a subject."""
        for route in self._routes:
            if fnmatchcase(subject, route.pattern):
                return route
        return None

    def groups(self, subjects: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """Group codes u32[n] for subject codes u32[n]."""
        self._know(subjects)
        return self._table[subjects]

    def route_numbers(self, subjects: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The number of the route of each subject, u32[n]; 0 for a subject without a route."""
        self._know(subjects)
        return self._route_numbers[subjects]

    def _know(self, subjects: NDArray[np.uint32]) -> None:
        highest = int(subjects.max()) if len(subjects) else 0
        if highest > self._known:
            self._extend(highest)

    def _extend(self, highest: int) -> None:
        if highest >= len(self._table):
            self._table = np.concatenate([self._table, np.zeros(highest + 1, dtype=np.uint32)])
            self._route_numbers = np.concatenate([self._route_numbers, np.zeros(highest + 1, dtype=np.uint32)])
        new = slice(self._known + 1, highest + 1)
        self._table[new], self._route_numbers[new] = self._matched(self._known + 1, highest)
        self._known = highest

    def _matched(self, first: int, last: int) -> tuple[NDArray[np.uint32], NDArray[np.uint32]]:
        """The groups and route numbers of the names with these codes, the last one included."""
        groups, route_numbers = np.zeros((2, max(last + 1 - first, 0)), dtype=np.uint32)
        # A member that follows has no groups yet.
        default = next(iter(self._group_codes.values()), 0)
        internal = {self._names.code(group.name_kind, group.subject): group for group in INTERNAL_GROUPS}
        for row, code in enumerate(range(first, last + 1)):
            route = self.match(self._names.name(code))
            if code in internal:
                groups[row], route_numbers[row] = internal[code].code, internal[code].route_number
            elif route is not None:
                groups[row], route_numbers[row] = self._group_codes[route.groups[0]], self._number_of[route]
            else:
                groups[row] = default
        return groups, route_numbers

    def fallbacks(self, route_number: int, group: int) -> list[int]:
        """The codes of the other groups of a route in the order in which they take over from `group`: those behind it, then
        those before it, which may be back."""
        route = self._current.get(route_number)
        codes = [self._group_codes[name] for name in route.groups] if route is not None else []
        if group not in codes:
            return []
        return [*codes[codes.index(group) + 1 :], *codes[: codes.index(group)]]

    def partners(self, group: int) -> set[int]:
        """The codes of all groups that may take over from `group`."""
        return {code for route_number in self._current for code in self.fallbacks(route_number, group)}

    def leads_to(self, subjects: NDArray[np.uint32], group: str, code: int) -> NDArray[np.bool_]:
        """True where the route of a subject (u32[n]) leads to this group, first or as a fallback, bool[n]."""
        route_numbers = [route_number for route_number, route in self._current.items() if group in route.groups]
        leads: NDArray[np.bool_] = (self.groups(subjects) == code) | np.isin(
            self.route_numbers(subjects), route_numbers
        )
        return leads

    def check_invariants(self) -> None:
        """For each subject the answer of the routes for its name is kept."""
        groups, route_numbers = self._matched(1, self._known)
        assert np.array_equal(self._table[1 : self._known + 1], groups)
        assert np.array_equal(self._route_numbers[1 : self._known + 1], route_numbers)
