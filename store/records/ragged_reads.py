"""Reading many byte ranges of one file in any order, with as few reads of the disk as their places allow."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.disk.filesystem import File
from store.errors import CorruptionError
from store.records.batches import I64, U32
from store.records.scan import read_around

# Ranges farther apart than this are never read together: the read would fetch more than it saves.
GAP_BYTES_MAX = 64 << 10
# A gap of three times the range behind it keeps a read within four times of what is asked for; a gap within a page
# costs less than another call, and the page is fetched by the kernel anyway.
_GAP_FACTOR = 3
_GAP_PAGE = 4 << 10
# Ranges that stand one behind the other are one, where that leaves so few: one at a time is dearer than one by index.
_RUN_RANGES_MIN = 4


def read_ragged(file: File, offsets: I64, lengths: U32, *, around: bool = False) -> memoryview:
    """The bytes of the ranges (offset i64[n], length u32[n]), in the order given, as one blob.

    With `around`, zeros stand for bytes that the disk cannot read: for callers that compare each range with its sum.

    Raises CorruptionError where the file ends before a range does, or cannot be read.
    """
    count = len(offsets)
    if not count:
        return memoryview(b"")
    ends = offsets + lengths
    breaks = np.flatnonzero(offsets[1:] != ends[:-1])
    if not len(breaks):
        return memoryview(_read(file, int(offsets[0]), int(ends[-1] - offsets[0]), around))
    if (len(breaks) + 1) * _RUN_RANGES_MIN <= count:
        offsets, ends = offsets[np.append(0, breaks + 1)], ends[np.append(breaks, count - 1)]
        lengths = ends - offsets
    if not bool(lengths.all()):
        some = np.flatnonzero(lengths)  # empty ranges stand nowhere, their offsets may lie anywhere
        return read_ragged(file, offsets[some], lengths[some], around=around)
    data, positions = _read_clusters(file, offsets, ends, around)
    width = int(lengths[0])
    if lengths.strides == (0,) or bool((lengths == width).all()):
        # Every position of the bytes read as one overlapping row: an indexed read takes all ranges at once.
        rows: NDArray[np.void] = np.ndarray((len(data) - width + 1,), f"V{width}", data, 0, (1,))
        return memoryview(rows[positions].tobytes())
    view = memoryview(data)
    stops = positions + lengths
    return memoryview(b"".join([view[a:b] for a, b in zip(positions.tolist(), stops.tolist(), strict=True)]))


def _read_clusters(file: File, offsets: I64, ends: I64, around: bool) -> tuple[bytes, I64]:
    """The bytes of all clusters, and where in them each range starts."""
    ascending = bool((offsets[1:] >= offsets[:-1]).all())
    order = None if ascending else np.argsort(offsets, kind="stable")
    starts, stops = (offsets, ends) if order is None else (offsets[order], ends[order])
    reached = np.maximum.accumulate(stops)
    gaps = starts[1:] - reached[:-1]
    near = np.clip(_GAP_FACTOR * (stops - starts)[1:], _GAP_PAGE, GAP_BYTES_MAX)
    firsts = np.concatenate([[0], np.flatnonzero(gaps > near) + 1])
    begins, finishes = starts[firsts], reached[np.concatenate([firsts[1:] - 1, [len(starts) - 1]])]
    parts = [_read(file, a, b - a, around) for a, b in zip(begins.tolist(), finishes.tolist(), strict=True)]
    sizes = finishes - begins
    shift = np.cumsum(sizes) - sizes - begins
    cluster = np.searchsorted(begins, offsets, side="right") - 1
    return parts[0] if len(parts) == 1 else b"".join(parts), offsets + shift[cluster]


def _read(file: File, offset: int, length: int, around: bool) -> bytes:
    data = read_around(file, offset, length) if around else file.pread(offset, length)
    if len(data) != length:
        raise CorruptionError(file.path, offset, f"{length} bytes were written here, {len(data)} can be read")
    return data
