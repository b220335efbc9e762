"""One wheel for each broker group behind one face, so that a hot second of one group does not stand before the others.

A single wheel gives out rows in due order: what is due a millisecond after a million others would wait for all of them.
For the same reason each group has a second wheel for its backlog: rows that are long overdue when they come. `advance`
gives a slice of either in turn, so that fresh messages do not wait for what a downtime left.

Rows with an order key have a third wheel, whether they are overdue or not: they leave in their order. `advance_keyed` gives
them up to a time that the caller knows: no row that is due earlier may be missing in memory then
(`order_gate.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from delayserver.runtime.marks import Bell
from delayserver.state.memory.internal_groups import INTERNAL_GROUPS
from delayserver.state.memory.routes import Routes
from delayserver.state.memory.rows import ROW, has_order_key
from wheel.due_rows import DueRows
from wheel.hashed_wheel import HashedWheel
from wheel.keys import Key

I64 = NDArray[np.int64]
# Rows that come so long after their due time go to the backlog. More than a hot second, whose rows come late but in order.
BACKLOG_MS = 2_000


class GroupWheels:
    """Rows by the group that their subject is routed to. Writers: `Residency` puts in, the dispatcher takes out."""

    def __init__(
        self,
        wheels: dict[int, HashedWheel],
        backlog: dict[int, HashedWheel],
        routes: Routes,
        now_ms: int,
        earlier: Bell,
        make_wheel: Callable[[], HashedWheel],
    ) -> None:
        """Wheels of the broker groups by their codes; internal groups have none yet. `earlier` is rung when rows are added:
        one of them may be due before all others. `make_wheel` gives a wheel without rows."""
        assert wheels.keys() == backlog.keys()
        self._wheels, self._backlog = dict(wheels), dict(backlog)
        # Of the groups that have met a row with an order key.
        self._keyed: dict[int, HashedWheel] = {}
        self._make_wheel = make_wheel
        self._all = [*self._wheels.values(), *self._backlog.values()]
        # Internal groups without wheels: they cost nothing before their first record comes.
        self._unused = [*INTERNAL_GROUPS]
        # Rows that are due before this go to the backlog. It follows the clock in both directions.
        self._backlog_below_ms = now_ms - BACKLOG_MS
        self.routes = routes
        self._earlier = earlier

    def add_group(self, code: int, wheel: HashedWheel, backlog: HashedWheel) -> None:
        """Adds a group."""
        self._wheels[code], self._backlog[code] = wheel, backlog
        self._all += [wheel, backlog]

    def remove_group(self, code: int) -> None:
        """Removes a group that holds nothing."""
        gone = [self._wheels.pop(code), self._backlog.pop(code)]
        if code in self._keyed:
            gone.append(self._keyed.pop(code))
        assert not any(gone)
        self._all = [wheel for wheel in self._all if wheel not in gone]

    def __len__(self) -> int:
        return sum([len(wheel) for wheel in self._all])

    @property
    def backlog_rows(self) -> int:
        """Rows held that were long overdue when they came."""
        return sum([len(wheel) for wheel in self._backlog.values()])

    @property
    def nbytes(self) -> int:
        """Bytes held, about."""
        return sum([wheel.nbytes for wheel in self._all])

    def codes(self, subjects: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The group code of each subject code, u32[n]."""
        return self.routes.groups(np.ascontiguousarray(subjects))

    def add(self, due_ms: I64, sequence: I64, rows: NDArray[np.void]) -> None:
        """Adds rows in any order; see `HashedWheel.add`."""
        if not len(due_ms):
            return
        self._earlier.ring()
        keyed = has_order_key(rows)
        if keyed.any():
            mine = np.flatnonzero(keyed)
            self._add_keyed(due_ms[mine], sequence[mine], rows[mine])
            if len(mine) == len(rows):
                return
            rest = np.flatnonzero(~keyed)
            due_ms, sequence, rows = due_ms[rest], sequence[rest], rows[rest]
        old = due_ms < self._backlog_below_ms
        if not old.any():
            self._add_to(self._wheels, due_ms, sequence, rows)
        elif old.all():
            self._add_to(self._backlog, due_ms, sequence, rows)
        else:
            for wheels, mine in ((self._backlog, np.flatnonzero(old)), (self._wheels, np.flatnonzero(~old))):
                self._add_to(wheels, due_ms[mine], sequence[mine], rows[mine])

    def _add_to(self, wheels: dict[int, HashedWheel], due_ms: I64, sequence: I64, rows: NDArray[np.void]) -> None:
        if self._unused and any(map(self.routes.is_in_use, self._unused)):
            self._use_internal()
        if len(wheels) == 1:
            next(iter(wheels.values())).add(due_ms, sequence, rows)
            return
        codes = self.codes(rows["subject"])
        for code in np.unique(codes).tolist():
            mine = np.flatnonzero(codes == code)
            wheels[code].add(due_ms[mine], sequence[mine], rows[mine])

    def _add_keyed(self, due_ms: I64, sequence: I64, rows: NDArray[np.void]) -> None:
        codes = self.codes(rows["subject"])
        for code in np.unique(codes).tolist():
            if code not in self._keyed:
                self._keyed[code] = self._make_wheel()
                self._all.append(self._keyed[code])
            mine = np.flatnonzero(codes == code)
            self._keyed[code].add(due_ms[mine], sequence[mine], rows[mine])

    def _use_internal(self) -> None:
        """Give wheels to the internal groups that may have records."""
        for group in filter(self.routes.is_in_use, self._unused):
            self.add_group(group.code, self._make_wheel(), self._make_wheel())
        self._unused = [group for group in self._unused if group.code not in self._wheels]

    def advance(self, now_ms: int, rows_max: int) -> Iterator[tuple[int, DueRows]]:
        """A slice of what is due for each group that has any, and one of its backlog: (group code, rows). Call again until
        nothing comes."""
        self._backlog_below_ms = now_ms - BACKLOG_MS
        for wheels in (self._wheels, self._backlog):
            for code, wheel in [*wheels.items()]:  # between two slices groups may come and go
                if not len(wheel):
                    continue
                rows = wheel.advance(now_ms, rows_max)
                if len(rows):
                    yield code, rows

    def advance_keyed(self, code: int, now_ms: int, rows_max: int, before: Key | None) -> DueRows:
        """The first due rows with an order key of one of `keyed_codes`; with `before` only those of lower keys."""
        wheel = self._keyed[code]
        if before is not None and not _any_before(wheel.runs_below(min(now_ms, before.due_ms) + 1), before):
            return DueRows.empty(ROW)  # of a hot millisecond all may have to wait, for many looks
        rows = wheel.advance(now_ms if before is None else min(now_ms, before.due_ms), rows_max)
        if before is None or not len(rows) or rows.due_ms[-1] < before.due_ms:
            return rows
        stays = (rows.due_ms == before.due_ms) & (rows.sequence >= before.sequence)
        later = rows.take(np.flatnonzero(stays))
        wheel.add(later.due_ms, later.sequence, later.payload)
        return rows.take(np.flatnonzero(~stays))

    def drop_keyed(self, code: int, after_ms: int, to_ms: int, count: int) -> DueRows:
        """The last `count` rows with an order key that are due after one time and up to another leave; returns them, in no
        order. All of them are looked at."""
        wheel = self._keyed[code]
        due = [rows for rows in wheel.runs_below(to_ms + 1) if len(rows)]
        if not due:
            return DueRows.empty(ROW)
        rows = DueRows.concatenate(due)
        # Rows that were dropped before may be among them, and may be here again.
        rows = rows.take(np.flatnonzero((rows.due_ms > after_ms) & wheel.contains(rows.due_ms, rows.sequence)))
        order = np.lexsort((rows.sequence, rows.due_ms))
        same = rows.sequence[order[1:]] == rows.sequence[order[:-1]]
        last = rows.take(np.delete(order, np.flatnonzero(same))[-count:])
        return last.take(np.flatnonzero(wheel.cancel(last.due_ms, last.sequence)))

    def knows_keys_of(self, code: int) -> bool:
        """Whether a group has met rows with an order key."""
        return code in self._keyed

    @property
    def keyed_codes(self) -> list[int]:
        """The groups with rows that have an order key."""
        return [code for code, wheel in self._keyed.items() if len(wheel)]

    def next_due_ms(self) -> int | None:
        """The earliest due time held, of rows without an order key."""
        return self._first_due_ms(self._wheels, self._backlog)

    def next_keyed_ms(self) -> int | None:
        """The earliest due time held, of rows with an order key."""
        return self._first_due_ms(self._keyed)

    def _first_due_ms(self, *kinds: dict[int, HashedWheel]) -> int | None:
        dues = [due for wheels in kinds for wheel in wheels.values() if (due := wheel.next_due_ms()) is not None]
        return min(dues, default=None)

    def runs_below(self, due_ms: int) -> Iterator[tuple[int, list[DueRows]]]:
        """For each group the runs that are due before a time, which stay; see `HashedWheel.runs_below`."""
        for code, wheel in self._wheels.items():
            yield code, wheel.runs_below(due_ms)

    def rows_below(self, due_ms: int) -> int:
        """How many rows are due before a time."""
        return sum([wheel.rows_below(due_ms) for wheel in self._all])

    def contains(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """Which rows are held, bool[n]."""
        held = np.zeros(len(sequence), dtype=bool)
        for wheel in self._all:
            if len(wheel):
                held |= wheel.contains(due_ms, sequence)
        return held

    def cancel(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """Remove rows by key; True where one was held, bool[n]."""
        held = np.zeros(len(sequence), dtype=bool)
        for wheel in self._all:
            if len(wheel):
                held |= wheel.cancel(due_ms, sequence)
        return held

    def evict_after(self, due_ms: int, sequence: int) -> int:
        """Drop all rows behind a key; returns how many."""
        return sum([wheel.evict_after(due_ms, sequence) for wheel in self._all])

    def evict_between(self, due_ms: int, sequence: int, until_ms: int) -> int:
        """Drop the rows behind a key that are due before a time; returns how many."""
        return sum([wheel.evict_between(due_ms, sequence, until_ms) for wheel in self._all])

    def check_invariants(self) -> None:
        """For tests."""
        for wheel in self._all:
            wheel.check_invariants()


def _any_before(runs: list[DueRows], key: Key) -> bool:
    """Whether one of these sorted runs has a row of a lower key."""
    return any(len(rows) and (rows.due_ms[0], rows.sequence[0]) < (key.due_ms, key.sequence) for rows in runs)
