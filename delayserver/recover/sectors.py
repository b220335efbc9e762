"""Reading a file around the sectors that its disk cannot read. Bytes and places only; no record."""

from __future__ import annotations

from store.filesystem import File
from store.scan import pieces

# One read where ranges are looked through.
_STEP_BYTES = 4 << 20


def bytes_before_bad_sector(file: File, position: int, length: int) -> bytes:
    """Of these bytes those before the first sector that cannot be read."""
    parts: list[bytes] = []
    for _, _, data in pieces(file, position, length):
        if data is None:
            break
        parts.append(data)
    return b"".join(parts)


def readable_ranges(file: File, start: int, stop: int) -> list[tuple[int, int]]:
    """The ranges (start, stop) of [start, stop) that can be read, in order, none beside the next. Reads all of them."""
    found: list[tuple[int, int]] = []
    for position in range(start, stop, _STEP_BYTES):
        for begin, _, data in pieces(file, position, min(_STEP_BYTES, stop - position)):
            if data is None:
                continue
            before = found.pop() if found and found[-1][1] == begin else (begin, begin)
            found.append((before[0], begin + len(data)))
    return found


def ranges_between(ranges: list[tuple[int, int]], start: int, stop: int) -> list[tuple[int, int]]:
    """What these ascending ranges leave of [start, stop)."""
    edges = [start, *[edge for found in ranges for edge in found], stop]
    return [(begin, end) for begin, end in zip(edges[::2], edges[1::2], strict=True) if begin < end]
