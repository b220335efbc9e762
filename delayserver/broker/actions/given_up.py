"""What the store of a cluster's member has given up by the log of its shard, so that all members have the same.

Store offsets and segments are of one member. So the log names the first record that is kept, by the place of its first
message in a queue: the order of the records is the same everywhere.
"""

from __future__ import annotations

from typing import NamedTuple

from delayserver.broker.files.store import BrokerStore
from store.errors import StoreError
from store.records.segment import FILE_HEADER_BYTES


class FirstKept(NamedTuple):
    """The first record that is kept: its first message has this position in the queue of a subject and target group."""

    subject: int
    target_group: int
    position: int


class GivenUpByLog:
    """The last record of the log about it, and the store offset of this member below which all is given up. Writers: who
    takes the record; `give_up` of `block_cuts.py`."""

    __slots__ = ("below", "first")

    def __init__(self) -> None:
        self.first: FirstKept | None = None
        self.below = 0

    def keep(self, first: FirstKept) -> None:
        """The log says so. It holds for the queues when `give_up` is called."""
        self.first = first

    def move_to(self, below: int) -> None:
        """The queues have nothing below a store offset any more."""
        self.below = below


def first_of_segment(store: BrokerStore, base: int) -> tuple[FirstKept, int] | None:
    """The first record of a segment, and the offset behind it; None where it has none that can be read. Reads; may run in
    any thread."""
    try:
        record = next(store.columns(base, store.end), None)
    except StoreError:
        return None
    if record is None or record.offset != base + FILE_HEADER_BYTES:
        return None
    values = [int(record.columns[name][0]) for name in ("subject", "target_group", "position")]
    return FirstKept(*values), record.stop
