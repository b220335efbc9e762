"""The rows in memory: in the wheel, in the queues of the groups, and in flight. A row is in exactly one of these places.

A row comes in by `add`, from `admissible` rows of a file or new from the replay. It leaves by an outcome, by `withdraw`
(a cancel), or for the disk. An eviction behind a key takes the cursors back with it, so that a load brings the rows again.
Rows that leave a full queue go another way (`Overflow`), and come back by `ReadBack`. For the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.runtime.marks import Bell
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.attempted import Attempted
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.group_wheels import GroupWheels
from delayserver.state.memory.left_rows import LeftRows
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.windows.windows import Windows
from store.logs.due_windows import day_starts
from store.logs.schedule_log import ScheduleSource
from store.records.batches import I64
from wheel.due_rows import DueRows
from wheel.keys import KEY_LOWEST, Key, before, first_key, through

Mask = NDArray[np.bool_]


class Residency:
    """Owns where each row is. Writer of the rows in wheels; `Queueing` moves those in queues."""

    def __init__(
        self,
        wheel: GroupWheels,
        groups: Mapping[int, GroupRows],
        windows: Windows,
        decided: Decided,
        attempted: Attempted,
    ) -> None:
        """`groups` by their codes."""
        self.wheel = wheel
        self.groups = dict(groups)
        self._windows = windows
        self._cursors = windows.cursors
        self._decided = decided
        self._attempted = attempted
        # The last key that the wheel released to a group that is gone.
        self._released_to_gone = KEY_LOWEST
        # Rung when there may be something to load, or room for it.
        self.loadable = Bell()
        self.left = LeftRows()
        self.evictions = 0

    # -- the groups

    def add_group(self, group: GroupRows) -> None:
        """Adds a group."""
        self.groups[group.code] = group

    def remove_group(self, group: GroupRows) -> None:
        """Removes a group that holds nothing."""
        assert not group.rows_held
        self._released_to_gone = max(self._released_to_gone, group.released_to)
        del self.groups[group.code]

    def reroute(self) -> None:
        """Drops what waits in memory, because subjects go other ways. A load brings it again, to the groups of now.
        Rows in flight stay; see `Queueing.push_front`."""
        for group in self.groups.values():
            group.give_up_waiting()
        self.left.clear()
        self.evict_after(KEY_LOWEST)
        self.loadable.ring()

    @property
    def rows_queued(self) -> int:
        """Rows that wait in the queues."""
        return sum([group.rows_queued for group in self.groups.values()])

    @property
    def rows_held(self) -> int:
        """Rows in the queues and in flight."""
        return sum([group.rows_held for group in self.groups.values()])

    # -- into memory

    def admissible(self, loaded: LoadedRows, undecided: Mask) -> LoadedRows:
        """The rows read from files that may enter memory: neither a file (`undecided`, bool[n]) nor a draining day has an
        outcome of them, no cancel holds them, they do not rest, and they are neither in a queue nor in flight. Rows whose
        attempts had no answer are marked so again. Add the rows in the same step."""
        wanted = undecided & self._decided.holds.not_held(loaded.sequence) & ~self.left.resting(loaded.sequence)
        overlays = self._decided.overlays
        if overlays:
            days = day_starts(loaded.rows["window_ms"])
            for day in np.unique(days).tolist():
                mine = np.flatnonzero(days == day)
                wanted[mine] &= overlays.not_done(day, loaded.sequence[mine])
        wanted &= ~self.was_released(loaded.due_ms, loaded.sequence)
        rows = loaded.take(np.flatnonzero(wanted))
        self._attempted.mark(rows.sequence, rows.rows)
        return rows

    def add(self, loaded: LoadedRows) -> None:
        """Put rows into the wheel."""
        if len(loaded):
            self.wheel.add(np.ascontiguousarray(loaded.due_ms), np.ascontiguousarray(loaded.sequence), loaded.rows)

    def was_released(self, due_ms: I64, sequence: I64) -> Mask:
        """True where a row waits in a queue or is in flight, bool[n]. Only rows up to the last key that the wheel released
        can be: a load has normally none of those, and then no queue is looked into."""
        found = np.zeros(len(sequence), dtype=bool)
        places = np.flatnonzero(through(self._released_to, due_ms, sequence))
        if len(places):
            due_ms, sequence = due_ms[places], sequence[places]
            for group in self.groups.values():
                found[places] |= group.holds(due_ms, sequence)
        return found

    @property
    def _released_to(self) -> Key:
        return max([self._released_to_gone, *[group.released_to for group in self.groups.values()]])

    # -- back to the wheel

    def put_back(self, rows: DueRows) -> None:
        """Puts rows that the wheel has released back to it. If memory had to give up their part of the window
        meanwhile, a load brings them."""
        here = self._has_brought(rows.payload, rows.due_ms, rows.sequence)
        if not here.all():
            rows = rows.take(np.flatnonzero(here))
            self.loadable.ring()
        if len(rows):
            self.wheel.add(rows.due_ms, rows.sequence, rows.payload)

    def put_back_keyed(self, group: GroupRows, first: Key) -> None:
        """Puts rows with an order key behind this key back to the wheel of a group. A row at this key comes back, and
        they would go out before it."""
        for rows in group.queue.keyed.drop_from(first):
            self.put_back(rows)

    def _has_brought(self, rows: NDArray[Any], due_ms: I64, sequence: I64) -> Mask:
        """Which of these index rows of the wheel memory has, or had until they were released: no load brings them again
        before their part of the window is evicted."""
        return self._ask_cursors(self._cursors.holds, rows, due_ms, sequence)

    def was_loaded(self, loaded: LoadedRows) -> Mask:
        """Which rows of a file a load has brought to the wheel, bool[n]. No other part brings these, whether the replay has
        come to them or not."""
        return self._ask_cursors(self._cursors.brought, loaded.rows, loaded.due_ms, loaded.sequence)

    def _ask_cursors(
        self, ask: Callable[[int, str, I64, I64, I64], Mask], rows: NDArray[Any], due_ms: I64, sequence: I64
    ) -> Mask:
        """The answers to a question that the cursors take for one file at a time, bool[n]."""
        found = np.zeros(len(rows), dtype=bool)
        # A record begins below its blobs, and the next one begins behind them.
        offset = rows["ids_offset"] - 1
        code = rows["window_ms"] * 4 + rows["source"]
        for value in np.unique(code).tolist():
            mine = np.flatnonzero(code == value)
            found[mine] = ask(value // 4, ScheduleSource(value % 4).name, offset[mine], due_ms[mine], sequence[mine])
        return found

    # -- out of the wheel, to be loaded again

    def evict_after(self, key: Key) -> None:
        """Drop everything behind `key` from the wheel. A load brings it again."""
        self.wheel.evict_after(key.due_ms, key.sequence)
        self._cursors.evict_after(key)
        self._windows.book.mark_unloaded(self._windows.book.start_of(key.due_ms))
        self.evictions += 1

    def evict_between(self, key: Key, until_ms: int) -> None:
        """Drop what is behind `key` and due before `until_ms` from the wheel. A load brings it again."""
        self.wheel.evict_between(key.due_ms, key.sequence, until_ms)
        self._cursors.evict_between(key, until_ms)
        self._windows.book.mark_unloaded(self._windows.book.start_of(key.due_ms), until_ms)
        self.evictions += 1

    # -- cancels and lookups

    def withdraw(self, due_ms: I64, sequence: I64) -> None:
        """Takes messages that a cancel holds out of the wheel and the queues: due times and sequences, i64[n] each,
        sequences ascending."""
        if len(self.wheel):
            self.wheel.cancel(due_ms, sequence)
        for group in self.groups.values():
            group.queue.remove(due_ms, sequence)

    def give_back(self, due_ms: I64, sequence: I64) -> None:
        """The cancel of these messages did not happen: from the first of them on, the near future is read from disk again.

        Not these rows alone: some may belong to a load that runs, or have been passed over by one, and only the cursors
        know which. It is rare (a full disk) and costs one load.
        """
        self.evict_after(before(first_key(due_ms, sequence)))
        self.loadable.ring()

    def may_have_been_attempted(self, sequence: I64, due_ms: I64) -> Mask:
        """True where an attempt may have been made before this start, bool[n]."""
        return self._attempted.maybe(sequence, due_ms)

    def may_be_delivered(self, sequence: I64, due_ms: I64) -> Mask:
        """True where a message may be delivered: an attempt runs, had no answer, or may have been made before this start,
        bool[n]."""
        maybe = self._attempted.maybe(sequence, due_ms) | self._attempted.unknown(sequence)
        return maybe | self.in_flight(sequence)

    def in_flight(self, sequence: I64) -> Mask:
        """True where a running attempt has the message, bool[n]."""
        found = np.zeros(len(sequence), dtype=bool)
        for group in self.groups.values():
            found |= group.is_in_flight(sequence)
        return found

    def retrying(self, due_ms: I64, sequence: I64) -> Mask:
        """True where a message waits in a queue and was attempted before, bool[n]."""
        found = np.zeros(len(sequence), dtype=bool)
        for group in self.groups.values():
            found |= group.queue.retries(due_ms, sequence)
        return found

    def check_invariants(self) -> None:
        """A row is in one place. `was_released` finds each row of a queue. The book knows each incomplete window that is not
        loaded."""
        book, end_ms = self._windows.book, 1 << 62
        unloaded = [start for start in book.incomplete_before(end_ms) if not self._cursors.is_loaded(start)]
        assert [*book.unloaded_before(end_ms, self._cursors)] == unloaded
        released_to = self._released_to
        seen: list[I64] = []
        for group in self.groups.values():
            group.check_invariants()
            assert group.queue.last_key() <= released_to
            seen += [group.queue.sequences(), group.in_flight()]
            assert not self.wheel.contains(*group.queue.keys()).any()
        everywhere = np.concatenate(seen)
        assert len(np.unique(everywhere)) == len(everywhere)
