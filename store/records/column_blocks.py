"""Decoding the column blocks of many records at once, so that tiny records cost nanoseconds a row and not numpy calls.

A block, as `encode_columns` makes it, has one encoding byte a field, then the fields, each padded to 8 bytes. All blocks
are laid end to end. A running sum gives the position of every field of every block, and one indexed read takes all rows of
a column. Large blocks are cheaper one by one, as views; `decode_blocks` chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64
from store.records.column_batch import (
    CONSTANT,
    PLAIN,
    STEP,
    MalformedColumnsError,
    Schema,
    concatenate_columns,
    decode_columns,
)

Columns = dict[str, NDArray[Any]]
# From this many rows a block on, views of each block cost less than indexed reads over all of them (measured).
_ROWS_LARGE = 256


def decode_blocks(schema: Schema, blocks: Sequence[bytes], counts: Sequence[int], names: Sequence[str]) -> Columns:
    """The named columns of all blocks, concatenated. Raises MalformedColumnsError."""
    types = dict(schema.fields)
    if not blocks:
        return {name: np.zeros(0, types[name]) for name in names}
    if sum(counts) >= _ROWS_LARGE * len(blocks) or len(blocks) == 1:
        decoded = [decode_columns(schema, block, count) for block, count in zip(blocks, counts, strict=True)]
        return {name: concatenate_columns([columns[name] for columns in decoded], types[name]) for name in names}
    return _decode_together(schema, blocks, np.array(counts, np.int64), names)


def _decode_together(schema: Schema, blocks: Sequence[bytes], counts: I64, names: Sequence[str]) -> Columns:
    data = b"".join(blocks)
    lengths = np.array([len(block) for block in blocks], np.int64)
    starts = np.cumsum(lengths) - lengths
    fields = len(schema.fields)
    directory = (fields + 7) // 8 * 8
    if bool((lengths < directory).any()) or bool((lengths % 8).any()):
        raise MalformedColumnsError("a column block without its directory")
    raw = np.frombuffer(data, np.uint8)
    encodings = raw[starts[:, None] + np.arange(fields)]
    item_bytes = np.array([np.dtype(dtype).itemsize for _, dtype in schema.fields], np.int64)
    sizes = np.where(encodings == PLAIN, (counts[:, None] * item_bytes + 7) // 8 * 8, 8)
    if bool((encodings > STEP).any()) or bool((sizes.sum(axis=1) + directory != lengths).any()):
        raise MalformedColumnsError("a column block contradicts its schema")
    positions = (starts + directory)[:, None] + np.cumsum(sizes, axis=1) - sizes
    rows = np.repeat(np.arange(len(blocks)), counts)
    row_in_block = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    columns: Columns = {}
    for index, (name, dtype) in enumerate(schema.fields):
        if name in names:
            steps = encodings[:, index] == STEP
            if bool(steps.any()):
                _check_steps(
                    name, np.frombuffer(data, dtype)[positions[steps, index] // item_bytes[index]], counts[steps]
                )
            columns[name] = _column(
                data, dtype, positions[:, index], encodings[:, index], rows=rows, row_in_block=row_in_block
            )
    return {name: columns[name] for name in names}


def _check_steps(name: str, first: NDArray[Any], counts: I64) -> None:
    """First values [m] and rows i64[m] of blocks that count up. Raises MalformedColumnsError beyond the type's range."""
    highest = int(np.iinfo(first.dtype).max)
    for value, count in zip(first.tolist(), counts.tolist(), strict=True):
        if value > highest - count:
            raise MalformedColumnsError(f"column {name}: {count} steps from {value}")


def _column(
    data: bytes, dtype: str, positions: I64, encodings: NDArray[np.uint8], *, rows: I64, row_in_block: I64
) -> NDArray[Any]:
    values = np.frombuffer(data, dtype)
    slots = positions // values.dtype.itemsize
    first = encodings[0]
    if bool((encodings == first).all()):
        if first == CONSTANT:
            constants = values[slots]
            same = bool((constants == constants[0]).all())
            return np.broadcast_to(constants[0], (len(rows),)) if same else constants[rows]
        column: NDArray[Any] = slots[rows] + row_in_block if first == PLAIN else values[slots][rows] + row_in_block
        return values[column] if first == PLAIN else column.astype(dtype, copy=False)
    column = values[slots[rows] + np.where((encodings == PLAIN)[rows], row_in_block, 0)]
    steps = encodings == STEP
    if bool(steps.any()):
        column += np.where(steps[rows], row_in_block, 0).astype(dtype)
    return column
