"""Delivery ids: the names of handed-out messages. Opaque to clients; i64 so that a column of them is cheap.

    bit 62: of the retry queue | 48 to 61: epoch and lease | 44 to 47: moves | 0 to 43: position

After a crash, positions that were handed out but not synced can get other messages. The broker's epoch (its count of starts)
distinguishes them.
A seek hands out positions again. `moves` distinguishes the leases before it from those behind it.
`lease` counts how often a message with an order key went out from its place, so that an ack for an ended lease is not taken
for one of the present lease. It is 0 for all other messages. Epoch and lease share a field: epoch * 5121 + lease, modulo
2^14. So a lease has 1,024 numbers, and those of 16 epochs in a row hardly overlap. Without a lease 2^14 epochs differ.
2^44 positions are those of a subject with a million messages a second for half a year.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from delayserver.broker.queues.ranges import Range, is_run, ranges_of
from store.records.batches import I64

POSITION_BITS = 44
_MOVES_BITS = 4
MOVES = 1 << _MOVES_BITS
EPOCHS = 1 << 14
LEASES = 1024
# Odd, so that all epochs differ; and 5 times LEASES and 1, so that each of 16 epochs has its own numbers.
_EPOCH_STEP = 5 * LEASES + 1
_RETRY = 1 << 62 - POSITION_BITS
_POSITION_MASK = (1 << POSITION_BITS) - 1
# Where a dead letter has the moves of its group.
_MARK_BITS = POSITION_BITS + 1
_MARKS = 1 << 16
# Deliveries of a piece, and ranges of positions among them. A range costs some microseconds, a delivery some
# nanoseconds.
PIECE_ROWS_MAX = 16_384
PIECE_RANGES_MAX = 256


class Epoch:
    """The epoch of delivery ids: the count of the broker's starts, or that of its shard for a primary in a cluster."""

    __slots__ = ("value",)

    def __init__(self, value: int) -> None:
        self.value = value

    def begin(self, value: int) -> None:
        """Another epoch begins, before anything is handed out in it."""
        self.value = value


@dataclass(frozen=True, slots=True)
class DeliveryRanges:
    """Deliveries of one queue, epoch, lease and count of moves as ranges of positions. `epoch` is the field that epoch and
    lease share; it is -1 for ids that no broker gave."""

    retry: bool
    epoch: int
    moves: int
    ranges: list[Range]

    def lease_in(self, epoch: int) -> int | None:
        """The number of the lease if they were handed out in this epoch, otherwise None."""
        lease = (self.epoch - epoch * _EPOCH_STEP) % EPOCHS
        return None if self.epoch < 0 or lease >= LEASES else lease


def delivery_ids(start: int, count: int, epoch: int, moves: int, retry: bool) -> I64:
    """The ids of `count` consecutive positions, i64[count]."""
    code = (epoch * _EPOCH_STEP % EPOCHS) << _MOVES_BITS | moves % MOVES | _RETRY * retry
    first = start | code << POSITION_BITS
    return np.arange(first, first + count, dtype=np.int64)


def scattered_ids(positions: I64, epoch: int, moves: int, retry: bool) -> I64:
    """The ids of positions, i64[n]."""
    ids: I64 = positions + delivery_ids(0, 1, epoch, moves, retry)
    return ids


def with_leases(deliveries: I64, leases: I64) -> I64:
    """Ids of `delivery_ids`, i64[n], as those of leases with these numbers, i64[n]."""
    shift = POSITION_BITS + _MOVES_BITS
    field = deliveries >> shift & EPOCHS - 1
    marked: I64 = deliveries + (((field + leases % LEASES) % EPOCHS - field) << shift)
    return marked


def pack_place(positions: I64, *, retry: bool) -> I64:
    """The places of messages of a consumer group as i64[n]: the position, and a bit for the group's retry queue."""
    packed: I64 = positions | np.int64(int(retry) << POSITION_BITS)
    return packed


def unpack_place(packed: int) -> tuple[bool, int]:
    """Whether the place is one of the retry queue, and the position."""
    return bool(packed >> POSITION_BITS & 1), packed & _POSITION_MASK


def unpack_places(packed: I64) -> tuple[I64, I64]:
    """The positions of places in the queue of the subject, and in the retry queue."""
    of_retry = (packed >> POSITION_BITS & 1) != 0
    positions = packed & _POSITION_MASK
    return positions[~of_retry], positions[of_retry]


def places_of(main: list[Range], retry: list[Range]) -> I64:
    """The places of all positions in these ranges of the two queues, i64[n]."""
    parts = [
        pack_place(np.arange(start, stop), retry=of_retry)
        for of_retry, ranges in ((False, main), (True, retry))
        for start, stop in ranges
    ]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def of_ranges(deliveries: I64, main: list[Range], retry: list[Range]) -> I64:
    """Those of the deliveries, i64[n], whose positions lie in these ranges of the two queues. The ranges ascend."""
    positions, of_retry = deliveries & _POSITION_MASK, (deliveries >> POSITION_BITS & _RETRY) != 0
    chosen = np.zeros(len(deliveries), bool)
    for ranges, part in ((main, ~of_retry), (retry, of_retry)):
        if ranges:
            edges = np.array(ranges, np.int64)
            at = np.searchsorted(edges[:, 0], positions, side="right") - 1
            chosen |= part & (at >= 0) & (positions < edges[at, 1])
    found: I64 = deliveries[chosen]
    return found


def moves_mark(moves: int) -> int:
    """The mark of a group's count of moves, to be added to a place."""
    return (moves % _MARKS + 1) << _MARK_BITS


def has_moves(packed: int, moves: int) -> bool:
    """Whether a place has the mark of this count of moves, or none: older dead letters have none."""
    return packed >> _MARK_BITS in (0, moves % _MARKS + 1)


def split_deliveries(deliveries: I64) -> list[DeliveryRanges]:
    """Group ids by all but their positions. `deliveries` i64[n] may have any order and any values: a client sent them."""
    if len(deliveries) == 0:
        return []
    first, last = int(deliveries[0]) >> POSITION_BITS, int(deliveries[-1]) >> POSITION_BITS
    if first == last:
        if is_run(deliveries):  # as a pull gave them
            position = int(deliveries[0]) & _POSITION_MASK
            return [_part(first, [(position, position + len(deliveries))])]
        if int(deliveries.min()) >> POSITION_BITS == int(deliveries.max()) >> POSITION_BITS:
            return [_part(first, ranges_of(deliveries & _POSITION_MASK))]
    deliveries = np.sort(deliveries)
    codes = deliveries >> POSITION_BITS
    first_of = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    parts = np.split(deliveries, first_of)
    return [_part(int(part[0]) >> POSITION_BITS, ranges_of(part & _POSITION_MASK)) for part in parts]


def pieces_of(deliveries: I64, ranges_max: int = PIECE_RANGES_MAX) -> Iterator[tuple[I64, int]]:
    """Deliveries, i64[n] in any order, in pieces for steps of a millisecond or two, and how many ranges each piece has at
    most."""
    if 0 < len(deliveries) <= PIECE_ROWS_MAX and is_run(deliveries):  # as a pull gave them
        yield deliveries, 1
        return
    start = 0
    while start < len(deliveries):
        piece = deliveries[start : start + PIECE_ROWS_MAX]
        breaks = np.flatnonzero(piece[1:] != piece[:-1] + 1)
        if len(breaks) >= ranges_max:
            piece = piece[: int(breaks[ranges_max - 1]) + 1]
        yield piece, min(len(breaks) + 1, ranges_max)
        start += len(piece)


def _part(code: int, ranges: list[Range]) -> DeliveryRanges:
    epoch = code >> _MOVES_BITS & EPOCHS - 1 if code >= 0 else -1
    return DeliveryRanges(bool(code & _RETRY), epoch, code & MOVES - 1, ranges)
