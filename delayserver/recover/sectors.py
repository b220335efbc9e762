"""Reading a file around the sectors that its disk cannot read. Bytes and places only; no record."""

from __future__ import annotations

from collections.abc import Iterator

from store.errors import CorruptionError
from store.filesystem import File
from store.scan import SECTOR_BYTES

# One read where ranges are looked through.
_STEP_BYTES = 4 << 20


def bytes_before_bad_sector(file: File, position: int, length: int) -> bytes:
    """Of these bytes those before the first sector that cannot be read."""
    parts: list[bytes] = []
    reached = position
    for start, data in _pieces(file, position, length):
        if start != reached:
            break
        parts.append(data)
        reached += len(data)
    return b"".join(parts)


def readable_ranges(file: File, start: int, stop: int) -> list[tuple[int, int]]:
    """The ranges (start, stop) of [start, stop) that can be read, in order, none beside the next. Reads all of them."""
    found: list[tuple[int, int]] = []
    for position in range(start, stop, _STEP_BYTES):
        for begin, data in _pieces(file, position, min(_STEP_BYTES, stop - position)):
            before = found.pop() if found and found[-1][1] == begin else (begin, begin)
            found.append((before[0], begin + len(data)))
    return found


def ranges_between(ranges: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """What these ascending ranges leave of [start, stop)."""
    edges = [start, *[edge for found in ranges for edge in found], stop]
    return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]


def _pieces(file: File, position: int, length: int) -> Iterator[tuple[int, bytes]]:
    """What can be read, in order, with the place of each piece: halves of halves, until single sectors are left out."""
    try:
        data = file.pread(position, length)
    except CorruptionError:
        first, last = position // SECTOR_BYTES, (position + length - 1) // SECTOR_BYTES
        if first >= last:
            return
    else:
        yield position, data
        return
    middle = (first + last + 1) // 2 * SECTOR_BYTES
    yield from _pieces(file, position, middle - position)
    yield from _pieces(file, middle, position + length - middle)
