"""However appending, asking, loading, failing and evicting interleave: each row is in the wheel exactly once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from wheel.cursors import LoadCursors
from wheel.keys import KEY_HIGHEST, Key
from wheel.window_cursor import LoadTicket

WINDOW_MS = 10
WINDOWS = (0, 10)
SOURCES = ("direct", "day")
KEYS = st.builds(Key, st.integers(-2, 21), st.integers(0, 60))


@dataclass(frozen=True)
class Row:
    window_start_ms: int
    source: str
    offset: int
    key: Key


@dataclass
class Load:
    ticket: LoadTicket
    rows: list[Row]
    brought: bool = False


def columns(rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    return (
        np.array([row.key.due_ms for row in rows], np.int64),
        np.array([row.key.sequence for row in rows], np.int64),
    )


class CursorsMachine(RuleBasedStateMachine):
    """The model: files as lists of rows with offsets, the wheel as a list of rows, the loader as what it has read."""

    @initialize()
    def start(self) -> None:
        self.cursors = LoadCursors(WINDOW_MS)
        self.published: list[Row] = []
        self.unasked: list[list[Row]] = []
        self.wheel: list[Row] = []
        # Rows that the replayer has added since a load brought them last.
        self.direct: set[Row] = set()
        self.ends = {(window, source): 0 for window in WINDOWS for source in SOURCES}
        self.loads: dict[int, Load] = {}
        self.next_sequence = 0

    @rule(
        window=st.sampled_from(WINDOWS),
        source=st.sampled_from(SOURCES),
        ticks=st.lists(st.integers(0, WINDOW_MS - 1), min_size=1, max_size=4),
        length=st.integers(1, 3),
    )
    def append(self, window: int, source: str, ticks: list[int], length: int) -> None:
        """The record is in the file, and so below the next end offset captured; the replayer has not asked yet."""
        offset = self.ends[window, source]
        self.ends[window, source] += length
        rows = []
        for tick in ticks:
            rows.append(Row(window, source, offset, Key(window + tick, self.next_sequence)))
            self.next_sequence += 1
        self.published += rows
        self.unasked.append(rows)

    @precondition(lambda self: self.unasked)
    @rule()
    def ask_for_all_appended(self) -> None:
        for rows in self.unasked:
            first = rows[0]
            direct = self.cursors.owner(first.window_start_ms, first.source, first.offset, *columns(rows))
            self.wheel += [row for row, mine in zip(rows, direct, strict=True) if mine]
            self.direct |= {row for row, mine in zip(rows, direct, strict=True) if mine}
        self.unasked.clear()

    @rule(window=st.sampled_from(WINDOWS), limit=st.none() | KEYS)
    def begin_load(self, window: int, limit: Key | None) -> None:
        if window in self.loads or (limit or KEY_HIGHEST) <= self.cursors.loaded_limit(window):
            return
        ends = {source: end for (of, source), end in self.ends.items() if of == window and end}
        ticket = self.cursors.begin_load(window, ends, limit)
        assert ticket.to_key <= (limit or KEY_HIGHEST)
        # What a loader reads now or at any later time: it goes by the ticket alone.
        rows = [
            row
            for row in self.published
            if row.window_start_ms == window
            and row.offset < ticket.end_offsets.get(row.source, 0)
            and ticket.from_key < row.key <= ticket.to_key
        ]
        self.loads[window] = Load(ticket, rows)

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def finish_load(self, data: st.DataObject) -> None:
        load = self.loads.pop(data.draw(st.sampled_from(sorted(self.loads))))
        covered = self.cursors.covers(load.ticket, *columns(load.rows))
        self.bring([row for row, mine in zip(load.rows, covered, strict=True) if mine])
        self.cursors.finish_load(load.ticket)

    def bring(self, rows: list[Row]) -> None:
        self.wheel += rows
        self.direct -= set(rows)

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), count=st.integers(1, 3))
    def bring_the_first_rows_of_a_load(self, data: st.DataObject, count: int) -> None:
        load = self.loads[data.draw(st.sampled_from(sorted(self.loads)))]
        rows = sorted(load.rows, key=lambda row: row.key)
        if not rows:
            return
        covered = self.cursors.covers(load.ticket, *columns(rows[:count]))
        self.bring([row for row, mine in zip(rows[:count], covered, strict=True) if mine])
        self.cursors.bring(load.ticket, rows[:count][-1].key)
        load.rows, load.brought = rows[count:], True

    @rule()
    def begin_many_loads_in_one_step(self) -> None:
        for window in WINDOWS:
            self.begin_load(window, None)

    @precondition(lambda self: self.loads)
    @rule()
    def finish_many_loads_in_one_step(self) -> None:
        """As the loader does: it asks row by row only where an eviction has taken a part of the ticket."""
        for load in self.loads.values():
            covered = self.cursors.covers(load.ticket, *columns(load.rows))
            if self.cursors.covers_all(load.ticket):
                assert covered.all()
            self.bring([row for row, mine in zip(load.rows, covered, strict=True) if mine])
        for load in self.loads.values():
            self.cursors.finish_load(load.ticket)
        self.loads.clear()

    @precondition(lambda self: self.loads)
    @rule()
    def evict_and_abandon_many_loads_in_one_step(self) -> None:
        self.evict_after(Key(min(self.loads) - 1, 1 << 62))
        for load in self.loads.values():
            self.cursors.abandon_load(load.ticket)
        self.loads.clear()

    @precondition(lambda self: self.loads)
    @rule(data=st.data(), first_rows=st.integers(0, 3))
    def add_some_rows_fail_and_evict(self, data: st.DataObject, first_rows: int) -> None:
        load = self.loads.pop(data.draw(st.sampled_from(sorted(self.loads))))
        if first_rows and load.rows:
            covered = self.cursors.covers(load.ticket, *columns(load.rows))
            mine = [row for row, taken in zip(load.rows, covered, strict=True) if taken]
            self.bring(mine[:first_rows])
        if load.brought or (first_rows and load.rows):
            self.evict_one_window(load.ticket.window_start_ms, load.ticket.from_key)
        self.cursors.abandon_load(load.ticket)

    @rule(window=st.sampled_from(WINDOWS), key=KEYS)
    def evict_one_window(self, window: int, key: Key) -> None:
        self.wheel = [row for row in self.wheel if row.window_start_ms != window or row.key <= key]
        self.cursors.evict(window, key)

    @rule(key=KEYS)
    def evict_after(self, key: Key) -> None:
        self.wheel = [row for row in self.wheel if row.key <= key]
        self.cursors.evict_after(key)

    @rule(key=KEYS, window=st.sampled_from(WINDOWS))
    def evict_between(self, key: Key, window: int) -> None:
        self.wheel = [row for row in self.wheel if row.key <= key or row.window_start_ms >= window]
        self.cursors.evict_between(key, window)

    @invariant()
    def each_row_is_in_the_wheel_once_as_far_as_its_range_is_loaded(self) -> None:
        held = set(self.wheel)
        unasked = {row for rows in self.unasked for row in rows}
        assert len(held) == len(self.wheel), "a row is in the wheel twice"
        for row in self.published:
            window = row.window_start_ms
            if row.key <= self.cursors.loaded_limit(window):
                assert row in held or row in unasked, "a row of a loaded range is missing"
            elif row.key > self.cursors.limit(window):
                assert row not in held, "a row of a range that no part has taken is in the wheel"

    @invariant()
    def what_the_cursors_say_of_a_row_is_so(self) -> None:
        held = set(self.wheel)
        unasked = {row for rows in self.unasked for row in rows}
        for row in self.published:
            offset = np.array([row.offset], np.int64)
            brought = self.cursors.brought(row.window_start_ms, row.source, offset, *columns([row]))
            assert bool(brought[0]) == (row in held and row not in self.direct)
            if row not in unasked:
                holds = self.cursors.holds(row.window_start_ms, row.source, offset, *columns([row]))
                assert bool(holds[0]) == (row in held)
                assert self.cursors.is_taken(row.window_start_ms) or row not in held

    @invariant()
    def queries_agree_with_each_other(self) -> None:
        self.cursors.check_invariants()
        for window in WINDOWS:
            assert self.cursors.is_loading(window) == (window in self.loads)
            assert self.cursors.loaded_limit(window) <= self.cursors.limit(window)
        ready = [w for w in WINDOWS if w not in self.loads and not self.cursors.is_loaded(w)]
        assert self.cursors.next_unloaded(0, 20) == (ready[0] if ready else None)

    def teardown(self) -> None:
        """However it went, loading the rest makes every published row present exactly once."""
        if not hasattr(self, "cursors"):
            return
        self.ask_for_all_appended()
        for load in list(self.loads.values()):
            if load.brought:
                self.evict_one_window(load.ticket.window_start_ms, load.ticket.from_key)
            self.cursors.abandon_load(load.ticket)
        self.loads.clear()
        for window in WINDOWS:
            while not self.cursors.is_loaded(window):
                self.begin_load(window, None)
                load = self.loads.pop(window)
                self.wheel += load.rows
                self.cursors.finish_load(load.ticket)
        assert sorted(self.wheel, key=lambda row: row.key) == sorted(self.published, key=lambda row: row.key)


CursorsMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=40, deadline=None)
TestEveryRowIsOwnedExactlyOnce = CursorsMachine.TestCase
