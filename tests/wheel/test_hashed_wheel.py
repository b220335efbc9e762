"""Facts of the wheel, one by one."""

from __future__ import annotations

import tracemalloc

import numpy as np
import numpy.typing as npt
import pytest

from wheel.due_rows import DueRows
from wheel.hashed_wheel import HashedWheel
from wheel.runs import MERGE_RUNS, RUN_ROWS_MAX

PAYLOAD = np.dtype([("sequence_copy", "<i8"), ("rest", "V24")])
START_MS = 1_700_000_000_000


def new_wheel(tick_ms: int = 10, slots: int = 8192) -> HashedWheel:
    return HashedWheel(START_MS, tick_ms, slots, payload_dtype=PAYLOAD)


def add(wheel: HashedWheel, due_ms: npt.ArrayLike, sequence: npt.ArrayLike) -> None:
    due = np.asarray(due_ms, np.int64)
    numbers = np.asarray(sequence, np.int64)
    payload = np.zeros(len(due), PAYLOAD)
    payload["sequence_copy"] = numbers
    wheel.add(due, numbers, payload)
    wheel.check_invariants()


def sequences(rows: DueRows) -> list[int]:
    rows.check_invariants()
    assert (rows.payload["sequence_copy"] == rows.sequence).all()
    return [int(number) for number in rows.sequence]


def drain(wheel: HashedWheel, now_ms: int, rows_max: int) -> DueRows:
    parts = [wheel.advance(now_ms, rows_max)]
    while len(parts[-1]):
        wheel.check_invariants()
        parts.append(wheel.advance(now_ms, rows_max))
    return DueRows.concatenate(parts)


@pytest.mark.parametrize("tick_offset_ms", [-1, 0, 1, 9])
def test_a_row_is_due_at_its_exact_millisecond_wherever_in_the_tick(tick_offset_ms: int) -> None:
    wheel = new_wheel()
    due_ms = START_MS + 500 + tick_offset_ms
    add(wheel, [due_ms], [7])
    assert sequences(wheel.advance(due_ms - 1, 10)) == []
    assert wheel.next_due_ms() == due_ms
    assert sequences(wheel.advance(due_ms, 10)) == [7]
    assert wheel.next_due_ms() is None


def test_rows_of_the_same_tick_leave_one_millisecond_after_another() -> None:
    wheel = new_wheel()
    add(wheel, START_MS + 100 + np.arange(10), np.arange(10))
    for millisecond in range(10):
        assert sequences(wheel.advance(START_MS + 100 + millisecond, 10)) == [millisecond]


@pytest.mark.parametrize("spread_ms", [1, 60_000, 400_000])
def test_no_row_leaves_early_while_the_clock_moves_on(spread_ms: int) -> None:
    wheel = new_wheel()
    rows = 5_000
    due_ms = START_MS + np.random.default_rng(5).integers(0, spread_ms, rows)
    add(wheel, due_ms, np.arange(rows))
    expected = np.sort(due_ms)
    seen = 0
    for now_ms in range(START_MS - 7, START_MS + spread_ms + 500, max(1, spread_ms // 97)):
        taken = wheel.advance(now_ms, rows)
        seen += len(taken)
        assert seen == np.searchsorted(expected, now_ms, "right")
    assert seen + len(wheel.advance(START_MS + spread_ms, rows)) == rows


@pytest.mark.parametrize("tick_ms", [1, 10, 1000])
def test_every_millisecond_gives_exactly_its_rows_at_any_tick(tick_ms: int) -> None:
    wheel = new_wheel(tick_ms)
    due_ms = np.repeat(START_MS + np.arange(1000), 3)
    add(wheel, due_ms, np.random.default_rng(8).permutation(3000))
    for now_ms in range(START_MS, START_MS + 1000):
        assert wheel.advance(now_ms, 100).due_ms.tolist() == [now_ms] * 3


def test_a_row_in_the_past_leaves_at_the_next_advance() -> None:
    wheel = new_wheel()
    add(wheel, [START_MS - 86_400_000, START_MS - 1], [2, 1])
    assert wheel.next_due_ms() == START_MS - 86_400_000
    assert sequences(wheel.advance(START_MS, 10)) == [2, 1]


def test_a_row_added_behind_the_clock_leaves_before_later_ones_that_wait_already() -> None:
    wheel = new_wheel()
    add(wheel, [START_MS + 40, START_MS + 50], [1, 2])
    assert sequences(wheel.advance(START_MS + 45, 10)) == [1]
    add(wheel, [START_MS + 41, START_MS - 5], [3, 4])
    assert sequences(wheel.advance(START_MS + 50, 10)) == [4, 3, 2]


def test_rows_of_later_rounds_wait_in_the_slot_for_their_round() -> None:
    wheel = new_wheel(tick_ms=10, slots=16)
    round_ms = 160
    due_ms = [START_MS + 55 + round_ms * lap for lap in (3, 0, 1000, 1)]
    for sequence, due in enumerate(due_ms):
        add(wheel, [due], [sequence])
    for sequence in (1, 3, 0, 2):
        assert sequences(wheel.advance(due_ms[sequence] - 1, 10)) == []
        assert wheel.next_due_ms() == due_ms[sequence]
        assert sequences(wheel.advance(due_ms[sequence], 10)) == [sequence]


def test_a_jump_over_many_rounds_still_gives_due_order() -> None:
    wheel = new_wheel(tick_ms=10, slots=16)
    due_ms = START_MS + np.random.default_rng(3).permutation(20_000)
    for start in range(0, len(due_ms), 4):
        add_rows = np.arange(start, start + 4)
        wheel.add(due_ms[add_rows], add_rows, np.zeros(4, PAYLOAD))
    rows = wheel.advance(START_MS + 10_000_000, 100_000)
    assert rows.due_ms.tolist() == sorted(due_ms.tolist())


def test_a_clock_that_goes_back_gives_nothing_later_than_itself() -> None:
    wheel = new_wheel()
    add(wheel, START_MS + np.arange(0, 3000, 3), np.arange(1000))
    assert len(wheel.advance(START_MS + 1500, 100)) == 100
    back = wheel.advance(START_MS + 330, 1000)
    assert back.due_ms.tolist() == list(range(START_MS + 300, START_MS + 331, 3))
    assert len(wheel.advance(START_MS - 10_000, 1000)) == 0
    wheel.check_invariants()
    assert len(wheel.advance(START_MS + 3000, 1000)) == 1000 - 100 - len(back)


def test_fewer_rows_than_asked_for_mean_that_no_more_are_due() -> None:
    wheel = new_wheel()
    for tick in range(300):
        wheel.add(np.array([START_MS + tick * 10]), np.array([tick]), np.zeros(1, PAYLOAD))
    assert len(wheel.advance(START_MS + 2_500, 250)) == 250
    assert len(wheel.advance(START_MS + 2_500, 250)) == 1


@pytest.mark.parametrize("batch_rows", [100_000, 16_384, 999])
def test_a_hot_millisecond_is_taken_in_exact_slices(batch_rows: int) -> None:
    wheel = new_wheel()
    rows = 100_000
    sequence = np.random.default_rng(1).permutation(rows)
    for start in range(0, rows, batch_rows):
        part = sequence[start : start + batch_rows]
        wheel.add(np.full(len(part), START_MS + 77), part, np.zeros(len(part), PAYLOAD))
    wheel.check_invariants()
    for start in range(0, rows, 8192):
        taken = wheel.advance(START_MS + 77, 8192)
        assert taken.sequence.tolist() == list(range(start, min(start + 8192, rows)))
    assert len(wheel) == 0


def test_order_holds_across_interleaved_runs_of_a_hot_second() -> None:
    wheel = new_wheel()
    random = np.random.default_rng(2)
    rows = 60_000
    due_ms = START_MS + random.integers(0, 1000, rows)
    for start in range(0, rows, 2_000):
        part = slice(start, start + 2_000)
        wheel.add(due_ms[part], np.arange(start, start + 2_000), np.zeros(2_000, PAYLOAD))
    taken = drain(wheel, START_MS + 1000, 777)
    order = np.lexsort((np.arange(rows), due_ms))
    assert (taken.sequence == order).all() and (taken.due_ms == due_ms[order]).all()


def same_memory(run: DueRows, other: DueRows) -> bool:
    """Whether both are the same rows in the same place: neither taken from nor copied."""
    return len(run) == len(other) and np.shares_memory(run.sequence, other.sequence)


def test_a_take_in_a_hot_slot_leaves_the_runs_it_does_not_need_alone() -> None:
    wheel = new_wheel()
    for batch in range(50):
        sequence = np.arange(batch * RUN_ROWS_MAX, (batch + 1) * RUN_ROWS_MAX)
        wheel.add(np.full(RUN_ROWS_MAX, START_MS + 5), sequence, np.zeros(RUN_ROWS_MAX, PAYLOAD))
    wheel.advance(START_MS + 5, 1)
    before = wheel.runs_below(START_MS + 6)
    taken = len(wheel.advance(START_MS + 5, 8192))
    after = wheel.runs_below(START_MS + 6)
    left_alone = [run for run in after if any(same_memory(run, known) for known in before)]
    assert taken == 8192 and len(before) - len(left_alone) == 1


def test_a_trickle_into_one_slot_keeps_the_number_of_runs_bounded() -> None:
    wheel = new_wheel()

    def trickle(sequence_first: int, sequence_end: int) -> int:
        for sequence in range(sequence_first, sequence_end):
            payload = np.zeros(1, PAYLOAD)
            payload["sequence_copy"] = sequence
            wheel.add(np.array([START_MS + 5]), np.array([sequence]), payload)
        assert sequences(wheel.advance(START_MS + 5, 1)) == [sequence_first // 3_000]
        return len(wheel.runs_below(START_MS + 6))

    assert trickle(0, 3_000) <= MERGE_RUNS
    assert trickle(3_000, 6_000) <= 2 * MERGE_RUNS
    assert sequences(drain(wheel, START_MS + 5, 100)) == list(range(2, 6_000))


def test_cancelled_rows_never_leave() -> None:
    wheel = new_wheel()
    due_ms = START_MS + np.random.default_rng(9).integers(0, 50_000, 30_000)
    sequence = np.arange(30_000)
    add(wheel, due_ms, sequence)
    gone = np.random.default_rng(10).permutation(30_000)[:25_000]
    for part in np.array_split(gone, 9):
        assert wheel.cancel(due_ms[part], sequence[part]).all()
        wheel.check_invariants()
        assert not wheel.cancel(due_ms[part], sequence[part]).any()
    kept = np.setdiff1d(sequence, gone)
    assert wheel.contains(due_ms, sequence).sum() == 5_000
    assert sorted(sequences(drain(wheel, START_MS + 50_000, 1000))) == kept.tolist()


def test_cancel_needs_due_time_and_sequence_to_match() -> None:
    wheel = new_wheel()
    add(wheel, [START_MS + 5, START_MS + 5], [1, 3])
    asked = np.array([START_MS + 5, START_MS + 6, START_MS + 5, START_MS + 5, START_MS + 5], np.int64)
    assert wheel.cancel(asked, np.array([3, 1, 2, 4, 3])).tolist() == [True, False, False, False, True]
    assert len(wheel) == 1


def test_next_due_is_exact_after_the_first_rows_are_cancelled() -> None:
    wheel = new_wheel()
    add(wheel, START_MS + np.arange(100), np.arange(100))
    assert wheel.cancel(START_MS + np.arange(40), np.arange(40)).all()
    assert wheel.next_due_ms() == START_MS + 40


def test_evict_drops_exactly_the_rows_behind_the_key() -> None:
    wheel = new_wheel()
    add(wheel, [START_MS + 5, START_MS + 5, START_MS + 5, START_MS + 90_000], [1, 2, 3, 0])
    assert wheel.evict_after(START_MS + 5, 2) == 2
    wheel.check_invariants()
    assert sequences(wheel.advance(START_MS + 100_000, 10)) == [1, 2]


def test_evict_between_drops_exactly_the_rows_behind_the_key_that_are_due_before_the_time() -> None:
    wheel = new_wheel()
    add(wheel, [START_MS + 5, START_MS + 5, START_MS + 5, START_MS + 60_000, START_MS + 90_000], [1, 2, 3, 4, 0])
    assert wheel.evict_between(START_MS + 5, 2, START_MS + 60_000) == 1
    assert wheel.evict_between(START_MS + 5, 2, START_MS + 60_000) == 0, "it is gone"
    wheel.check_invariants()
    assert sequences(wheel.advance(START_MS + 100_000, 10)) == [1, 2, 4, 0]


def fill(wheel: HashedWheel, due_ms: npt.NDArray[np.int64], sequence: npt.NDArray[np.int64]) -> None:
    for start in range(0, len(due_ms), 16_384):
        rows = slice(start, start + 16_384)
        wheel.add(due_ms[rows], sequence[rows], np.zeros(len(due_ms[rows]), PAYLOAD))


def traced_bytes() -> int:
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("spread_ms", [1, 60_000])
@pytest.mark.parametrize("leave", ["advance", "evict", "cancel"])
def test_memory_is_released_as_rows_leave(spread_ms: int, leave: str) -> None:
    rows = 200_000
    due_ms = START_MS + np.random.default_rng(4).integers(0, spread_ms, rows)
    sequence = np.random.default_rng(5).permutation(rows)  # All runs interleave, so each of them loses a part.
    order = np.lexsort((sequence, due_ms))
    goes = rows * 9 // 10
    gone = np.random.default_rng(6).permutation(rows)[:goes]
    wheel = new_wheel()
    tracemalloc.start()
    try:
        empty_bytes = traced_bytes()
        fill(wheel, due_ms, sequence)
        full_bytes = traced_bytes() - empty_bytes
        assert wheel.nbytes <= full_bytes <= 2 * wheel.nbytes + 1_000_000
        goes = rows * 9 // 10
        if leave == "advance":
            while len(wheel) > rows - goes:
                wheel.advance(START_MS + spread_ms, 8192)
        elif leave == "evict":
            last = order[rows - goes - 1]
            assert wheel.evict_after(int(due_ms[last]), int(sequence[last])) == goes
        else:
            assert wheel.cancel(due_ms[gone], sequence[gone]).all()
        wheel.check_invariants()
        # At most twice the rows that remain, and one run and the bookkeeping of each span besides.
        assert traced_bytes() - empty_bytes <= 2 * wheel.nbytes + 1_500_000 < full_bytes / 2
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("spread_ms", [1, 320, 60_000])
def test_taken_rows_keep_little_more_than_themselves_in_memory(spread_ms: int) -> None:
    wheel, rows = new_wheel(), 40_000
    due_ms = START_MS + 1_000 + np.random.default_rng(7).integers(0, spread_ms, rows)
    for start in range(0, rows, 6_000):
        add(wheel, due_ms[start : start + 6_000], np.arange(start, min(start + 6_000, rows)))
    seen = 0
    for now_ms in range(START_MS, START_MS + 1_000 + spread_ms, 10):
        while len(taken := wheel.advance(now_ms, 5_000)):
            seen += len(sequences(taken))
            for column in (taken.due_ms, taken.sequence, taken.payload):
                owner = column
                while isinstance(owner.base, np.ndarray):
                    owner = owner.base
                assert owner.nbytes <= 2 * column.nbytes
            taken.payload["sequence_copy"] = -1  # they are the caller's
    assert seen + len(wheel.advance(START_MS + 100_000, rows)) == rows


def test_the_callers_arrays_are_copied() -> None:
    wheel = new_wheel()
    due_ms, sequence, payload = np.array([START_MS + 1]), np.array([1]), np.zeros(1, PAYLOAD)
    wheel.add(due_ms, sequence, payload)
    due_ms[0] = sequence[0] = 0
    assert wheel.advance(START_MS + 1, 1).sequence.tolist() == [1]


def test_an_empty_batch_and_an_empty_wheel_are_fine() -> None:
    wheel = new_wheel()
    add(wheel, [], [])
    assert len(wheel.advance(START_MS, 1)) == 0
    assert wheel.advance(START_MS, 1).payload.dtype == PAYLOAD
    assert wheel.cancel(np.empty(0, np.int64), np.empty(0, np.int64)).tolist() == []
    assert wheel.evict_after(0, 0) == 0 and wheel.rows_below(START_MS) == 0 and wheel.nbytes == 0


@pytest.mark.parametrize(
    ("due_ms", "sequence", "payload"),
    [
        (np.zeros(1, np.int64), np.zeros(2, np.int64), np.zeros(1, PAYLOAD)),
        (np.zeros(1, np.int32), np.zeros(1, np.int64), np.zeros(1, PAYLOAD)),
        (np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.dtype([("other", "<i8")]))),
        (np.full(1, 2**63 - 1), np.zeros(1, np.int64), np.zeros(1, PAYLOAD)),
    ],
    ids=["lengths", "due dtype", "payload dtype", "no due time"],
)
def test_wrong_columns_are_refused(due_ms: np.ndarray, sequence: np.ndarray, payload: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"must be|may be"):
        new_wheel().add(due_ms, sequence, payload)


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ValueError, match="tick_ms"):
        HashedWheel(0, 0, payload_dtype=PAYLOAD)
    with pytest.raises(ValueError, match="payload"):
        HashedWheel(0, payload_dtype=object)
    with pytest.raises(ValueError, match="rows_max"):
        new_wheel().advance(0, 0)
