"""The one owner of index rows in memory: in the wheel, in the queues of the groups, and in flight.

A row is in exactly one of these places. It comes in by `add` (from `admissible` rows of a file, or new from the replay)
or by `read_back`. It leaves by an outcome, by `withdraw` (a cancel), or for the disk: by an eviction behind a key, which
takes the cursors back with it, or out of a full queue, whose windows are then `spilled` and read back. For the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.config.settings import WheelSettings
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.memory.attempted import Attempted
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.group_wheels import GroupWheels
from delayserver.state.memory.left_rows import LeftRows
from delayserver.state.memory.loaded_rows import LoadedRows
from delayserver.state.memory.order_gate import loaded_ms
from delayserver.state.memory.rows import has_order_key
from delayserver.state.windows.windows import Windows
from store.errors import DiskError, UnreadableError
from store.logs.schedule_log import Source
from store.logs.windows import day_starts
from store.records.batches import I64
from wheel.due_rows import DueRows
from wheel.keys import KEY_LOWEST, Key

Mask = NDArray[np.bool_]

# Memory is short while no more than this share of it is free.
LOW_ROOM_SHARE = 0.25
# `bound` keeps this share of memory, so that the next few rows do not evict again.
KEEP_SHARE = 0.75
# A queue in which so many rows wait for keys that pause counts as empty.
PAUSING_ROWS_MAX = 16_384
# A damaged file is read again after this long: an operator may repair it.
DAMAGED_AGAIN_US = 60_000_000
# And after this long where the disk refused to open or read the file: that may be over soon.
REFUSED_AGAIN_US = 1_000_000


class Residency:
    """Which rows memory holds, within `wheel.rows_max`. Writer of all rows in wheels and queues."""

    def __init__(
        self,
        wheel: GroupWheels,
        groups: Mapping[int, GroupRows],
        windows: Windows,
        decided: Decided,
        attempted: Attempted,
        settings: WheelSettings,
        runtime: Runtime,
    ) -> None:
        """`groups` by their codes."""
        self.wheel = wheel
        self.groups = dict(groups)
        self._by_name = {group.name: group for group in groups.values()}
        self._windows_known = windows
        self._cursors = windows.cursors
        self._routes = wheel.routes
        self._decided = decided
        self._attempted = attempted
        self._settings = settings
        self._clock = runtime.clock
        self._stages = runtime.stages
        # The last key that the wheel released to a group that is gone.
        self._released_to_gone = KEY_LOWEST
        # Rung when there may be something to load, or room for it; and when there may be something to read back.
        self.loadable = Bell()
        self.emptied = Bell()
        # Rows of room that a load waits for; None if no load waits.
        self._room_wanted: int | None = None
        self._left = LeftRows()
        self.evictions = 0

    # -- the groups

    def add_group(self, group: GroupRows) -> None:
        """There is one more group."""
        self.groups[group.code] = self._by_name[group.name] = group

    def remove_group(self, group: GroupRows) -> None:
        """A group that holds nothing is gone."""
        assert not group.rows_held
        self._released_to_gone = max(self._released_to_gone, group.released_to)
        del self.groups[group.code], self._by_name[group.name]

    def routes_changed(self) -> None:
        """Subjects go other ways: what waits in memory leaves it, and a load brings it again, to the groups of now. Rows
        in flight stay; see `push_front`."""
        for group in self.groups.values():
            group.give_up_waiting()
        self._left.clear()
        self.evict_after(KEY_LOWEST)
        self.loadable.ring()

    # -- how much

    @property
    def share(self) -> int:
        """Rows that each group may keep waiting where memory is short. Half of memory is for the queues: the wheel needs
        the rest to have the rows of the others in time."""
        return max(self._settings.rows_max // (2 * sum([not group.is_internal for group in self.groups.values()])), 1)

    @property
    def rows_queued(self) -> int:
        """Rows that wait in the queues."""
        return sum([group.rows_queued for group in self.groups.values()])

    @property
    def rows_held(self) -> int:
        """Rows in the queues and in flight."""
        return sum([group.rows_held for group in self.groups.values()])

    @property
    def room(self) -> int:
        """Rows that memory may still take."""
        return self._settings.rows_max - len(self.wheel) - self.rows_queued

    @property
    def is_short(self) -> bool:
        """Whether there is too little room for a load."""
        return self.room <= low_room(self._settings.rows_max)

    def lacks(self, wanted: int) -> bool:
        """Whether there is no more room than `wanted`, also after the queues have given up what is beyond their shares."""
        if self.room <= wanted and self.is_short:
            self._make_room()
        # Also while memory is not short: rows with an order key may wait for the very load that wants this room.
        self._shed_keyed(wanted + 1)
        return self.room <= wanted

    def want_room(self, rows: int | None) -> None:
        """A load waits for more room than this; None: no load waits."""
        self._room_wanted = rows

    def freed(self) -> None:
        """Memory was freed: a load that waits for room may go on."""
        if self._room_wanted is not None and not self.lacks(self._room_wanted):
            self.loadable.ring()

    def queue_emptied(self) -> None:
        """A group has no row left that waits."""
        self.freed()
        self.emptied.ring()

    def _make_room(self) -> None:
        """Where several groups share memory and it is short, each keeps at most its share of it waiting. Otherwise a group
        that is slower than its rows come would hold up the loading for all groups."""
        if len(self.groups) > 1:
            for group in self.groups.values():
                self._keep(group, self.share)

    def _shed_keyed(self, room: int) -> None:
        """Until there is so much room: due rows with an order key leave memory, the last ones first, if they wait in the
        wheel for rows that are not loaded, or were dropped from a queue. These need the room. The others are read back
        later."""
        if self.room >= room or not self.wheel.keyed_codes:
            return
        now_ms = self._clock.now_ms()
        to_ms = loaded_ms(self._windows_known, now_ms)
        for code in self.wheel.keyed_codes:
            group = self.groups[code]
            spilled = group.spilled.first_waiting
            from_ms = to_ms if spilled is None else min(to_ms, spilled.due_ms - 1)
            rows = self.wheel.drop_keyed(code, from_ms, now_ms, room - self.room)
            if len(rows):
                group.released(_last_key(rows.due_ms, rows.sequence))
                group.counters.were_dropped(len(rows))
                for _code, place, window, first in self._windows([rows]):
                    group.spilled.add(window, place, first)

    # -- into the wheel

    def admissible(self, loaded: LoadedRows, undecided: Mask) -> LoadedRows:
        """The rows read from files that may enter memory: neither a file (`undecided`, bool[n]) nor a draining day has an
        outcome of them, no cancel holds them, they do not rest, and they are neither in a queue nor in flight. Rows whose
        attempts had no answer are marked so again. Add the rows in the same step."""
        wanted = undecided & self._decided.holds.not_held(loaded.sequence) & ~self._left.resting(loaded.sequence)
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
        places = np.flatnonzero(_through(self._released_to, due_ms, sequence))
        if len(places):
            due_ms, sequence = due_ms[places], sequence[places]
            for group in self.groups.values():
                found[places] |= group.holds(due_ms, sequence)
        return found

    @property
    def _released_to(self) -> Key:
        return max([self._released_to_gone, *[group.released_to for group in self.groups.values()]])

    # -- out of the wheel, to be loaded again

    def bound(self) -> None:
        """Called after rows went straight to the wheel: past the bound, drop the far end. Due rows with an order key leave
        only if that is not enough. They would be read back at once, and the far end has time."""
        if self.room < 0:
            self._make_room()
        if self.room < 0:
            self.evict_beyond(KEEP_SHARE, self._clock.now_ms())
        if self.room < 0:
            self._shed_keyed(0)

    def evict_beyond(self, share: float, low_ms: int) -> None:
        """Keep about this share of what memory can hold, the earliest rows, and all that is due up to `low_ms`."""
        keep = int(self._settings.rows_max * share) - self.rows_queued
        low, high = low_ms, self._clock.now_ms() + 2 * self._settings.load_ahead_ms
        while low < high:  # the latest due time up to which `keep` rows suffice
            middle = (low + high + 1) // 2
            if self.wheel.rows_below(middle + 1) <= keep:
                low = middle
            else:
                high = middle - 1
        self.evict_after(Key(low, (1 << 62)))

    def evict_after(self, key: Key) -> None:
        """Drop everything behind `key` from the wheel. A load brings it again."""
        self.wheel.evict_after(key.due_ms, key.sequence)
        self._cursors.evict_after(key)
        self._windows_known.book.left_memory(self._windows_known.book.start_of(key.due_ms))
        self.evictions += 1

    def evict_between(self, key: Key, until_ms: int) -> None:
        """Drop what is behind `key` and due before `until_ms` from the wheel. A load brings it again."""
        self.wheel.evict_between(key.due_ms, key.sequence, until_ms)
        self._cursors.evict_between(key, until_ms)
        self._windows_known.book.left_memory(self._windows_known.book.start_of(key.due_ms), until_ms)
        self.evictions += 1

    # -- into the queues

    def release(self, code: int, rows: DueRows) -> None:
        """Rows that left a wheel of a group go to its queue, or to the queue of a fallback group while it is down. Rows with
        an order key go there behind those that are in the queue (`fail_over`)."""
        group = self.groups[code]
        now_us = self._clock.now_us()
        rows.payload["released_us"] = np.maximum(rows.due_ms * 1000, now_us)
        self._stages.wheel.add(now_us - int(rows.due_ms[0]) * 1000)
        group.released(Key(int(rows.due_ms[-1]), int(rows.sequence[-1])))
        # At once: the queue of a group that is down may be full of rows that have no fallback, and would drop these.
        rest = self._fail_over(group, rows) if group.down and not has_order_key(rows.payload[:1]).any() else rows
        if len(rest):
            self.push(group, rest)

    def push(self, group: GroupRows, rows: DueRows) -> None:
        """Append rows that are due to a queue. Past its bound its last rows leave memory."""
        group.queue.push(rows)
        self.bound_queue(group)

    def push_front(self, group: GroupRows, rows: DueRows) -> None:
        """Put rows back to be taken first. Past the bound of the queue its last rows leave memory. Rows whose routes led
        to the group when their attempt began, and do so no more, go to the groups of now."""
        rows = self._kept_by(group, rows)
        group.queue.push_front(rows)
        self.bound_queue(group)

    def put_aside(self, group: GroupRows, rows: DueRows, until_us: int) -> None:
        """Leave rows alone until then (monotonic), as `push_front` does with the others."""
        group.queue.put_aside(self._kept_by(group, rows), until_us)

    def _kept_by(self, group: GroupRows, rows: DueRows) -> DueRows:
        """Give away the rows that no route leads to the group any more; returns the others."""
        if not self._routes.have_changed or not len(rows):
            return rows
        subjects = rows.payload["subject"]
        stays = self._routes.leads_to(subjects, group.name, group.code)
        if stays.all():
            return rows
        codes = np.where(stays, np.uint32(0), self.wheel.codes(subjects))
        for code in np.unique(codes[~stays]).tolist():
            mine = rows.take(np.flatnonzero(codes == code))
            other = self.groups[code]
            other.released(_last_key(mine.due_ms, mine.sequence))
            self.push(other, mine)
        return rows.take(np.flatnonzero(stays))

    def bound_queue(self, group: GroupRows) -> None:
        """Rows came into a queue: wake a worker, and let what is past the bound leave memory."""
        group.idle.unpark()
        self._keep(group, group.rows_max)

    def put_back(self, rows: DueRows) -> None:
        """Rows in flight go back to the wheel: their due time lies ahead again, since the clock went back. If memory had to
        give up their part of the window meanwhile, a load brings them."""
        here = self._has_brought(rows.payload, rows.due_ms, rows.sequence)
        if not here.all():
            rows = rows.take(np.flatnonzero(here))
            self.loadable.ring()
        if len(rows):
            self.wheel.add(rows.due_ms, rows.sequence, rows.payload)

    def follow_back(self, group: GroupRows, rows: DueRows) -> None:
        """These rows with an order key went back to their wheel: those behind them that wait follow, or they would go out
        before them."""
        first = np.lexsort((rows.sequence, rows.due_ms))[0]
        self._wait_for(group, Key(int(rows.due_ms[first]), int(rows.sequence[first])))

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
            found[mine] = ask(value // 4, Source(value % 4).name, offset[mine], due_ms[mine], sequence[mine])
        return found

    # -- from queue to queue

    def fail_over(self, group: GroupRows, rows_max: int) -> Iterator[int]:
        """Move rows of a group that fails to the fallback groups of their routes. The queue is gone through once, so that
        rows without a fallback do not hold back those behind them. A step for each `rows_max` rows; gives how many went."""
        others = [self._by_name[name] for name in self._routes.partners(group.name)]
        waiting, looked = group.queue.keyless_rows, 0
        while looked < waiting and any(self._may_take(other) for other in others):
            rows = group.queue.take(rows_max, 1 << 62)
            if rows is None:
                break
            looked += len(rows)
            rest = self._fail_over(group, rows)
            group.queue.push(rest)
            yield len(rows) - len(rest)
        # One step for all of these: they go in their order, and those without a fallback keep theirs.
        keyed = group.queue.keyed.take(len(group.queue), 1 << 62)
        if keyed is not None:
            rest = self._fail_over(group, keyed)
            group.queue.push_front(rest)
            yield len(keyed) - len(rest)

    def _fail_over(self, group: GroupRows, rows: DueRows) -> DueRows:
        """Returns the rows that have no group that works."""
        places = self._routes.places(rows.payload["subject"])
        rest = np.ones(len(rows), dtype=bool)
        for place in np.unique(places).tolist():
            other = self._fallback(group, place)
            if other is None:
                continue
            mine = places == place
            self._give(group, other, rows.take(np.flatnonzero(mine)))
            rest &= ~mine
        return rows if rest.all() else rows.take(np.flatnonzero(rest))

    def _give(self, group: GroupRows, other: GroupRows, rows: DueRows) -> None:
        group.counters.were_given(len(rows), int(rows.payload["uncertain"].sum()))
        self.push(other, rows)

    def _fallback(self, group: GroupRows, place: int) -> GroupRows | None:
        """The first group of a route that works instead of `group`, if it can take rows now."""
        names = self._routes.fallbacks(place, group.name)
        other = next((self._by_name[name] for name in names if self._by_name[name].may_work), None)
        return other if other is not None and self._may_take(other) else None

    def _idle_fallback(self, group: GroupRows, place: int) -> GroupRows | None:
        """The group for which rows may be read back while others of `group`, which is down, wait in its queue."""
        other = self._fallback(group, place) if group.down else None
        return other if other is not None and self._is_idle(other) else None

    def _is_its_turn(self, group: GroupRows) -> bool:
        """Whether the first spilled window may be read back beside overdue windows that are not loaded. Where there are
        order keys, those come first: its rows would leave memory again for them."""
        if not self.wheel.knows_keys_of(group.code):
            return True
        first_ms = group.spilled.first_window_ms
        return first_ms is not None and first_ms <= loaded_ms(self._windows_known, self._clock.now_ms())

    def _is_idle(self, group: GroupRows) -> bool:
        """Whether rows may be read back: none waits. While keys pause, their rows may wait; they hold up no others."""
        queue = group.queue
        if not len(queue):
            return True
        rows_max = min(PAUSING_ROWS_MAX, self.share // 2, group.rows_max // 2)
        return not queue.keyless_rows and queue.keyed.pauses and len(queue) <= rows_max

    def _may_take(self, other: GroupRows) -> bool:
        """Not a group that works, but slower than rows come: it would drop them. They would be read again at once, and come
        here again."""
        over = len(other.queue) >= self.share and self.is_short
        return other.may_work and not other.full and not over

    # -- out of the queues, to be read back

    def _keep(self, group: GroupRows, rows_max: int) -> None:
        """Let the last rows of a queue past a bound leave memory, and note their windows."""
        dropped = group.queue.drop_behind(rows_max)
        if dropped:
            group.counters.were_dropped(sum(map(len, dropped)))
            for code, place, window, first in self._windows(dropped):
                self.groups[code].spilled.add(window, place, first)
                if code != group.code and first is not None:  # this group stood in for it
                    self._wait_for(self.groups[code], first)

    def _wait_for(self, group: GroupRows, first: Key) -> None:
        """A row that left memory comes back to a group. Rows with an order key behind it go back to their wheel."""
        for rows in group.queue.keyed.drop_from(first):
            self._keyed_to_wheel(rows)

    def leave(self, rows: DueRows, pause_us: int) -> None:
        """Rows in flight stay on disk. Their windows are read again after a pause."""
        until_us = self._clock.monotonic_us() + pause_us
        places, windows = self._routes.places(rows.payload["subject"]), rows.payload["window_ms"]
        for code, place, window, _first in self._windows([rows]):
            if self._routes.have_changed:
                self.groups[code].released(_last_key(rows.due_ms, rows.sequence))
            mine = (places == place) & (windows == window)
            self._left.leave((code, place, window), rows.sequence[mine], until_us)

    def read_later(self, group: GroupRows, places: list[int], window_ms: int, error: Exception) -> None:
        """A spilled window cannot be read now, for this reason: read it again after a pause."""
        for place in places:
            if group.code in self.groups:  # what a group that is gone has left is loaded
                until_us = self._clock.monotonic_us() + again_us(error)
                self._left.put_off((group.code, place, window_ms), until_us)

    def spilled(self) -> list[tuple[GroupRows, int | None]]:
        """Groups with windows to read back now, and the place of a route whose rows alone are to be read; None: all rows."""
        for code, place, window in self._left.take_over(self._clock.monotonic_us()):
            self.groups[code].spilled.add(window, place)
        ways = [(group, place) for group in self.groups.values() for place in (None, *group.spilled.places)]
        return [way for way in ways if self.may_read_back(*way)]

    def may_read_back(self, group: GroupRows, place: int | None) -> bool:
        """Whether a spilled window may be read back now: all of it where the queue of the group is empty, the rows of one
        route where an idle fallback group takes them."""
        if place is None:
            return bool(group.spilled) and self._is_idle(group) and self._is_its_turn(group)
        # Those of a key that wait go first. While they fill the queue, or its share, what is read back would leave it again.
        gone = len(group.queue.keyed) <= min(self.share, group.rows_max) // 2
        return gone and place in group.spilled.places and self._idle_fallback(group, place) is not None

    def routed(self, group: GroupRows, place: int | None, loaded: LoadedRows) -> Mask:
        """True where the wheel has released a row to the group, and for a row of this route where a place is given."""
        subjects = loaded.rows["subject"]
        mask: Mask = self.wheel.codes(subjects) == group.code
        mask &= _through(group.released_to, loaded.due_ms, loaded.sequence)
        if place is not None:
            mask &= self._routes.places(subjects) == place
        return mask

    def taker(self, group: GroupRows, place: int | None) -> GroupRows | None:
        """The group whose queue takes rows that are read back: with the place of a route the fallback group of that."""
        return group if place is None else self._idle_fallback(group, place)

    def read_back(
        self, group: GroupRows, place: int | None, taker: GroupRows | None, loaded: LoadedRows
    ) -> tuple[bool, Key | None]:
        """`admissible` rows of a spilled window, in their order, go back to the queue of `taker`; those with an order key to
        their wheel. Returns whether a queue got rows, and the first row for which there is no room."""
        rows = DueRows(loaded.due_ms, loaded.sequence, loaded.rows)
        rows = rows.take(np.flatnonzero(~self.wheel.contains(rows.due_ms, rows.sequence)))
        if place is not None and taker is not None and self._fallback(group, place) is not taker:
            taker = None  # it has enough, or fails now
        # Overdue rows go before the far end of the wheel, which is read again in its time.
        most = 0 if taker is None else max(self.room, self.share - len(taker.queue), 0)
        now, later = rows.slice(0, most), rows.slice(most, len(rows))
        now = self._keyed_to_wheel(now)
        if taker is group:
            self.push(group, now)
        elif taker is not None and len(now):
            self._give(group, taker, now)
        self.bound()
        return len(now) > 0, Key(int(later.due_ms[0]), int(later.sequence[0])) if len(later) else None

    def _keyed_to_wheel(self, rows: DueRows) -> DueRows:
        """Put rows with an order key back into their wheel: others of their keys may be there that are due earlier. Where
        memory has given up their part of the window, a load brings them. Returns the rows without a key."""
        keyed = has_order_key(rows.payload)
        if keyed.any():
            here = np.flatnonzero(keyed)
            mine = rows.take(here[self._has_brought(rows.payload[here], rows.due_ms[here], rows.sequence[here])])
            self.wheel.add(mine.due_ms, mine.sequence, mine.payload)
            rows = rows.take(np.flatnonzero(~keyed))
        return rows

    def _windows(self, parts: list[DueRows]) -> Iterator[tuple[int, int, int, Key | None]]:
        """The windows behind the code of the group that the rows are routed to, also if another one stood in for it, and
        the place of their route. Behind them the first of the rows, or None where none has an order key."""
        subjects = np.concatenate([rows.payload["subject"] for rows in parts])
        windows = np.concatenate([rows.payload["window_ms"] for rows in parts])
        # The first row of each run of equal ones says all: a million rows may leave memory in one step.
        starts = np.flatnonzero((subjects[1:] != subjects[:-1]) | (windows[1:] != windows[:-1])) + 1
        starts = np.concatenate([np.zeros(1, np.intp), starts])
        lowest = _lowest_keys(parts, starts) if any(has_order_key(rows.payload).any() for rows in parts) else []
        subjects, windows = subjects[starts], windows[starts]
        codes, places = self.wheel.codes(subjects), self._routes.places(subjects)
        for place in np.flatnonzero(np.bincount(places)).tolist():
            mine = places == place
            code = int(codes[np.argmax(mine)])  # a route has one
            first_of: dict[int, Key] = {}
            for run in np.flatnonzero(mine).tolist() if lowest else ():
                window, key = int(windows[run]), lowest[run]
                first_of[window] = min(first_of.get(window, key), key)
            for window in np.unique(windows[mine]).tolist():
                yield code, place, window, first_of.get(window)

    # -- cancels and lookups

    def withdraw(self, due_ms: I64, sequence: I64) -> None:
        """Messages (i64[n], i64[n], sequences ascending) that a cancel holds leave the wheel and the queues."""
        if len(self.wheel):
            self.wheel.cancel(due_ms, sequence)
        for group in self.groups.values():
            group.queue.remove(due_ms, sequence)

    def give_back(self, due_ms: I64, sequence: I64) -> None:
        """The cancel of these messages did not happen: from the first of them on, the near future is read from disk again.

        Not these rows alone: some may belong to a load that runs, or have been passed over by one, and only the cursors
        know which. It is rare (a full disk) and costs one load.
        """
        first = np.lexsort((sequence, due_ms))[0]
        self.evict_after(Key(int(due_ms[first]), int(sequence[first]) - 1))
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
        book, end_ms = self._windows_known.book, 1 << 62
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


def again_us(error: Exception) -> int:
    """How long rows wait before their file is read again, after it could not be read for this reason."""
    return REFUSED_AGAIN_US if isinstance(error, (DiskError, UnreadableError)) else DAMAGED_AGAIN_US


def low_room(rows_max: int) -> int:
    """Memory is short while it has room for no more rows than these."""
    return int(rows_max * LOW_ROOM_SHARE)


def _lowest_keys(parts: list[DueRows], starts: NDArray[np.intp]) -> list[Key]:
    """The lowest key of each run of rows; the runs begin at `starts`."""
    due_ms = np.concatenate([rows.due_ms for rows in parts])
    sequence = np.concatenate([rows.sequence for rows in parts])
    lowest_ms = np.minimum.reduceat(due_ms, starts)
    of_lowest = due_ms == np.repeat(lowest_ms, np.diff(starts, append=len(due_ms)))
    lowest = np.minimum.reduceat(np.where(of_lowest, sequence, np.iinfo(np.int64).max), starts)
    return [Key(*key) for key in zip(lowest_ms.tolist(), lowest.tolist(), strict=True)]


def _last_key(due_ms: I64, sequence: I64) -> Key:
    last = np.lexsort((sequence, due_ms))[-1]
    return Key(int(due_ms[last]), int(sequence[last]))


def _through(key: Key, due_ms: I64, sequence: I64) -> Mask:
    """True for the rows up to and with a key, bool[n]."""
    through: Mask = (due_ms < key.due_ms) | ((due_ms == key.due_ms) & (sequence <= key.sequence))
    return through
