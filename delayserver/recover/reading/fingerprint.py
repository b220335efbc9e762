"""Compares two sets of messages by 16 bytes each: a count and a sum of hashes, in any order.

The rows of the message_log come in arrival order and those of schedule_log by window. To compare them row by row would
need memory for all of them, or a sort on disk; a sum of 64-bit hashes per file needs neither. Where two sums differ the
rows of that file are read again and compared one by one. (Two different sets agree with a chance of 2^-64.)
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64, U32, U64
from store.records.id_hash import mix

_DUE = np.uint64(0x9E3779B97F4A7C15)
_SUBJECT = np.uint64(0xC2B2AE3D27D4EB4F)
_ACCEPTED = np.uint64(0x165667B19E3779F9)
_ORIGIN = np.uint64(0x27D4EB2F165667C5)


def row_hashes(sequence: I64, due_ms: I64, accepted_us: I64, origin_sequence: I64, subject: U32) -> U64:
    """A hash of each message, u64[n], without its bytes: these have checksums of their own."""
    value = sequence.astype(np.uint64) + due_ms.astype(np.uint64) * _DUE
    value += accepted_us.astype(np.uint64) * _ACCEPTED + subject.astype(np.uint64) * _SUBJECT
    value += origin_sequence.astype(np.uint64) * _ORIGIN
    return mix(value)


class Fingerprints:
    """A count and a sum a place, for `count` places."""

    def __init__(self, count: int) -> None:
        self.counts: I64 = np.zeros(count, np.int64)
        self.sums: U64 = np.zeros(count, np.uint64)

    def add(self, places: NDArray[np.intp], hashes: U64) -> None:
        """Rows with their place intp[n] and hash u64[n]."""
        if not len(places):
            return
        first = int(places[0])
        if bool((places == first).all()):
            self.add_all(first, hashes)
            return
        self.counts += np.bincount(places, minlength=len(self.counts))
        np.add.at(self.sums, places, hashes)

    def add_all(self, place: int, hashes: U64) -> None:
        """Rows of one place."""
        self.counts[place] += len(hashes)
        self.sums[place : place + 1] += hashes.sum(
            dtype=np.uint64
        )  # a sum into an array wraps around without a warning

    def differences(self, other: Fingerprints) -> NDArray[np.intp]:
        """Places at which the two do not hold the same rows."""
        return np.flatnonzero((self.counts != other.counts) | (self.sums != other.sums))
