"""Records that this process has appended to the shared log and not read back yet.

A part that has something to make durable proposes it: records, or a note. It is told when the record came back, counts,
and is part of this directory; or that this can never be known.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from delayserver.protocol.errors import DelayServerError, NotPrimary
from delayserver.runtime.clock import Clock
from delayserver.runtime.shared_log import IN_FLIGHT_MAX, RECORD_BYTES_MAX, SharedLog
from delayserver.state.shard.seat import Seat
from store.disk.filesystem import Buffer
from store.logs.message_log import LogEntry
from store.records.segment import Appendable
from store.shared.envelope import ENVELOPE_BYTES, Envelope, EnvelopeKind, wrap
from store.shared.payload import Note, encode_note, encode_records, kind_of
from store.tables.names import Names

NOT_LEADING = NotPrimary("another member of the cluster leads since")
"""Nothing was proposed: another member may do it."""

# Of the payload of one record of the log.
_RECORDS_BYTES_MAX = RECORD_BYTES_MAX - ENVELOPE_BYTES

Accepted = Callable[[list[LogEntry]], object]
Refused = Callable[[DelayServerError], object]


def _tell_nobody(_: object) -> None:
    """Of names alone."""


def _bytes(payload: Sequence[Buffer]) -> int:
    return sum(map(len, payload))


@dataclass(frozen=True, slots=True)
class Proposal:
    """A record on its way. `records` as this process has them, none for a note; the first `names` of them are new names.
    `accepted` gets the others as entries of message_log."""

    index: int
    records: Sequence[Appendable]
    names: int
    size_bytes: int
    accepted: Accepted
    refused: Refused


class Proposals:
    """Numbers the records of this process in its epoch, and hands them to the log. Writers: who proposes; the follower takes
    what came back.

    New names go in front of the records of the next proposal: no record comes before its names. They are in the same
    envelope, or in those before it where one record of the log does not take both.

    Invariants: the indexes of what is on its way follow each other, up to the last one that was given out."""

    __slots__ = ("_clock", "_epoch", "_index", "_log", "_names", "_on_their_way", "_seat", "size_bytes")

    def __init__(self, log: SharedLog, seat: Seat, names: Names, clock: Clock) -> None:
        self._log = log
        self._names = names
        self._seat = seat
        self._clock = clock
        self._epoch = 0
        self._index = 0
        self._on_their_way: deque[Proposal] = deque()
        # Bytes of the records on their way.
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._on_their_way)

    def begin(self, epoch: int) -> None:
        """This process leads from here on."""
        assert not self._on_their_way and epoch > self._epoch
        self._epoch, self._index = epoch, 0

    def claim(self, epoch: int, note: Note) -> None:
        """Append a claim of an epoch. Its place in the log decides; nobody is told."""
        self._append(EnvelopeKind.CLAIM, epoch, 0, [encode_note(note)])

    def propose(self, records: Sequence[Appendable], accepted: Accepted, refused: Refused) -> None:
        """Append records, at least one, which are accepted all together. Refused in this step if this process leads no
        longer. Where the log takes no record of this length its error is raised, and nothing has changed."""
        if not self._epoch:
            refused(NOT_LEADING)
            return
        payload = encode_records(records)
        names = self._names.new
        if names and _RECORDS_BYTES_MAX - _bytes(encode_records(names)) < _bytes(payload) <= _RECORDS_BYTES_MAX:
            self._append_names(names)
            names = []
        self._propose(
            EnvelopeKind.RECORDS, [*encode_records(names), *payload], [*names, *records], len(names), accepted, refused
        )
        self._names.take_new()

    def _append_names(self, names: Sequence[Appendable]) -> None:
        """Append names in as few records as take them. A name that no message has does no harm, so they need not be accepted
        together with what uses them."""
        part: list[Appendable] = []
        payload: list[Buffer] = []
        for each in names:
            its = encode_records([each])
            if part and _bytes(payload) + _bytes(its) > _RECORDS_BYTES_MAX:
                self._propose(EnvelopeKind.RECORDS, payload, part, len(part), _tell_nobody, _tell_nobody)
                part, payload = [], []
            part.append(each)
            payload += its
        self._propose(EnvelopeKind.RECORDS, payload, part, len(part), _tell_nobody, _tell_nobody)

    def note(self, note: Note, accepted: Accepted, refused: Refused) -> None:
        """Append a note. Refused in this step if this process leads no longer."""
        if not self._epoch:
            refused(NOT_LEADING)
            return
        self._propose(kind_of(note), [encode_note(note)], (), 0, accepted, refused)

    def _propose(
        self,
        kind: EnvelopeKind,
        payload: Sequence[Buffer],
        records: Sequence[Appendable],
        names: int,
        accepted: Accepted,
        refused: Refused,
    ) -> None:
        assert len(self._on_their_way) < IN_FLIGHT_MAX, "each part that proposes bounds what it has on its way"
        # A number that was given out and has no record would end the shard: the next record would show that one is lost.
        size = self._append(kind, self._epoch, self._index + 1, payload)
        self._index += 1
        self._on_their_way.append(Proposal(self._index, records, names, size, accepted, refused))
        self.size_bytes += size

    def _append(self, kind: EnvelopeKind, epoch: int, index: int, payload: Sequence[Buffer]) -> int:
        seat = self._seat
        record = wrap(Envelope(kind, seat.identity, epoch, index, seat.me, self._clock.now_us()), payload)
        self._log.append(record)
        return len(record)

    def came_back(self, index: int) -> Proposal:
        """The first of the records on their way was read back, and is valid. Its `accepted` is the caller's to call."""
        proposal = self._on_their_way.popleft()
        assert proposal.index == index, "valid records come back in the order of their indexes"
        self.size_bytes -= proposal.size_bytes
        return proposal

    def end(self) -> list[Proposal]:
        """This process leads no longer. Returns what is on its way: nobody can say whether it counts. The caller tells those
        who wait."""
        doubtful = list(self._on_their_way)
        self._on_their_way.clear()
        self._epoch = self.size_bytes = 0
        return doubtful

    def check_invariants(self) -> None:
        """The records on their way are the last ones that were numbered."""
        count = len(self._on_their_way)
        indexes = [proposal.index for proposal in self._on_their_way]
        assert indexes == list(range(self._index - count + 1, self._index + 1))
        assert self.size_bytes == sum([proposal.size_bytes for proposal in self._on_their_way])
