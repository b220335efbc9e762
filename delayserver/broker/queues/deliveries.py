"""Delivery ids: the names of handed-out messages. Opaque to clients; i64 so that a column of them is cheap.

    bit 62: of the retry queue | bits 48 to 61: the broker's epoch (its count of starts) | bits 0 to 47: position

After a crash, positions that were handed out but not synced can get other messages. The epoch distinguishes them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from delayserver.broker.queues.ranges import Range, ranges_of
from store.records.batches import I64

POSITION_BITS = 48
EPOCHS = 1 << 14
_POSITION_MASK = (1 << POSITION_BITS) - 1


@dataclass(frozen=True, slots=True)
class DeliveryRanges:
    """Deliveries of one queue and epoch as ranges of positions."""

    retry: bool
    epoch: int
    ranges: list[Range]


def delivery_ids(start: int, count: int, epoch: int, retry: bool) -> I64:
    """The ids of `count` consecutive positions, i64[count]."""
    first = start | (epoch % EPOCHS) << POSITION_BITS | int(retry) << 62
    return np.arange(first, first + count, dtype=np.int64)


def split_deliveries(deliveries: I64) -> list[DeliveryRanges]:
    """Group ids by queue and epoch. `deliveries` i64[n] may have any order and any values: a client sent them."""
    if len(deliveries) == 0:
        return []
    first, last = int(deliveries[0]) >> POSITION_BITS, int(deliveries[-1]) >> POSITION_BITS
    if first == last and int(deliveries.min()) >> POSITION_BITS == int(deliveries.max()) >> POSITION_BITS:
        return [_part(first, deliveries)]
    codes = deliveries >> POSITION_BITS
    return [_part(int(code), deliveries[codes == code]) for code in np.unique(codes)]


def _part(code: int, deliveries: I64) -> DeliveryRanges:
    epoch = code & (EPOCHS - 1) if code >= 0 else -1
    return DeliveryRanges(bool(code & EPOCHS), epoch, ranges_of(deliveries & _POSITION_MASK))
