"""A run of small records that stand end to end, found and verified with a few numpy calls for all of them.

A run holds valid records only: it ends before the first record with a fault. The caller looks at that place alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from store.records.batches import I64
from store.records.checksum_fold import records_verify
from store.records.record import ALIGN, BATCHES, HEADER_BYTES, RECORD_BYTES_MAX, RECORD_MAGIC, RECORD_ROWS_MAX

_WORD: Final = 4
_HEADER_WORDS: Final = HEADER_BYTES // _WORD
# Where in a header, in words of four bytes, FORMAT.md puts its fields; the last three are words of eight bytes.
_HEADER_CRC, _KIND_VERSION, _COUNT, _COLUMNS_BYTES, _COLUMNS_CRC, _BLOB_BYTES, _BLOB_CRC, _PLACE = (
    1,
    2,
    3,
    4,
    5,
    6,
    8,
    9,
)
_SYNCED, _FIRST, _LAST = 5, 6, 7
_KNOWN: Final = np.array(
    [kind | version << 16 for kind, batch in BATCHES.items() for version in range(1, batch.schema.version + 1)],
    np.uint32,
)


@dataclass(frozen=True, slots=True)
class RecordRun:
    """n verified records: positions in the buffer they were found in, and what their headers say, i64[n] each."""

    starts: I64
    ends: I64
    kinds: I64
    versions: I64
    counts: I64
    firsts: I64
    lasts: I64
    columns_bytes: I64
    blob_bytes: I64
    synced: int


def find_run(buffer: bytes, offset: int) -> RecordRun | None:
    """The records that stand end to end from the beginning of `buffer`, which stands at `offset` of its file.

    None where there are too few of them, or their checksums do not agree. The buffer begins with a record.
    """
    starts = _candidates(buffer, offset)
    if len(starts) < 2 or starts[0] != 0:
        return None
    words = np.frombuffer(buffer, "<u4", len(buffer) // _WORD)
    heads = words[(starts // _WORD)[:, None] + np.arange(_HEADER_WORDS)]
    wide = heads.view("<u8")
    columns_bytes = heads[:, _COLUMNS_BYTES].astype(np.int64)
    blob_bytes = np.minimum(wide[:, _BLOB_BYTES // 2], np.uint64(RECORD_BYTES_MAX)).astype(np.int64)
    sizes = (HEADER_BYTES + columns_bytes + blob_bytes + ALIGN - 1) // ALIGN * ALIGN
    counts = heads[:, _COUNT].astype(np.int64)
    ends = starts + sizes
    right = (counts > 0) & (counts <= RECORD_ROWS_MAX) & (ends <= len(buffer)) & (columns_bytes % ALIGN == 0)
    right &= np.isin(heads[:, _KIND_VERSION], _KNOWN)
    right &= wide[:, _SYNCED] <= (offset + starts).astype(np.uint64)
    right[1:] &= starts[1:] == ends[:-1]
    number = len(starts) if bool(right.all()) else int(np.argmin(right))
    if number < 2:
        return None
    starts, ends, heads, wide = starts[:number], ends[:number], heads[:number], wide[:number]
    columns_starts = starts + HEADER_BYTES
    blob_starts = columns_starts + columns_bytes[:number]
    if not records_verify(
        memoryview(buffer)[: int(ends[-1])],
        ends,
        RECORD_MAGIC,
        heads[:, _HEADER_CRC],
        heads[:, _COLUMNS_CRC],
        heads[:, _BLOB_CRC],
        columns_starts=columns_starts,
        blob_starts=blob_starts,
        blob_stops=blob_starts + blob_bytes[:number],
    ):
        return None
    return RecordRun(
        starts,
        ends,
        (heads[:, _KIND_VERSION] & np.uint32(0xFFFF)).astype(np.int64),
        (heads[:, _KIND_VERSION] >> np.uint32(16)).astype(np.int64),
        counts[:number],
        wide[:, _FIRST].view(np.int64),
        wide[:, _LAST].view(np.int64),
        columns_bytes[:number],
        blob_bytes[:number],
        int(wide[:, _SYNCED].max()),
    )


def _candidates(buffer: bytes, offset: int) -> I64:
    """Where the magic stands together with the place that a record would have there, ascending."""
    words = np.frombuffer(buffer, "<u4", len(buffer) // _WORD)
    usable = len(words) - _HEADER_WORDS + 1
    if usable <= 0:
        return np.zeros(0, np.int64)
    found = np.flatnonzero(words[:usable:2] == np.uint32(RECORD_MAGIC)) * 2
    places = ((offset + found * _WORD) // ALIGN) & 0xFFFF_FFFF
    starts: I64 = found[words[found + _PLACE] == places] * _WORD
    return starts
