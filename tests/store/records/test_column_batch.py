"""Columns survive their bytes, and every operation on a batch does what the same one on lists does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.records.batches import MessageBatch, NameBatch, OutcomeBatch, StoredBatch
from store.records.column_batch import (
    ColumnBatch,
    MalformedColumnsError,
    blob_sizes,
    decode_columns,
    encode_columns,
    gather_ragged,
    ragged_offsets,
    slice_ragged,
)
from store.records.column_blocks import decode_blocks
from store.records.record import BATCHES

Row = tuple[Any, ...]


def rows_of(batch: ColumnBatch) -> list[Row]:
    """The naive model: a list of tuples, blobs cut by their lengths."""
    fields = [getattr(batch, name).tolist() for name, _ in batch.schema.fields]
    for name in batch.schema.blobs:
        blob, position, parts = bytes(getattr(batch, name)), 0, []
        for length in getattr(batch, f"{name}_length").tolist():
            parts.append(blob[position : position + length])
            position += length
        assert position == len(blob)
        fields.append(parts)
    return list(zip(*fields, strict=True))


@st.composite
def columns(draw: st.DrawFn, dtype: str, count: int, small: bool) -> Any:
    limits = np.iinfo(dtype)
    value = st.integers(0, 5) if small else st.integers(int(limits.min), int(limits.max))
    shape = draw(st.sampled_from(["broadcast", "same", "step", "plain"]))
    if shape == "broadcast":
        return draw(value)
    if shape == "same":
        return np.full(count, draw(value), dtype)
    if shape == "step" and not small:
        first = draw(st.integers(int(limits.min), int(limits.max) - count))
        return np.array(range(first, first + count), dtype)
    return np.array(draw(st.lists(value, min_size=count, max_size=count)), dtype)


@st.composite
def batches(draw: st.DrawFn, kinds: tuple[type[ColumnBatch], ...] = tuple(BATCHES.values())) -> ColumnBatch:
    """Any batch of any kind: constants, steps, plain columns, blobs empty, fixed and ragged."""
    kind = draw(st.sampled_from(kinds))
    count = draw(st.integers(1, 20))
    values = {}
    lengths = {f"{name}_length" for name in kind.schema.blobs}
    for name, dtype in kind.schema.fields:
        values[name] = draw(columns(dtype, count, name in lengths))
    for name in kind.schema.blobs:
        total = int(np.broadcast_to(values[f"{name}_length"], (count,)).sum())
        values[name] = draw(st.binary(min_size=total, max_size=total))
    return kind.filled(count, **values)


@given(batches())
def test_every_batch_survives_its_bytes(batch: ColumnBatch) -> None:
    decoded = decode_columns(batch.schema, encode_columns(batch), len(batch))
    for name, dtype in batch.schema.fields:
        assert decoded[name].dtype == np.dtype(dtype)
        assert decoded[name].tolist() == getattr(batch, name).tolist()
    assert blob_sizes(batch.schema, decoded) == [len(getattr(batch, name)) for name in batch.schema.blobs]


@given(batches(), st.data())
def test_take_is_indexing_a_list(batch: ColumnBatch, data: st.DataObject) -> None:
    index = st.integers(0, len(batch) - 1)
    indices = data.draw(st.lists(index, max_size=30) | st.permutations(range(len(batch))))
    model = rows_of(batch)
    taken = batch.take(np.array(indices, np.intp))
    assert len(taken) == len(indices)
    assert rows_of(taken) == [model[i] for i in indices]


@given(batches(), st.data())
def test_slice_is_slicing_a_list(batch: ColumnBatch, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(batch)))
    stop = data.draw(st.integers(start, len(batch)))
    assert rows_of(batch.slice(start, stop)) == rows_of(batch)[start:stop]


@given(
    st.sampled_from(tuple(BATCHES.values())).flatmap(lambda kind: st.lists(batches((kind,)), min_size=1, max_size=5))
)
def test_concatenate_is_adding_lists(parts: list[ColumnBatch]) -> None:
    joined = type(parts[0]).concatenate(parts)
    assert rows_of(joined) == [row for part in parts for row in rows_of(part)]


@given(batches((MessageBatch,)), st.data())
@settings(max_examples=50)
def test_an_operation_on_the_result_of_another_still_agrees(batch: ColumnBatch, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(batch) - 1))
    part = batch.slice(start, len(batch))
    joined = type(batch).concatenate([part, batch])
    order = np.array(data.draw(st.permutations(range(len(joined)))), np.intp)
    model = rows_of(batch)
    assert rows_of(joined.take(order)) == [(model[start:] + model)[i] for i in order]
    decoded = decode_columns(joined.schema, encode_columns(joined), len(joined))
    assert decoded["sequence"].tolist() == joined.sequence.tolist()  # type: ignore[attr-defined]


def test_a_constant_column_takes_eight_bytes_and_a_step_too() -> None:
    few = MessageBatch.filled(2, sequence=np.arange(5, 7), due_ms=9)
    many = MessageBatch.filled(10_000, sequence=np.arange(5, 10_005), due_ms=9)
    assert len(encode_columns(few)) == len(encode_columns(many)) == 24 + 19 * 8
    decoded = decode_columns(many.schema, encode_columns(many), 10_000)
    assert decoded["due_ms"].strides == (0,)
    assert decoded["sequence"][-1] == 10_004


def test_a_rising_column_with_a_gap_and_a_repetition_is_not_taken_for_a_step() -> None:
    batch = MessageBatch.filled(4, sequence=np.array([1, 1, 3, 4]))
    assert decode_columns(batch.schema, encode_columns(batch), 4)["sequence"].tolist() == [1, 1, 3, 4]


def test_ends_that_are_alike_are_not_taken_for_a_constant() -> None:
    batch = MessageBatch.filled(3, due_ms=np.array([5, 6, 5]))
    assert decode_columns(batch.schema, encode_columns(batch), 3)["due_ms"].tolist() == [5, 6, 5]


def test_the_extremes_of_each_type_survive() -> None:
    batch = OutcomeBatch.filled(
        2,
        sequence=np.array([-(1 << 63), (1 << 63) - 1]),
        due_ms=-1,
        subject=np.uint32(0xFFFF_FFFF),
        outcome=np.array([0, 255]),
    )
    decoded = decode_columns(batch.schema, encode_columns(batch), 2)
    assert decoded["sequence"].tolist() == [-(1 << 63), (1 << 63) - 1]
    assert decoded["due_ms"].tolist() == [-1, -1]
    assert decoded["subject"].tolist() == [0xFFFF_FFFF] * 2
    assert decoded["outcome"].tolist() == [0, 255]


@given(st.binary(max_size=300), st.integers(0, 40), st.sampled_from(tuple(BATCHES.values())))
def test_garbage_is_refused_or_gives_columns_of_the_right_shape(
    data: bytes, count: int, kind: type[ColumnBatch]
) -> None:
    try:
        decoded = decode_columns(kind.schema, data, count)
    except MalformedColumnsError:
        return
    assert all(len(column) == count for column in decoded.values())


def test_a_step_beyond_its_type_is_refused() -> None:
    batch = NameBatch.filled(3, code=np.arange(1, 4), names_length=0)
    data = bytearray(encode_columns(batch))
    data[8:12] = b"\xff\xff\xff\xff"
    with pytest.raises(MalformedColumnsError, match="steps from"):
        decode_columns(batch.schema, bytes(data), 3)
    with pytest.raises(MalformedColumnsError, match="column code: 3 steps from 4294967295"):
        decode_blocks(batch.schema, [encode_columns(batch), bytes(data)], [3, 3], ["code"])


def test_ragged_rows_are_found_by_their_lengths() -> None:
    lengths = np.array([2, 0, 3, 1], np.uint32)
    assert ragged_offsets(lengths).tolist() == [0, 2, 2, 5, 6]
    assert bytes(slice_ragged(b"aabbbc", lengths, 1, 3)) == b"bbb"
    assert bytes(gather_ragged(b"aabbbc", lengths, np.array([3, 0, 0, 2]))) == b"caaaabbb"
    fixed = np.broadcast_to(np.uint32(2), (3,))
    assert bytes(gather_ragged(b"aabbcc", fixed, np.array([2, 0]))) == b"ccaa"
    assert ragged_offsets(fixed).tolist() == [0, 2, 4, 6]


def test_columns_can_be_replaced_and_unknown_ones_are_a_bug() -> None:
    batch = MessageBatch.filled(3, sequence=np.arange(1, 4))
    changed = batch.with_columns(due_ms=7, sequence=np.arange(4, 7))
    assert changed.due_ms.tolist() == [7, 7, 7] and changed.sequence.tolist() == [4, 5, 6]
    with pytest.raises(AssertionError, match="unknown columns"):
        MessageBatch.filled(3, sequense=1)
    with pytest.raises(AssertionError, match="sequence"):
        MessageBatch.filled(3, sequence=np.arange(4))


def test_pick_gives_the_rows_that_take_gives() -> None:
    batch = StoredBatch.filled(
        5,
        sequence=np.array([5, 1, 9, 2, 7]),
        subject=3,
        bodies_length=np.array([1, 0, 2, 3, 1], np.uint32),
        bodies=b"abbcccd",
        ids_length=2,
        ids=b"0011223344",
    )
    rows = np.array([0, 2, 3])
    taken, picked = batch.take(rows), batch.pick(rows)
    for name in StoredBatch.schema.names:
        one, other = getattr(taken, name), getattr(picked, name)
        assert bytes(one) == bytes(other), name
    assert picked.subject.strides == (0,)


def test_a_column_of_a_type_that_has_no_bytes_is_refused() -> None:
    with pytest.raises(AssertionError, match="Odd"):

        class Odd(ColumnBatch, kind=98):
            sequence: float
