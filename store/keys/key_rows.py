"""Rows of the key index: 24 bytes each, in arrays. FORMAT.md draws them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64, U32, U64
from store.records.id_hash import mix

KEY_ROW = np.dtype([("key", "<u8"), ("sequence", "<i8"), ("due_ms", "<i8")])
"""A message: the key of its id below its subject, its sequence, its due time."""

KeyRows = NDArray[Any]
"""Rows of `KEY_ROW`."""

_SUBJECT_FACTOR = np.uint64(0x9E3779B97F4A7C15)


def name_keys(id_hash: U64, subject: U32) -> U64:
    """Keys u64[n] of ids (by their hashes) below subjects (by their codes). Part of the format."""
    return mix(id_hash ^ mix(subject.astype(np.uint64) * _SUBJECT_FACTOR))


def key_rows(key: U64, sequence: I64, due_ms: I64) -> KeyRows:
    """Rows of n messages, in the order given; the columns are copied."""
    rows = np.empty(len(key), KEY_ROW)
    rows["key"], rows["sequence"], rows["due_ms"] = key, sequence, due_ms
    return rows


def no_rows() -> KeyRows:
    """No rows."""
    return np.empty(0, KEY_ROW)


def joined(parts: Sequence[KeyRows]) -> KeyRows:
    """All rows of some parts in the order of (key, sequence). A message that is in two parts stays once."""
    rows = np.concatenate([no_rows(), *parts])
    # `take` is eight times as fast as an index here, and an unstable sort four times as fast as a stable one.
    rows = rows.take(np.argsort(np.ascontiguousarray(rows["key"])))
    same = rows["key"][1:] == rows["key"][:-1]
    if not same.any():
        return rows
    alike = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    some = rows[alike]
    rows[alike] = some[np.lexsort((some["sequence"], some["key"]))]
    repeated = same & (rows["sequence"][1:] == rows["sequence"][:-1])
    return rows[np.insert(~repeated, 0, True)] if repeated.any() else rows


def matches(rows: KeyRows, keys: U64, newest: int) -> tuple[I64, KeyRows]:
    """The last `newest` rows of each of n keys among rows in order: positions in `keys` i64[m] and the rows, m of them."""
    sorted_keys = np.ascontiguousarray(rows["key"])
    end = np.searchsorted(sorted_keys, keys, side="right")
    start = np.maximum(np.searchsorted(sorted_keys, keys), end - newest)
    counts = end - start
    step = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    return np.repeat(np.arange(len(keys)), counts), rows.take(np.repeat(start, counts) + step)


def newest_first(found: Sequence[tuple[I64, KeyRows]]) -> tuple[I64, KeyRows]:
    """What several searches for the same keys found: positions i64[m] ascending and the rows. The highest sequence of a key
    comes first, and a message that was found twice stays once."""
    place = np.concatenate([np.zeros(0, np.int64), *[places for places, _ in found]])
    rows = np.concatenate([no_rows(), *[part for _, part in found]])
    order = np.lexsort((-rows["sequence"], place))
    place, rows = place[order], rows[order]
    first = np.ones(len(rows), np.bool_)
    first[1:] = (place[1:] != place[:-1]) | (rows["sequence"][1:] != rows["sequence"][:-1])
    return place[first], rows[first]
