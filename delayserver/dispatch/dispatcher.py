"""Takes rows from the wheel just before they are due and hands them to the queues of their broker groups, slice by slice.

The moment before is for reading their bodies and for the passes of the event loop: a group has a batch ready when it is
due, and hands it over then and never before.

A hot second is taken in slices with a checkpoint between them, so it does not hold up the others. Rows of a group that
is down leave memory past a bound; `refill` reads them again from disk when the group, or one that stands in, can take them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import WheelSettings
from delayserver.dispatch.broker_group import BrokerGroup
from delayserver.dispatch.delivery import take_rows
from delayserver.dispatch.message_reader import LOOK_AHEAD_MS, LOOK_MS
from delayserver.load.loader import LoadedRows, Loader, again_us
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.turns import LARGE_ROWS
from delayserver.state.attempt_horizon import AttemptHorizon
from delayserver.state.decided import Decided
from delayserver.state.group_wheels import GroupWheels
from delayserver.state.membership import is_member
from delayserver.state.positions import Positions
from delayserver.state.routes import Routes
from store.errors import CorruptionError, DiskError
from store.indexes.outcome_index import OutcomeIndex
from store.records.batches import I64
from wheel.due_rows import DueRows
from wheel.keys import KEY_HIGHEST, KEY_LOWEST, Key

# How long before its due time a row leaves the wheel. A batch of each of the next milliseconds may be made ready by a
# worker of its group: fewer than the workers, so that what is due now finds one.
AHEAD_MS = 4


class Dispatcher:
    """Wheel → groups."""

    def __init__(
        self,
        wheel: GroupWheels,
        groups: dict[int, BrokerGroup],
        routes: Routes,
        loader: Loader,
        decided: Decided,
        positions: Positions,
        horizon: AttemptHorizon,
        settings: WheelSettings,
        runtime: Runtime,
    ) -> None:
        self._wheel = wheel
        self._groups = groups
        self._by_name = {group.name: group for group in groups.values()}
        self._routes = routes
        self._loader = loader
        loader.not_dispatched = self._not_dispatched
        loader.rows_elsewhere = lambda: sum([len(group.queue) + group.queue.rows_aside for group in groups.values()])
        loader.make_room = self._make_room
        self._share = share_of_queue(settings, len(groups))
        self._decided = decided
        self._positions = positions
        self._horizon = horizon
        self._earlier = horizon.earlier
        self._workers = runtime.workers
        self._slice_rows = settings.slice_rows if len(groups) == 1 else settings.shared_slice_rows
        self._clock = runtime.clock
        self._damage = runtime.damage
        self._looked_ms = 0
        self._refill = trio.Event()
        # By group, the last key that the wheel released: a row behind the last one of all groups is in no queue.
        self.released_to = dict.fromkeys(groups, KEY_LOWEST)
        # Windows (behind a group's code and a route's place) of rows that were left on disk, and when to read them again,
        # monotonic.
        self._read_again: dict[tuple[int, int, int], int] = {}
        for group in groups.values():
            group.hand_on = partial(self._hand_on, group)
            group.put_back = self._put_back
            group.on_room = self._room_in_group
            group.on_dropped = self._dropped
            group.on_left = self._read_later

    @property
    def rows_held(self) -> int:
        """Rows in the groups' queues and in flight."""
        return sum([group.rows_held for group in self._groups.values()])

    def clock_stepped(self) -> None:
        """What is due, and what is to be loaded, is different now."""
        self._earlier.ring()
        self._loader.wake()

    def stop(self) -> None:
        """Begin no further attempt."""
        for group in self._groups.values():
            group.stop()

    async def run(self) -> None:
        """Dispatch until cancelled."""
        while True:
            self._earlier.hush()
            released = False
            to_ms = min(self._clock.now_ms() + AHEAD_MS, self._horizon.due_ms)
            for code, rows in self._wheel.advance(to_ms, self._slice_rows):
                self._release(self._groups[code], rows)
                released = True
                if len(rows) > LARGE_ROWS:
                    await trio.lowlevel.checkpoint()
            if released:
                await trio.lowlevel.checkpoint()
                continue
            self._loader.wake_if_room()
            next_due_ms = self._wheel.next_due_ms()
            if next_due_ms is None or next_due_ms > self._horizon.due_ms:
                await self._earlier.rung()
                continue
            ahead_ms = LOOK_AHEAD_MS if self._look_ahead(next_due_ms) else AHEAD_MS
            with trio.move_on_after(self._clock.wait_s((next_due_ms - ahead_ms) * 1000)):
                await self._earlier.rung()

    def _look_ahead(self, next_due_ms: int) -> bool:
        """Let groups read the messages of a hot moment that is near; True while the next row is farther away."""
        now_ms = self._clock.now_ms()
        if next_due_ms > now_ms + LOOK_AHEAD_MS:
            return True
        if not 0 <= now_ms - self._looked_ms < LOOK_MS:
            self._looked_ms = now_ms
            for code, runs in self._wheel.runs_below(now_ms + LOOK_AHEAD_MS + LOOK_MS):
                self._groups[code].reader.look_ahead(runs)
        return False

    def _release(self, group: BrokerGroup, rows: DueRows) -> None:
        rows.payload["released_us"] = np.maximum(rows.due_ms * 1000, self._clock.now_us())
        last = Key(int(rows.due_ms[-1]), int(rows.sequence[-1]))
        self.released_to[group.code] = max(self.released_to[group.code], last)
        # At once: the queue of a group that is down may be full of rows that have no stand-in, and would drop these.
        rest = self._fail_over(group, rows) if group.down else rows
        if len(rest):
            group.push(rest)

    def _put_back(self, rows: DueRows) -> None:
        """Rows whose due time lies ahead again, since the clock went back. If memory had to give up their part of the
        window meanwhile, a load brings them."""
        here = self._loader.has_brought(rows.payload, rows.due_ms, rows.sequence)
        if not here.all():
            rows = take_rows(rows, np.flatnonzero(here))
            self._loader.wake()
        if len(rows):
            self._wheel.add(rows.due_ms, rows.sequence, rows.payload)

    async def _hand_on(self, group: BrokerGroup) -> bool:
        """Give rows of a group that fails to the next groups of their routes; whether any went. The queue is gone through
        once, so that rows without a stand-in do not hold back those behind them, and slice by slice, so that others run."""
        others = [self._by_name[name] for name in self._routes.partners(group.name)]
        waiting, looked, went = len(group.queue), 0, False
        while looked < waiting and any(self._may_take(other) for other in others):
            rows = group.queue.take(self._slice_rows, 1 << 62)
            if rows is None:
                break
            looked += len(rows)
            rest = self._fail_over(group, rows)
            went |= len(rest) < len(rows)
            group.queue.push(rest)
            await trio.lowlevel.checkpoint()
        return went

    def _fail_over(self, group: BrokerGroup, rows: DueRows) -> DueRows:
        """Returns those that have no group that works."""
        places = self._routes.places(rows.payload["subject"])
        rest = np.ones(len(rows), dtype=bool)
        for place in np.unique(places).tolist():
            other = self._stand_in(group, place)
            if other is None:
                continue
            mine = places == place
            self._give(group, other, take_rows(rows, np.flatnonzero(mine)))
            rest &= ~mine
        return rows if rest.all() else take_rows(rows, np.flatnonzero(rest))

    def _give(self, group: BrokerGroup, other: BrokerGroup, rows: DueRows) -> None:
        group.counters.failed_over += len(rows)
        group.counters.uncertain_failovers += int(rows.payload["uncertain"].sum())
        other.push(rows)

    def _stand_in(self, group: BrokerGroup, place: int) -> BrokerGroup | None:
        """The first group of a route that works instead of `group`, if it can take rows now."""
        names = self._routes.stand_ins(place, group.name)
        other = next((self._by_name[name] for name in names if self._by_name[name].may_work), None)
        return other if other is not None and self._may_take(other) else None

    def _idle_stand_in(self, group: BrokerGroup, place: int) -> BrokerGroup | None:
        """Whom rows may be read back for while others of `group`, which is down, wait in its queue."""
        other = self._stand_in(group, place) if group.down else None
        return other if other is not None and not len(other.queue) else None

    def _may_take(self, other: BrokerGroup) -> bool:
        """Not one that works, but slower than rows come: what it would drop is better left where it is. It would be read
        again at once, and come here again."""
        over = len(other.queue) >= self._share and self._loader.is_short
        return other.may_work and not other.full and not over

    # -- rows that left memory

    def _make_room(self) -> None:
        """Where several groups share memory and it is short, none keeps more than its share of it waiting: whoever is
        slower than its rows come would hold up the loading of everybody's."""
        if len(self._groups) > 1:
            for group in self._groups.values():
                group.keep(self._share)

    def _dropped(self, parts: list[DueRows]) -> None:
        for code, place, window in self._windows(parts):
            self._groups[code].spilled.add(window, place)

    def _read_later(self, rows: DueRows, pause_us: int) -> None:
        """One bad sector fails the read of a whole batch. Later the window is read around it, if it is still there."""
        for which in self._windows([rows]):
            # The first pause counts: what is left again and again does not put off what was left before.
            self._read_again.setdefault(which, self._clock.monotonic_us() + pause_us)

    def _windows(self, parts: list[DueRows]) -> Iterator[tuple[int, int, int]]:
        """The windows behind the code of the group that the rows are routed to, also if another one stood in for it, and
        the place of their route."""
        subjects = np.concatenate([rows.payload["subject"] for rows in parts])
        windows = np.concatenate([rows.payload["window_ms"] for rows in parts])
        # The first row of each run of equal ones says all: a million rows may leave memory in one step.
        first = np.flatnonzero((subjects[1:] != subjects[:-1]) | (windows[1:] != windows[:-1])) + 1
        first = np.concatenate([np.zeros(1, np.intp), first])
        subjects, windows = subjects[first], windows[first]
        codes, places = self._wheel.codes(subjects), self._routes.places(subjects)
        for place in np.flatnonzero(np.bincount(places)).tolist():
            mine = places == place
            code = int(codes[np.argmax(mine)])  # a route has one
            for window in np.unique(windows[mine]).tolist():
                yield code, place, window

    def _places(self, rows: DueRows) -> list[int]:
        """The places of the routes that rows have."""
        places: list[int] = np.flatnonzero(np.bincount(self._routes.places(rows.payload["subject"]))).tolist()
        return places

    def _room_in_group(self) -> None:
        self._loader.wake_if_room()
        self._refill.set()

    async def refill(self) -> None:
        """Read rows back that a group's queue had to drop, until cancelled."""
        while True:
            self._refill = trio.Event()
            now_us, busy = self._clock.monotonic_us(), False
            for code, place, window in [which for which, then_us in self._read_again.items() if then_us <= now_us]:
                del self._read_again[code, place, window]
                self._groups[code].spilled.add(window, place)
            for group in self._groups.values():
                # An empty queue: the group works again, or another one takes its rows.
                if group.spilled and not len(group.queue):
                    await self._refill_group(group)
                    busy = True
                for place in group.spilled.places:
                    if self._idle_stand_in(group, place) is not None:
                        await self._refill_group(group, place)
                        busy = True
            if not busy:
                with trio.move_on_after(1):
                    await self._refill.wait()

    async def _refill_group(self, group: BrokerGroup, place: int | None = None) -> None:
        """Read the first window back; with the place of a route only its rows, for their stand-in."""
        # Before the ends are captured: rows that are dropped while the window is read may lie behind them.
        window, routes = group.spilled.take(place)
        ends = self._loader.ends(window)
        if not any(ends.values()):
            return  # all of it was decided meanwhile, and retention took the files
        read = partial(self._loader.read, window, ends, KEY_LOWEST, KEY_HIGHEST)
        try:
            async with self._decided.pinned(self._loader.outcome_file(window)) as index:
                loaded = await self._workers.run(read)
                # From here on one step: nothing can be released, delivered or cancelled between the checks and the push.
                self._push_back(group, place, window, loaded, index)
        except (CorruptionError, DiskError) as error:
            self._damage.report(error)
            for route in routes:
                self._read_again[group.code, route, window] = self._clock.monotonic_us() + again_us(error)
        except KeyError:
            if self._loader.ends(window) == ends:
                raise
            for route in routes:
                group.spilled.add(window, route)  # retention took a file during the read: what is left is read anew

    def _push_back(
        self, group: BrokerGroup, place: int | None, window: int, loaded: LoadedRows, index: OutcomeIndex
    ) -> None:
        wanted = index.missing(loaded.sequence) & self._decided.holds.not_held(loaded.sequence)
        wanted &= self._decided.overlays.not_done(window, loaded.sequence) & self._routed_to(group, place, loaded)
        wanted &= self._positions.has_published(loaded.sequence)
        candidates = loaded.take(np.flatnonzero(wanted))
        mine = ~self._in_memory(candidates)
        order = np.lexsort((candidates.sequence, candidates.due_ms))
        order = order[mine[order]]
        marked = self._loader.mark_unknown(candidates.take(order))
        rows = DueRows(marked.due_ms, marked.sequence, marked.rows)
        other = group if place is None else self._idle_stand_in(group, place)
        # What is overdue goes before the far end of the wheel, which is read again in its time.
        most = 0 if other is None else max(self._loader.room, self._share)
        now, later = rows.slice(0, most), rows.slice(most, len(rows))
        if other is group and len(now):
            group.push(now)
        elif other is not None and len(now):
            self._give(group, other, now)
        for route in self._places(later):
            group.spilled.add(window, route)
        self._loader.bound()

    def _routed_to(self, group: BrokerGroup, place: int | None, loaded: LoadedRows) -> NDArray[np.bool_]:
        subjects = loaded.rows["subject"]
        mask: NDArray[np.bool_] = self._wheel.codes(subjects) == group.code
        mask &= _through(self.released_to[group.code], loaded.due_ms, loaded.sequence)
        if place is not None:
            mask &= self._routes.places(subjects) == place
        return mask

    def _in_memory(self, rows: LoadedRows) -> NDArray[np.bool_]:
        return self._wheel.contains(rows.due_ms, rows.sequence) | ~self._not_dispatched(rows.due_ms, rows.sequence)

    def _not_dispatched(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """True where a row neither waits in a group nor is in flight, bool[n]. Only rows up to the last key that was
        released can: normally a load has none of those, and no queue is looked into."""
        free = np.ones(len(sequence), dtype=bool)
        places = np.flatnonzero(_through(max(self.released_to.values()), due_ms, sequence))
        if len(places):
            due_ms, sequence = due_ms[places], sequence[places]
            held = np.zeros(len(places), dtype=bool)
            for group in self._groups.values():
                held |= group.queue.holds(due_ms, sequence)
                held |= is_member(sequence, group.in_flight())
            free[places] = ~held
        return free

    def check_invariants(self) -> None:
        """No group holds a row behind the last key that was released: `_not_dispatched` would not find it."""
        released = max(self.released_to.values())
        for group in self._groups.values():
            group.queue.check_invariants()
            assert group.queue.last_key() <= released


def share_of_queue(settings: WheelSettings, groups: int) -> int:
    """Rows that each of n groups may keep waiting where memory is short. Half of memory is for the queues: the wheel needs
    the rest to have the others' rows in time."""
    return max(settings.rows_max // (2 * groups), 1)


def _through(key: Key, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
    """True for the rows up to and with a key, bool[n]."""
    through: NDArray[np.bool_] = (due_ms < key.due_ms) | ((due_ms == key.due_ms) & (sequence <= key.sequence))
    return through
