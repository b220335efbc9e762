"""The wheel against a plain sorted list: whatever is done in whatever order, both give the same rows."""

from __future__ import annotations

import bisect

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from wheel import hashed_wheel, runs, sorted_run
from wheel.hashed_wheel import HashedWheel

PAYLOAD = np.dtype([("sequence_copy", "<i8"), ("size", "<u4")])
TIMES = st.integers(-50, 700) | st.integers(-3000, 30_000)


class AnyBounds(RuleBasedStateMachine):
    """A wheel of 16 slots of a few ms, so that rounds, spans and jumps of the clock happen within a few hundred ms."""

    @initialize(start_ms=st.integers(-20, 400), tick_ms=st.sampled_from([1, 4, 10]))
    def start(self, start_ms: int, tick_ms: int) -> None:
        self.wheel = HashedWheel(start_ms, tick_ms, slots=16, payload_dtype=PAYLOAD)
        self.model: list[tuple[int, int]] = []
        self.gone: list[tuple[int, int]] = []
        self.cancelled: set[tuple[int, int]] = set()
        self.next_sequence = 0

    @rule(
        due=st.lists(TIMES, max_size=40) | st.lists(st.integers(100, 104), max_size=60),
        shuffle=st.randoms(use_true_random=False) | st.none(),
    )
    def add(self, due: list[int], shuffle: object) -> None:
        self.add_columns(due, shuffle)

    @rule(rows=st.integers(50, 400), first=TIMES, step=st.integers(0, 7))
    def add_many(self, rows: int, first: int, step: int) -> None:
        self.add_columns([first + i * step % 611 for i in range(rows)], None)

    @rule(batches=st.integers(2, 12), first=TIMES, step=st.integers(1, 300))
    def add_small_wide_batches(self, batches: int, first: int, step: int) -> None:
        for batch in range(batches):
            self.add_columns([first + (batch + i) * step % 1777 for i in range(9)], None)

    def add_columns(self, due: list[int], shuffle: object) -> None:
        sequence = list(range(self.next_sequence, self.next_sequence + len(due)))
        self.next_sequence += len(due)
        if shuffle is not None:
            shuffle.shuffle(sequence)  # type: ignore[attr-defined]
        payload = np.zeros(len(due), PAYLOAD)
        payload["sequence_copy"] = sequence
        self.wheel.add(np.array(due, np.int64), np.array(sequence, np.int64), payload)
        self.model = sorted([*self.model, *zip(due, sequence, strict=True)])

    @rule(now_ms=TIMES, rows_max=st.integers(1, 20) | st.integers(21, 1000))
    def advance(self, now_ms: int, rows_max: int) -> None:
        rows = self.wheel.advance(now_ms, rows_max)
        rows.check_invariants()
        due_rows = bisect.bisect_right(self.model, (now_ms, 1 << 62))
        expected = self.model[: min(due_rows, rows_max)]
        assert list(zip(rows.due_ms.tolist(), rows.sequence.tolist(), strict=True)) == expected
        assert rows.payload.dtype == PAYLOAD
        assert rows.payload["sequence_copy"].tolist() == rows.sequence.tolist()
        self.model = self.model[len(expected) :]
        self.gone += expected

    @rule(data=st.data(), unknown=st.lists(st.tuples(TIMES, st.integers(-3, 2000)), max_size=5))
    def cancel(self, data: st.DataObject, unknown: list[tuple[int, int]]) -> None:
        keys = self.draw_keys(data) + unknown + self.gone[-3:]
        held = set(self.model)
        due_ms = np.array([key[0] for key in keys], np.int64)
        sequence = np.array([key[1] for key in keys], np.int64)
        expected = [key in held for key in keys]
        assert self.wheel.contains(due_ms, sequence).tolist() == expected
        assert self.wheel.cancel(due_ms, sequence).tolist() == expected
        assert not self.wheel.contains(due_ms, sequence).any()
        taken = set(keys)
        self.cancelled |= held & taken
        self.model = [key for key in self.model if key not in taken]

    def draw_keys(self, data: st.DataObject) -> list[tuple[int, int]]:
        if not self.model:
            return []
        if data.draw(st.booleans()):  # Most rows at once: runs must be copied down and slots emptied.
            return self.model[data.draw(st.integers(0, 3)) :: data.draw(st.integers(1, 3))]
        return data.draw(st.lists(st.sampled_from(self.model), max_size=8))

    @rule(due_ms=TIMES, sequence=st.integers(-1, 2000))
    def evict_after(self, due_ms: int, sequence: int) -> None:
        kept = bisect.bisect_right(self.model, (due_ms, sequence))
        assert self.wheel.evict_after(due_ms, sequence) == len(self.model) - kept
        self.model = self.model[:kept]

    @rule(due_ms=TIMES, sequence=st.integers(-1, 2000), until_ms=TIMES)
    def evict_between(self, due_ms: int, sequence: int, until_ms: int) -> None:
        gone = [key for key in self.model if key > (due_ms, sequence) and key[0] < until_ms]
        assert self.wheel.evict_between(due_ms, sequence, until_ms) == len(gone)
        self.cancelled |= set(gone)
        self.model = [key for key in self.model if key not in set(gone)]

    @rule(due_ms=TIMES)
    def rows_below(self, due_ms: int) -> None:
        found: list[tuple[int, int]] = []
        for rows in self.wheel.runs_below(due_ms):
            rows.check_invariants()
            assert rows.payload["sequence_copy"].tolist() == rows.sequence.tolist()
            found += zip(rows.due_ms.tolist(), rows.sequence.tolist(), strict=True)
        assert len(found) == len(set(found)) and all(key[0] < due_ms for key in found)
        assert {key for key in self.model if key[0] < due_ms} <= set(found) <= {*self.model, *self.cancelled}
        assert self.wheel.rows_below(due_ms) == bisect.bisect_left(self.model, (due_ms, -(1 << 62)))

    @invariant()
    def holds_the_same_rows(self) -> None:
        if not hasattr(self, "wheel"):
            return
        self.wheel.check_invariants()
        assert len(self.wheel) == len(self.model)
        assert self.wheel.next_due_ms() == (self.model[0][0] if self.model else None)


class TinyBounds(AnyBounds):
    """Bounds so small that every step merges, splits, samples and releases."""

    bounds = (
        (runs, "RUN_ROWS_MAX", 12),
        (runs, "SETTLED_ROWS", 6),
        (runs, "MERGE_RUNS", 3),
        (runs, "MERGE_ROWS_MAX", 18),
        (runs, "SAMPLES_PER_RUN", 3),
        (sorted_run, "RELEASE_ROWS_MIN", 2),
        (hashed_wheel, "RUN_ROWS_MAX", 12),
        (hashed_wheel, "LOOSE_ROWS_MAX", 24),
        (hashed_wheel, "LOOSE_ROWS_PER_SPAN", 3),
        (hashed_wheel, "NARROW_TICKS", 3),
        (hashed_wheel, "NARROW_ROWS", 4),
    )

    def __init__(self) -> None:
        super().__init__()
        self.saved = [(module, name, getattr(module, name)) for module, name, _ in self.bounds]
        for module, name, value in self.bounds:
            setattr(module, name, value)

    def teardown(self) -> None:
        for module, name, value in self.saved:
            setattr(module, name, value)


SETTINGS = settings(max_examples=200, stateful_step_count=30, deadline=None)
TestWheelEqualsASortedList = AnyBounds.TestCase
TestWheelEqualsASortedList.settings = SETTINGS
TestWheelEqualsASortedListWithTinyBounds = TinyBounds.TestCase
TestWheelEqualsASortedListWithTinyBounds.settings = SETTINGS
