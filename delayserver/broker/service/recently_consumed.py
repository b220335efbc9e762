"""Recent pulls and acks of consumers, so that an operator sees the end of a message's way.

In memory and bounded: the oldest pulls are forgotten first, and a restart forgets all. A pull or an ack is one entry with
columns of numbers; no message has an object.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

import numpy as np

from delayserver.broker.pulled_batch import PulledBatch
from store.records.batches import I64, StoredBatch
from store.records.column_batch import has_any

ROWS_MAX: Final = 1 << 18
"""Pulled messages that are remembered, and as many acks: some 6 MB in all. At 1,000 messages a second four minutes."""

ENTRIES_MAX: Final = 1 << 13
"""Pulls that are remembered, and as many acks. A lookup goes through those of its subject: a few milliseconds at most."""


@dataclass(frozen=True, slots=True)
class Consumed:
    """One hand-out of a message: to which consumer group, when, and when it was acked; 0 if it was not."""

    group: int
    pulled_us: int
    acked_us: int


@dataclass(frozen=True, slots=True)
class _Entry:
    subject: int
    group: int
    time_us: int
    server: int
    sequence: I64
    delivery: I64


class _Recent:
    """Entries in the order of their times, up to the bounds."""

    __slots__ = ("_rows", "entries")

    def __init__(self) -> None:
        self.entries: deque[_Entry] = deque()
        self._rows = 0

    def add(self, entry: _Entry) -> None:
        self.entries.append(entry)
        self._rows += len(entry.delivery)
        while len(self.entries) > ENTRIES_MAX or (self._rows > ROWS_MAX and len(self.entries) > 1):
            self._rows -= len(self.entries.popleft().delivery)


class RecentlyConsumed:
    """Remembers pulls and acks. For the event loop."""

    def __init__(self) -> None:
        self._pulled = _Recent()
        self._acked = _Recent()

    def add_pull(self, subject: int, group: int, pulled: PulledBatch, now_us: int) -> None:
        """Remembers that a pull handed these messages out."""
        server, sequence = _names(pulled.batch)
        self._pulled.add(_Entry(subject, group, now_us, server, sequence, pulled.delivery.copy()))

    def add_ack(self, subject: int, group: int, deliveries: I64, now_us: int) -> None:
        """Remembers that a consumer acked these deliveries, i64[n]."""
        self._acked.add(_Entry(subject, group, now_us, 0, deliveries[:0].copy(), deliveries.copy()))

    def of(self, server: int, subject: int, sequence: int) -> list[Consumed]:
        """The hand-outs of a message, the first one first."""
        found = []
        for entry in self._pulled.entries:
            if entry.subject == subject and entry.server == server:
                for place in np.flatnonzero(entry.sequence == sequence).tolist():
                    acked_us = self._acked_us(entry, int(entry.delivery[place]))
                    found.append(Consumed(entry.group, entry.time_us, acked_us))
        return found

    def _acked_us(self, pulled: _Entry, delivery: int) -> int:
        for entry in self._acked.entries:
            same = (entry.subject, entry.group) == (pulled.subject, pulled.group)
            if same and entry.time_us >= pulled.time_us and (entry.delivery == delivery).any():
                return entry.time_us
        return 0


def _names(batch: StoredBatch) -> tuple[int, I64]:
    """The server id of the first message, and the sequences of the messages of that server; 0 for the others."""
    server, sequence = int(batch.server_id[0]), batch.sequence
    if has_any(batch.origin_sequence):  # a redelivery is a record of its own
        sequence = np.where(batch.origin_sequence != 0, batch.origin_sequence, sequence)
    if batch.server_id.strides == (0,):
        return server, sequence.copy()
    return server, np.where(batch.server_id == server, sequence, 0)
