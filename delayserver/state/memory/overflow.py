"""The bound of memory, `wheel.rows_max`: how much room there is, and which rows leave memory where there is none.

The far end of the wheel is evicted, and a load brings it again. The last rows of queues past their bounds or shares leave
memory too. Their windows are noted (`Spilled`), and `ReadBack` brings these rows. For the event loop.
"""

from __future__ import annotations

from delayserver.config.settings import WheelSettings
from delayserver.runtime.runtime import Runtime
from delayserver.state.memory.group_rows import GroupRows
from delayserver.state.memory.order_gate import loaded_ms
from delayserver.state.memory.residency import Residency
from delayserver.state.memory.spilled import windows_of
from delayserver.state.windows.windows import Windows
from wheel.keys import Key, last_key

# Memory is short while no more than this share of it is free.
LOW_ROOM_SHARE = 0.25
# `bound` keeps this share of memory, so that the next few rows do not evict again.
KEEP_SHARE = 0.75


class Overflow:
    """Owns the bound, and keeps memory within it."""

    def __init__(self, residency: Residency, windows: Windows, settings: WheelSettings, runtime: Runtime) -> None:
        self._residency = residency
        self._wheel = residency.wheel
        self._windows = windows
        self._settings = settings
        self._clock = runtime.clock
        # Rows of room that a load waits for; None if no load waits.
        self._room_wanted: int | None = None

    # -- how much

    @property
    def share(self) -> int:
        """Rows that each group may keep waiting where memory is short. Half of memory is for the queues: the wheel needs
        the rest to have the rows of the others in time."""
        groups = sum([not group.is_internal for group in self._residency.groups.values()])
        return max(self._settings.rows_max // (2 * groups), 1)

    @property
    def room(self) -> int:
        """Rows that memory may still take."""
        return self._settings.rows_max - len(self._wheel) - self._residency.rows_queued

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

    def must_wait(self, wanted: int | None) -> bool:
        """Whether a load lacks room, and waits for more than this; None: there is nothing to load."""
        self._room_wanted = wanted if wanted is not None and self.lacks(wanted) else None
        return self._room_wanted is not None

    def offer_room(self) -> None:
        """Wakes a load that waits for room, if there is enough now."""
        if self._room_wanted is not None and not self.lacks(self._room_wanted):
            self._residency.loadable.ring()

    # -- what leaves

    def enforce_bound(self) -> None:
        """Drops the far end if memory is past its bound. Call it after rows went straight to the wheel. Due rows with
        an order key leave only if that is not enough. They would be read back at once, and the far end has time."""
        if self.room < 0:
            self._make_room()
        if self.room < 0:
            self.evict_beyond(KEEP_SHARE, self._clock.now_ms())
        if self.room < 0:
            self._shed_keyed(0)

    def evict_beyond(self, share: float, low_ms: int) -> None:
        """Keep about this share of what memory can hold, the earliest rows, and all that is due up to `low_ms`."""
        keep = int(self._settings.rows_max * share) - self._residency.rows_queued
        low, high = low_ms, self._clock.now_ms() + 2 * self._settings.load_ahead_ms
        while low < high:  # the latest due time up to which `keep` rows suffice
            middle = (low + high + 1) // 2
            if self._wheel.rows_below(middle + 1) <= keep:
                low = middle
            else:
                high = middle - 1
        self._residency.evict_after(Key(low, (1 << 62)))

    def _make_room(self) -> None:
        """Where several groups share memory and it is short, each keeps at most its share of it waiting. Otherwise a group
        that is slower than its rows come would hold up the loading for all groups."""
        groups = self._residency.groups.values()
        if len(groups) > 1:
            for group in groups:
                self.keep(group, self.share)

    def _shed_keyed(self, room: int) -> None:
        """Until there is so much room: due rows with an order key leave memory, the last ones first, if they wait in the
        wheel for rows that are not loaded, or were dropped from a queue. These need the room. The others are read back
        later."""
        if self.room >= room or not self._wheel.keyed_codes:
            return
        now_ms = self._clock.now_ms()
        to_ms = loaded_ms(self._windows, now_ms)
        for code in self._wheel.keyed_codes:
            group = self._residency.groups[code]
            spilled = group.spilled.first_waiting
            from_ms = to_ms if spilled is None else min(to_ms, spilled.due_ms - 1)
            rows = self._wheel.drop_keyed(code, from_ms, now_ms, room - self.room)
            if len(rows):
                group.advance_released(last_key(rows.due_ms, rows.sequence))
                group.counters.count_dropped(len(rows))
                for _code, route_number, window, first in windows_of([rows], self._wheel.routes):
                    group.spilled.add(window, route_number, first)

    def keep(self, group: GroupRows, rows_max: int) -> None:
        """Let the last rows of a queue past a bound leave memory, and note their windows."""
        dropped = group.queue.drop_behind(rows_max)
        if dropped:
            group.counters.count_dropped(sum(map(len, dropped)))
            for code, route_number, window, first in windows_of(dropped, self._wheel.routes):
                owner = self._residency.groups[code]
                owner.spilled.add(window, route_number, first)
                if owner is not group and first is not None:  # this group stood in for it
                    self._residency.put_back_keyed(owner, first)


def low_room(rows_max: int) -> int:
    """Memory is short while it has room for no more rows than these."""
    return int(rows_max * LOW_ROOM_SHARE)
