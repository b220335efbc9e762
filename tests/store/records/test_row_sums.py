"""The sums of rows: a function of their bytes alone, that every changed bit changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from store.records.column_batch import ragged_offsets
from store.records.row_sums import message_sums, row_sums

ROWS = st.lists(st.binary(max_size=40), min_size=1, max_size=30)


def sums(rows: list[bytes], before: bytes = b"", gaps: bytes = b"") -> list[int]:
    """Of rows that stand behind some bytes, with some more between them."""
    lengths = np.array([len(row) for row in rows], np.uint32)
    offsets = ragged_offsets(lengths)[:-1] + len(before) + np.arange(len(rows)) * len(gaps)
    return [int(one) for one in row_sums(before + gaps.join(rows), offsets, lengths)]


@given(ROWS, st.binary(max_size=20), st.binary(max_size=20))
@settings(deadline=None)
def test_the_sum_of_a_row_depends_neither_on_its_place_nor_on_its_neighbours(
    rows: list[bytes], before: bytes, gaps: bytes
) -> None:
    alone = [sums([row])[0] for row in rows]
    assert sums(rows) == alone
    assert sums(rows, before, gaps) == alone
    assert sums(rows[::-1], before) == alone[::-1]


@given(st.integers(1, 40), st.integers(1, 20), st.data())
@settings(deadline=None)
def test_rows_of_one_length_have_their_sums_in_any_order(width: int, count: int, data: st.DataObject) -> None:
    blob = data.draw(st.binary(min_size=width * count, max_size=width * count))
    offsets = np.array(data.draw(st.permutations([width * row for row in range(count)])), np.int64)
    lengths = np.broadcast_to(np.uint32(width), (count,))
    expected = [sums([blob[offset : offset + width]])[0] for offset in offsets.tolist()]
    assert row_sums(blob, offsets, lengths).tolist() == expected


@given(ROWS, st.data())
@settings(deadline=None)
def test_a_changed_bit_changes_the_sum_of_its_row_and_of_no_other(rows: list[bytes], data: st.DataObject) -> None:
    rows = [*rows, b"x"]
    hit = data.draw(st.sampled_from([row for row, value in enumerate(rows) if value]))
    bit = data.draw(st.integers(0, 8 * len(rows[hit]) - 1))
    changed = bytearray(rows[hit])
    changed[bit // 8] ^= 1 << bit % 8
    after = [*rows[:hit], bytes(changed), *rows[hit + 1 :]]
    assert [a != b for a, b in zip(sums(rows), sums(after), strict=True)] == [row == hit for row in range(len(rows))]


def test_long_rows_zeros_and_swapped_words_have_different_sums() -> None:
    row = np.random.default_rng(1).bytes(100_003)
    swapped = row[8:16] + row[:8] + row[16:]
    pages = row[4096:8192] + row[:4096] + row[8192:]
    stuck = row[:7] + bytes([row[7] ^ 128]) + row[8:15] + bytes([row[15] ^ 128]) + row[16:]
    cut, zeroed = row[:-1] + b"\0", row[:4096] + bytes(4096) + row[8192:]
    rows = [row, swapped, pages, stuck, cut, zeroed, row[:-1], b"", b"\0", b"\0\0"]
    assert len({*sums(rows)}) == len({*(sums([one])[0] for one in rows)}) == len(rows)
    assert sums([b""]) == [0]


def test_a_body_is_no_id() -> None:
    here, empty = (b"same", np.array([0]), np.array([4], np.uint32)), (b"", np.array([0]), np.array([0], np.uint32))
    parts = [[here if place == own else empty for place in range(4)] for own in range(4)]
    assert len({int(message_sums(part)[0]) for part in parts}) == 4
