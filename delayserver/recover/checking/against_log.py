"""Compares the message_log of a member with the shared log of its shard: record by record, byte by byte.

The message_log is the member's copy of the log. Behind each write stands a record that says up to where it goes. So both are
read side by side, from the first such place that both still have to the last one that the member has.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import trio

from delayserver.recover.reading.capture import Capture
from delayserver.recover.reading.file_read import Reader, log_parts
from delayserver.recover.reading.findings import CONTRADICTORY, MISSING, ORPHANED, Findings
from delayserver.runtime.shared_log import LogRecord, SharedLog
from store.records.batches import FollowedBatch
from store.records.column_batch import ColumnBatch
from store.records.record_image import RecordImage
from store.records.segment import Appendable, encode_appendable
from store.shared.envelope import EnvelopeKind, ForeignRecordError, ShardIdentity, unwrap
from store.shared.followed import FollowedTo, place_in
from store.shared.log_order import LogOrder, Validity
from store.shared.payload import decode_records


@dataclass(frozen=True, slots=True)
class LogCompared:
    """What was compared: positions of the shared log from `start` to `stop`, and the number of records of message_log.
    `end` is the end of the shared log. Where both have no place in common, `start` is `stop`."""

    start: int
    stop: int
    end: int
    records: int


@dataclass(frozen=True, slots=True)
class _Local:
    """A record of message_log at an offset of a file."""

    path: str
    offset: int
    batch: ColumnBatch

    @property
    def place(self) -> FollowedTo | None:
        """Up to where the member had followed; None if it is a record of the shared log."""
        return place_in(self.batch) if isinstance(self.batch, FollowedBatch) else None


DIFFERENCES_MAX: Final = 20
"""Where records are lost, each piece behind them differs too."""


class _DifferenceError(Exception):
    """Both differ. What stands behind it, up to the next place of the member, cannot be compared."""


class AgainstLog:
    """One comparison. Each difference is a finding. It goes on at the next place that the member noted behind it, and ends
    after `DIFFERENCES_MAX`.
    """

    def __init__(self, taken: Capture, shard: ShardIdentity, findings: Findings, healed: int = -1) -> None:
        """`healed`: the log was healed in this epoch. Positions of it and of earlier ones are of no use."""
        self._healed = healed
        self._folder = f"{taken.path}/message_log"
        self._shard = shard
        self._findings = findings
        self._rest = self._read(taken)
        # Whether message_log begins where the shared log does.
        parts = taken.files.message_log
        self._whole = bool(parts) and parts[0].base == 0
        self._next: _Local | None = None
        self._order = LogOrder()
        self._records = 0
        self._position = 0
        # Positions below it are passed over, since a difference stands before it.
        self._resume = 0
        self._differences = 0

    @staticmethod
    def _read(taken: Capture) -> Iterator[_Local]:
        reader = Reader(taken)
        for part, expected in log_parts(taken):
            for header, batch in reader.batches(part.path, part.size, expected.synced):
                yield _Local(part.path, header.offset, batch)

    async def run(self, log: SharedLog, stop: int) -> LogCompared:
        """Compare up to the position `stop`, where the member was. Raises LogLost, LogUnavailable, LogUnusable, StoreError
        where the disk fails, and UpgradeNeededError for a record of a newer program."""
        found = await log.describe()
        start = self._begin(found.first)
        if start is None or start >= stop:
            return LogCompared(stop, stop, found.end, 0)
        if stop > found.end:
            self._add(MISSING, 0, f"the shared log ends at {found.end}, and this member has followed it to {stop}")
            stop = found.end
        if start < stop:
            await self._follow(log, start, stop)
        return LogCompared(start, self._position, found.end, self._records)

    def _begin(self, first: int) -> int | None:
        """Go to the first place that both have. Returns its position."""
        self._advance()
        place = FollowedTo() if self._whole and first == 0 and self._healed < 0 else None
        while place is None and self._next is not None:
            here = self._next.place
            usable = here is not None and here.position >= first and here.epoch > self._healed
            place = here if usable else None
            self._advance()
        if place is None:
            return None
        self._order = LogOrder(place.epoch, place.index, place.writer)
        self._position = place.position
        return place.position

    async def _follow(self, log: SharedLog, start: int, stop: int) -> None:
        with trio.CancelScope() as scope:

            def arrived(records: Sequence[LogRecord]) -> None:
                for record in records:
                    if self._resume <= record.position < stop and not self._is_alike(record):
                        scope.cancel()
                        return
                if records[-1].position + 1 >= stop:
                    with suppress(_DifferenceError):
                        self._end(stop)
                    scope.cancel()

            await log.run(start, arrived)

    def _is_alike(self, record: LogRecord) -> bool:
        """Compare a record. Behind a difference go to the next place of the member. False: there is none, or no more are
        looked for."""
        try:
            self._compare(record)
        except _DifferenceError:
            self._differences += 1
            return self._differences < DIFFERENCES_MAX and self._is_resumed(record.position)
        return True

    def _is_resumed(self, position: int) -> bool:
        while self._next is not None:
            place = self._next.place
            self._advance()
            if place is not None and place.position > position:
                self._order = LogOrder(place.epoch, place.index, place.writer)
                self._resume = place.position
                return True
        return False

    def _compare(self, record: LogRecord) -> None:
        position = record.position
        self._pass_places(position)
        try:
            found = unwrap(record.data, self._shard, position)
        except ForeignRecordError:  # no member takes it
            return
        validity = self._order.judge(found.envelope)
        if validity is Validity.LOST:
            self._differ(MISSING, f"the shared log has lost records before position {position}: {validity.value}")
        if validity is Validity.VALID and found.envelope.kind is EnvelopeKind.RECORDS:
            for image in decode_records(found.payload, position):
                self._compare_record(image, position)
        self._position = position + 1

    def _compare_record(self, image: RecordImage, position: int) -> None:
        here = self._next
        if here is None or here.place is not None:
            self._differ(MISSING, f"a record of position {position} of the shared log is not in message_log")
        elif _encoded(here.batch) != _encoded(image):
            self._differ(CONTRADICTORY, f"another record than at position {position} of the shared log")
        self._records += 1
        self._advance()

    def _pass_places(self, position: int) -> None:
        """The places that the member had reached before it read this position."""
        while self._next is not None:
            place = self._next.place
            if place is None or place.position > position:
                return
            if (place.epoch, place.index, place.writer) != (self._order.epoch, self._order.index, self._order.writer):
                self._differ(
                    CONTRADICTORY,
                    f"at position {place.position} the member had number {place.index} of epoch {place.epoch}, and the "
                    f"shared log has number {self._order.index} of epoch {self._order.epoch}",
                )
            self._advance()

    def _end(self, stop: int) -> None:
        self._pass_places(stop)
        if self._next is None or self._next.place is not None:
            return
        # A running member goes on while it is read: behind its newer records stand places beyond `stop`, or none yet.
        if any(place.position <= stop for place in (each.place for each in self._rest) if place is not None):
            self._differ(ORPHANED, f"a record that the shared log does not have before position {stop}")

    def _differ(self, kind: str, detail: str) -> None:
        self._add(kind, 0 if self._next is None else self._next.offset, detail)
        raise _DifferenceError

    def _add(self, kind: str, offset: int, detail: str) -> None:
        self._findings.add(kind, self._folder if self._next is None else self._next.path, offset, detail)

    def _advance(self) -> None:
        self._next = next(self._rest, None)


def _encoded(record: Appendable) -> bytes:
    return b"".join(encode_appendable(record, 0, 0).buffers)
