"""Keys of rows: the pair (due_ms, sequence), which orders everything in the wheel.

Sorting and searching columns of keys lives here, once. Nothing in this file knows of payloads, runs or slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Int64s = npt.NDArray[np.int64]
Positions = npt.NDArray[np.intp]
Mask = npt.NDArray[np.bool_]

DUE_MS_NONE: Final = int(np.iinfo(np.int64).max)
"""Stands for "no due time" wherever an empty place needs one, so no row may be due then."""


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """One row's place in the order of delivery: first by `due_ms` (ms since the epoch), then by `sequence`."""

    due_ms: int
    sequence: int


KEY_LOWEST: Final = Key(int(np.iinfo(np.int64).min), int(np.iinfo(np.int64).min))
KEY_HIGHEST: Final = Key(int(np.iinfo(np.int64).max), int(np.iinfo(np.int64).max))


def before(key: Key) -> Key:
    """The highest key below one that is not the lowest."""
    if key.sequence == KEY_LOWEST.sequence:
        return Key(key.due_ms - 1, KEY_HIGHEST.sequence)
    return Key(key.due_ms, key.sequence - 1)


def behind(key: Key) -> Key | None:
    """The lowest key above one; None above the highest."""
    if key.sequence == KEY_HIGHEST.sequence:
        return None if key == KEY_HIGHEST else Key(key.due_ms + 1, KEY_LOWEST.sequence)
    return Key(key.due_ms, key.sequence + 1)


def first_key(due_ms: Int64s, sequence: Int64s) -> Key:
    """The lowest of the keys i64[n], i64[n], in any order; n > 0."""
    place = np.lexsort((sequence, due_ms))[0]
    return Key(int(due_ms[place]), int(sequence[place]))


def last_key(due_ms: Int64s, sequence: Int64s) -> Key:
    """The highest of the keys i64[n], i64[n], in any order; n > 0."""
    place = np.lexsort((sequence, due_ms))[-1]
    return Key(int(due_ms[place]), int(sequence[place]))


def through(key: Key, due_ms: Int64s, sequence: Int64s) -> Mask:
    """True where one of the keys i64[n], i64[n] is not above `key`, bool[n]."""
    found: Mask = (due_ms < key.due_ms) | ((due_ms == key.due_ms) & (sequence <= key.sequence))
    return found


def keys_sorted(due_ms: Int64s, sequence: Int64s) -> bool:
    """Whether the keys i64[n], i64[n] ascend."""
    if not ascending(due_ms):
        return False
    same = due_ms[1:] == due_ms[:-1]
    return bool((sequence[1:] >= sequence[:-1])[same].all())


def ascending(column: Int64s) -> bool:
    """Whether one column i64[n] never falls."""
    return bool((column[1:] >= column[:-1]).all())


def key_order(due_ms: Int64s, sequence: Int64s) -> Positions | None:
    """The permutation intp[n] that sorts the keys, or None where they are sorted already.

    A batch mostly spans a small range of keys. Then (due, sequence, position) fit together into one int64, and one
    plain sort of that column takes a tenth of the time of `np.lexsort` (0.1 ms against 1.8 ms for 16 k rows).
    """
    if len(due_ms) < 2 or keys_sorted(due_ms, sequence):
        return None
    position_bits = (len(due_ms) - 1).bit_length()
    due_low = int(due_ms.min())
    due_bits = (int(due_ms.max()) - due_low).bit_length()
    sequence_low = sequence_bits = 0
    if not ascending(sequence):  # Rows in sequence order need no sequence bits: their position says the same.
        sequence_low = int(sequence.min())
        sequence_bits = (int(sequence.max()) - sequence_low).bit_length()
    if due_bits + sequence_bits + position_bits > 63:
        return np.lexsort((sequence, due_ms))
    packed = (due_ms - due_low) << (sequence_bits + position_bits)
    if sequence_bits:
        packed |= (sequence - sequence_low) << position_bits
    packed |= np.arange(len(due_ms), dtype=np.int64)
    packed.sort()
    packed &= (1 << position_bits) - 1
    return packed.astype(np.intp, copy=False)


def rows_before(due_ms: Int64s, sequence: Int64s, key_due_ms: int, key_sequence: int) -> int:
    """How many of the sorted keys are less than the given one."""
    low = int(due_ms.searchsorted(key_due_ms, "left"))
    high = int(due_ms.searchsorted(key_due_ms, "right"))
    return low if low == high else low + int(sequence[low:high].searchsorted(key_sequence, "left"))


def rows_through(due_ms: Int64s, sequence: Int64s, key_due_ms: int, key_sequence: int) -> int:
    """How many of the sorted keys are less than or equal to the given one."""
    low = int(due_ms.searchsorted(key_due_ms, "left"))
    high = int(due_ms.searchsorted(key_due_ms, "right"))
    return low if low == high else low + int(sequence[low:high].searchsorted(key_sequence, "right"))


def lower_bounds(due_ms: Int64s, sequence: Int64s, key_due_ms: Int64s, key_sequence: Int64s) -> Positions:
    """For each of n keys, how many of the sorted keys are less than it: `rows_before` for a column, intp[n].

    numpy searches one column only, so the rows of equal due time are bisected by sequence, all keys at once.
    """
    low = due_ms.searchsorted(key_due_ms, "left")
    high = due_ms.searchsorted(key_due_ms, "right")
    searching = np.flatnonzero(low < high)
    while len(searching):
        middle = (low[searching] + high[searching]) >> 1
        below = sequence[middle] < key_sequence[searching]
        low[searching[below]] = middle[below] + 1
        high[searching[~below]] = middle[~below]
        searching = searching[low[searching] < high[searching]]
    return low


def groups(column: Int64s) -> Iterator[tuple[int, int, int]]:
    """(value, start, stop) of each stretch of equal values in a column i64[n]."""
    if not len(column):
        return
    edges = (np.flatnonzero(column[1:] != column[:-1]) + 1).tolist()
    starts = [0, *edges]
    yield from zip(column[starts].tolist(), starts, [*edges, len(column)], strict=True)
