"""Columns: every array comes back as it was, in the shortest form, and a wrong column names its field."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.protocol.columns import (
    I64,
    U8,
    U32,
    pack_column,
    pack_ragged,
    unpack_column,
    unpack_count,
    unpack_ragged,
)
from delayserver.protocol.errors import InvalidArgument

i64s = st.integers(-(2**63), 2**63 - 1)


@given(st.lists(i64s, max_size=20))
def test_any_i64_array_comes_back(numbers: list[int]) -> None:
    column = pack_column(np.array(numbers, I64))
    assert unpack_column(column, len(numbers), I64, "due_ms").tolist() == numbers


@given(st.integers(-(2**62), 2**62), st.integers(2, 50))
def test_consecutive_and_constant_arrays_take_a_few_bytes(first: int, count: int) -> None:
    assert pack_column(np.arange(first, first + count, dtype=I64)) == [first]
    assert pack_column(np.full(count, first, I64)) == first
    assert pack_column(np.broadcast_to(np.int64(first), count)) == first
    assert unpack_column([first], count, I64, "x").tolist() == list(range(first, first + count))
    assert unpack_column(first, count, I64, "x").tolist() == [first] * count


def test_an_array_that_only_looks_short_at_its_ends_is_sent_whole() -> None:
    for numbers in ([5, 9, 5], [5, 9, 7], [1, 1, 3]):
        column = pack_column(np.array(numbers, I64))
        assert isinstance(column, bytes)
        assert unpack_column(column, 3, I64, "x").tolist() == numbers


def test_wrapping_around_is_not_counting_up() -> None:
    numbers = np.array([2**63 - 1, -(2**63), 5], I64)
    column = pack_column(numbers)
    assert unpack_column(column, 3, I64, "x").tolist() == numbers.tolist()


def test_arrays_of_other_types_and_orders_are_sent_as_the_reader_expects() -> None:
    big_endian = np.array([3, 1, 2], ">i8")
    assert unpack_column(pack_column(big_endian), 3, I64, "x").tolist() == [3, 1, 2]
    wide = np.array([3, 1, 2, 9], np.int64)[::2]
    assert unpack_column(pack_column(wide, U32), 2, U32, "x").tolist() == [3, 2]


@pytest.mark.parametrize(
    "value",
    [
        b"1234567",
        b"",
        bytes(24),
        True,
        None,
        1.0,
        "a",
        [],
        [1, 2],
        [True],
        [None],
        [1.0],
        {},
        2**32,
        -1,
        [-1],
        [2**32 - 1],
    ],
)
def test_a_wrong_column_is_refused_by_name(value: object) -> None:
    with pytest.raises(InvalidArgument, match="attempt"):
        unpack_column(value, 2, U32, "attempt")


def test_columns_are_read_only_and_constants_take_no_memory() -> None:
    for value in (bytes(16), 7, [7]):
        column = unpack_column(value, 2, I64, "x")
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 1
    assert unpack_column(7, 1_000_000, I64, "x").strides == (0,)


def test_a_column_of_no_rows_is_any_of_the_forms() -> None:
    for value in (b"", 5, [5]):
        assert unpack_column(value, 0, I64, "x").tolist() == []


@given(st.lists(st.binary(max_size=10), max_size=20))
def test_ragged_bytes_come_back(rows: list[bytes]) -> None:
    blob, lengths = pack_ragged(rows)
    ragged = unpack_ragged(blob, lengths, len(rows), "bodies", "body_length")
    assert ragged.rows() == rows
    assert [ragged.row(index) for index in range(len(rows))] == rows


@pytest.mark.parametrize(("blob", "lengths"), [(b"abc", 1), (b"abc", b""), ("ab", 1), (b"ab", -1), (b"ab", 2**32 - 1)])
def test_ragged_bytes_whose_lengths_do_not_fit_are_refused(blob: Any, lengths: Any) -> None:
    with pytest.raises(InvalidArgument, match="bod"):
        unpack_ragged(blob, lengths, 2, "bodies", "body_length")


@pytest.mark.parametrize("value", [-1, 11, True, None, "5", 5.0])
def test_a_count_outside_its_bounds_is_refused(value: object) -> None:
    with pytest.raises(InvalidArgument, match="count"):
        unpack_count(value, 10)


@given(st.one_of(st.binary(max_size=40), st.integers(), st.lists(st.integers(), max_size=2), st.none(), st.booleans()))
def test_any_value_gives_a_column_or_a_named_error(value: object) -> None:
    for dtype in (I64, U32, U8):
        try:
            column = unpack_column(value, 5, dtype, "x")
        except InvalidArgument:
            continue
        assert column.shape == (5,)
        assert column.dtype == dtype
