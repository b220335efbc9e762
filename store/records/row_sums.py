"""A sum for each row of a ragged blob, fast enough to be made and compared for every message. In memory only, no format.

A record's checksum covers all its rows, but the rows of one leave memory at different times. So the loader keeps these
sums when it has verified a record, and the publisher when it is about to write one. A worker later reads rows one by one
and compares them with the sums: it hands over no bytes that have changed in between.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import Buffer
from store.records.batches import I64, U32
from store.records.column_batch import has_any

U64 = NDArray[np.uint64]


def _scrambled(count: int) -> U64:
    """Numbers u64[count] that look like chance: the finaliser of SplitMix64 over a Weyl sequence."""
    values = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
    mixed: U64 = values ^ (values >> np.uint64(31))
    return mixed


# Odd, so that a changed bit of a word always changes its product modulo 2^64.
_FACTORS = _scrambled(512) | np.uint64(1)
_BLOCK_WORDS = 1 << 14
_WORD_MASK = (1 << 64) - 1
_REST, _LENGTH = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)
# Factors that distinguish a row's id from the same bytes in its properties, its body or its order key.
_PARTS: U64 = np.array([0xD6E8FEB86659FD93, 0xA0761D6478BD642F, 1, 0xE7037ED1A0B428DB], np.uint64)


def message_sums(parts: Sequence[tuple[Buffer, I64, U32]]) -> U64:
    """The sum u64[n] of the ids, properties, bodies and order keys of n messages, each given as `row_sums` takes it."""
    total = np.zeros(len(parts[0][1]), np.uint64)
    for factor, (data, offsets, lengths) in zip(_PARTS, parts, strict=True):
        if has_any(lengths):
            total += row_sums(data, offsets, lengths) * factor
    return total


def row_sums(data: Buffer, offsets: I64, lengths: U32) -> U64:
    """The sum u64[n] of the rows at (offset i64[n], length u32[n]) of `data`; that of an empty row is 0.

    A function of a row's bytes alone: where it stands and beside what does not matter.
    """
    if len(data) < 8:
        data = bytes(data).ljust(8, b"\0")
    width = int(lengths[0])
    if width >= 8 and (lengths.strides == (0,) or bool((lengths == width).all())):
        return _equal(data, offsets, width)
    words: U64 = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))  # the one at every byte
    sums = _ragged(words, offsets, lengths // np.uint32(8))
    sums += lengths * _LENGTH
    rest = lengths & np.uint32(7)
    if rest.any():
        sums += _rests(words, offsets + (lengths - rest), rest) * _REST
    return sums


def _equal(data: Buffer, offsets: I64, width: int) -> U64:
    """Rows of `width` bytes each, at least a word: what is read of them lies in steps, mostly as they stand."""
    count, rest = divmod(width, 8)
    factors = _factors(np.arange(count) if count > len(_FACTORS) else slice(count))
    sums: U64 = _mixed(_words(data, offsets, count)) @ factors
    sums += np.uint64(width * int(_LENGTH) & _WORD_MASK)
    if rest:  # the last word of the row, less what the words before it have had
        sums += _mixed(_words(data, offsets + (width - 8), 1)[:, 0] >> np.uint64(64 - 8 * rest)) * _REST
    return sums


def _words(data: Buffer, offsets: I64, count: int) -> U64:
    """The `count` words from each offset on, u64[n, count]."""
    step = int(offsets[1] - offsets[0]) if len(offsets) > 1 else 0
    if step >= 0 and bool((offsets[1:] - offsets[:-1] == step).all()):
        return np.ndarray((len(offsets), count), "<u8", data, int(offsets[0]), (step, 8))
    words: U64 = np.ndarray((len(data) - 7,), "<u8", data, 0, (1,))  # the one at every byte
    taken: U64 = words[offsets[:, np.newaxis] + np.arange(0, 8 * count, 8)]
    return taken


def _ragged(words: U64, offsets: I64, counts: U32) -> U64:
    """Rows of `counts` whole words: some at a time, so that what is worked on stays in the processor's cache."""
    sums = np.zeros(len(offsets), np.uint64)
    some = np.flatnonzero(counts)
    stops = np.cumsum(counts[some].astype(np.int64))
    begin = reached = 0
    while begin < len(some):
        end = max(int(np.searchsorted(stops, reached + _BLOCK_WORDS, side="right")), begin + 1)
        sums[some[begin:end]] = _block(words, offsets[some[begin:end]], counts[some[begin:end]].astype(np.int64))
        begin, reached = end, int(stops[end - 1])
    return sums


def _block(words: U64, offsets: I64, count: I64) -> U64:
    starts = np.cumsum(count) - count
    number = np.arange(int(count.sum())) - np.repeat(starts, count)
    taken = words[np.repeat(offsets, count) + 8 * number]
    sums: U64 = np.add.reduceat(_mixed(taken) * _factors(number), starts)
    return sums


def _mixed(words: U64) -> U64:
    """The high half folded into the low one: otherwise two changes of the highest bits could cancel each other."""
    mixed: U64 = words ^ (words >> np.uint64(32))
    return mixed


def _factors(number: I64 | slice) -> U64:
    """The factors of the words with these numbers in their rows; each further 512 words have other ones."""
    if isinstance(number, slice):
        return _FACTORS[number]
    factors: U64 = _FACTORS[number & (len(_FACTORS) - 1)]
    if len(number) and int(number.max()) >= len(_FACTORS):
        factors = factors * (2 * (number // len(_FACTORS)) + 1).astype(np.uint64)
    return factors


def _rests(words: U64, offsets: I64, rest: U32) -> U64:
    """The 0 to 7 bytes behind the whole words, as numbers."""
    places = np.minimum(offsets, len(words) - 1)
    shifted = words[places] >> ((offsets - places).astype(np.uint64) * np.uint64(8))
    masked: U64 = shifted & ((np.uint64(1) << (rest.astype(np.uint64) * np.uint64(8))) - np.uint64(1))
    return _mixed(masked)
