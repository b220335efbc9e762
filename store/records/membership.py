"""Which of some sequences are among others. One function, no state."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]


def is_member(sequence: I64, others: I64) -> NDArray[np.bool_]:
    """True where a sequence is among `others`, bool[n]. Sorts the shorter of the two alone.

    `np.isin` sorts both together where their range is wide, as it is after restarts: 0.9 s for a million.
    """
    if len(others) <= len(sequence):
        return _found_in(np.sort(others), sequence)
    distinct, place = np.unique(sequence, return_inverse=True)
    places = np.searchsorted(distinct, others)
    places = places[distinct[np.minimum(places, len(distinct) - 1)] == others] if len(distinct) else places[:0]
    hit = np.zeros(len(distinct), dtype=bool)
    hit[places] = True
    found: NDArray[np.bool_] = hit[place]
    return found


def _found_in(ordered: I64, sequence: I64) -> NDArray[np.bool_]:
    if not len(ordered):
        return np.zeros(len(sequence), dtype=bool)
    places = np.minimum(np.searchsorted(ordered, sequence), len(ordered) - 1)
    found: NDArray[np.bool_] = ordered[places] == sequence
    return found
