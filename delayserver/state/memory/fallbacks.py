"""Which group takes the rows of a group that fails. It only reads: `Queueing` and `ReadBack` move the rows."""

from __future__ import annotations

from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.overflow import Overflow
from delayserver.state.memory.residency import Residency


class Fallbacks:
    """Owns the choice among the groups of a route."""

    def __init__(self, residency: Residency, overflow: Overflow) -> None:
        self._groups = residency.groups
        self._routes = residency.wheel.routes
        self._overflow = overflow

    def instead_of(self, group: GroupRows, route_number: int) -> GroupRows | None:
        """The first group of the route with this number that works instead of `group`, if it can take rows now."""
        others = [self._groups[code] for code in self._routes.fallbacks(route_number, group.code)]
        other = next((other for other in others if other.may_work), None)
        return other if other is not None and self._may_take(other) else None

    def any_instead_of(self, group: GroupRows) -> bool:
        """Whether some group can take rows of `group` now."""
        return any(self._may_take(self._groups[code]) for code in self._routes.partners(group.code))

    def _may_take(self, other: GroupRows) -> bool:
        """Not a group that works, but slower than rows come: it would drop them. They would be read again at once, and come
        here again."""
        over = len(other.queue) >= self._overflow.share and self._overflow.is_short
        return other.may_work and not other.full and not over
