"""The 64-bit hash of message ids, a column of every message. Part of the format: it never changes, on no platform.

Not against an adversary: equal hashes only say that the ids have to be compared, which costs time and nothing else.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import Buffer
from store.records.batches import I64, U32, U64
from store.records.column_batch import ragged_offsets

_WORD = 8
_SEED = np.uint64(0x9E3779B97F4A7C15)
_MULTIPLY = np.uint64(0xBF58476D1CE4E5B9)
_FINISH = np.uint64(0x94D049BB133111EB)
_BITS = (1 << 64) - 1
# The same as plain integers, for `hash_id`.
_SEED_ONE, _MULTIPLY_ONE, _FINISH_ONE = int(_SEED), int(_MULTIPLY), int(_FINISH)
# Masks that keep the first 0 to 8 bytes of a little-endian word.
_KEEP = np.array([(1 << 8 * count) - 1 for count in range(_WORD + 1)], np.uint64)


def mix(values: U64) -> U64:
    """The finisher of splitmix64 (Steele, Lea, Flood 2014): every bit of the result depends on every bit given."""
    values = (values ^ (values >> np.uint64(30))) * _MULTIPLY
    values = (values ^ (values >> np.uint64(27))) * _FINISH
    mixed: U64 = values ^ (values >> np.uint64(31))
    return mixed


def hash_ids(blob: Buffer, lengths: U32) -> U64:
    """Hashes u64[n] of n ids laid end to end; 0 for an empty id, never 0 for another.

    Words of eight bytes, little-endian and padded with zeros, are mixed in one after the other; the length is the seed.
    """
    offsets = ragged_offsets(lengths)
    assert len(blob) == int(offsets[-1]), "lengths that do not add up to the blob"
    rest = lengths.astype(np.int64)
    hashes = mix(rest.astype(np.uint64) + _SEED)
    # Words start at any byte: a view of overlapping words reads them all with one index.
    data = bytes(blob) + bytes(_WORD)
    words: NDArray[np.uint64] = np.ndarray((len(blob) + 1,), "<u8", data, 0, (1,))
    rows, starts = np.arange(len(lengths)), offsets[:-1]
    while len(rows):
        keep = rest > 0
        if not bool(keep.all()):
            rows, starts, rest = rows[keep], starts[keep], rest[keep]
            if not len(rows):
                break
        _mix_in(hashes, rows, words[starts] & _KEEP[np.minimum(rest, _WORD)])
        starts, rest = starts + _WORD, rest - _WORD
    hashes[hashes == 0] = 1
    hashes[lengths == 0] = 0
    return hashes


def _mix_in(hashes: U64, rows: I64, words: U64) -> None:
    if len(rows) == len(hashes):
        hashes[:] = mix((hashes ^ words) + _SEED)
    else:
        hashes[rows] = mix((hashes[rows] ^ words) + _SEED)


def hash_id(message_id: bytes) -> int:
    """The hash of one id: the same as `hash_ids` gives, in plain integers, because one call of numpy costs more."""
    length = len(message_id)
    if not length:
        return 0
    words = struct.unpack(f"<{(length + _WORD - 1) // _WORD}Q", message_id + bytes(-length % _WORD))
    value = 0
    for word in (length, *words):
        value = ((value ^ word) + _SEED_ONE) & _BITS
        value = ((value ^ (value >> 30)) * _MULTIPLY_ONE) & _BITS
        value = ((value ^ (value >> 27)) * _FINISH_ONE) & _BITS
        value ^= value >> 31
    return value or 1
