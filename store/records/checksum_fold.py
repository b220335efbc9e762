"""Verifies many CRC-32C checksums by one checksum over all of their bytes. Numbers only; no record, no file.

A CRC is linear over GF(2). The CRC of a whole is the sum (XOR) of those of its pieces, each multiplied by x^(8k) mod P,
where k bytes follow the piece. So the checksums in a run of records give the checksum of the whole run, without reading it.
The processor computes that one at the speed of memory; a call for each piece would cost more than its bytes.

An error within one record is found as surely as by its own checksum, because every step can be undone. Errors in several
records at once cancel each other with a chance of 2^-32, as a large error does within one record.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import google_crc32c
import numpy as np

from store.records.batches import I64, U32

# CRC-32C (Castagnoli), bits reflected: the highest bit of a word is the coefficient of x^0.
_POLYNOMIAL: Final = 0x82F63B78
_ONE: Final = 0x80000000
_ALL_ONES: Final = 0xFFFFFFFF
# The table of powers is as long as the longest run: 4 MiB of memory, made in a tenth of a second when first needed.
RUN_BYTES_MAX: Final = 1 << 20


def multiply(a: int, b: int) -> int:
    """The product of two polynomials mod P."""
    product = 0
    while a:
        if a & _ONE:
            product ^= b
        a = a << 1 & _ALL_ONES
        b = b >> 1 ^ (_POLYNOMIAL if b & 1 else 0)
    return product


@lru_cache(maxsize=1)
def _powers() -> U32:
    """x^(8k) mod P for k from 0 to `RUN_BYTES_MAX`, u32[RUN_BYTES_MAX + 1]."""
    powers = np.zeros(RUN_BYTES_MAX + 1, np.uint32)
    powers[0] = _ONE
    known, step = 1, 1 << 23  # the step is x^(8 * known); x^8 to begin with
    while known < len(powers):
        count = min(known, len(powers) - known)
        powers[known : known + count] = _times(powers[:count], step)
        known, step = known * 2, multiply(step, step)
    return powers


def _times(values: U32, factor: int) -> U32:
    """Each of the values u32[n] multiplied by one factor."""
    product = np.zeros(len(values), np.uint32)
    for bit in range(31, -1, -1):
        product ^= (np.uint32(0) - (values >> np.uint32(bit) & np.uint32(1))) & np.uint32(factor)
        factor = factor >> 1 ^ (_POLYNOMIAL if factor & 1 else 0)
    return product


def _sum_of_products(values: U32, factors: U32) -> int:
    """The sum of `values[i] * factors[i]`, u32[n] each: first by the bits of the values, then by Horner's rule."""
    total = 0
    work, mask = np.empty_like(values), np.empty_like(values)
    for bit in range(32):  # from the highest power down
        np.right_shift(values, np.uint32(bit), out=mask)
        np.bitwise_and(mask, np.uint32(1), out=mask)
        np.negative(mask, out=mask)
        np.bitwise_and(mask, factors, out=work)
        total = (total >> 1 ^ (_POLYNOMIAL if total & 1 else 0)) ^ int(np.bitwise_xor.reduce(work))
    return total


def records_verify(
    run: memoryview,
    ends: I64,
    magic: int,
    header_crc: U32,
    columns_crc: U32,
    blob_crc: U32,
    *,
    blob_starts: I64,
    columns_starts: I64,
    blob_stops: I64,
) -> bool:
    """Whether records that fill `run` end to end carry right checksums, and zeros where they must have zeros.

    Each array has an entry a record; all places are positions in the run (i64[n]). `header_crc` covers what stands between
    the first 8 bytes (magic and itself) and the columns, `columns_crc` the columns, `blob_crc` the blob (0 for an empty
    one); between a blob's stop and the record's end there must be zeros.
    """  # fmt: skip
    length = len(run)
    assert length <= RUN_BYTES_MAX and int(ends[-1]) == length
    powers = _powers()
    behind_header, behind_columns = powers[length - columns_starts], powers[length - blob_starts]
    behind_blob = powers[length - blob_stops]
    # header_crc stands in the bytes of the run (as 4 bytes of the register) and foretells the 56 bytes behind it.
    behind_field = powers[length - columns_starts + 60]
    # A checksum is that of its bytes alone but for two all-ones terms, at its start and at its end. They telescope.
    constants = np.bitwise_xor.reduce(powers[length - columns_starts + 56] ^ behind_blob)
    values = np.concatenate([header_crc, columns_crc, blob_crc])
    factors = np.concatenate([behind_field ^ behind_header, behind_columns, behind_blob])
    foretold = _sum_of_products(values, factors)
    foretold ^= multiply(_ALL_ONES, int(constants))
    foretold ^= multiply(magic, int(np.bitwise_xor.reduce(powers[length - columns_starts + 64])))
    found: int = google_crc32c.value(bytes(run))
    return foretold == found ^ _ALL_ONES ^ multiply(_ALL_ONES, int(powers[length]))
