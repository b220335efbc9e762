"""Which records of a shared log count: the same rule on every member, and in the judge of the tests. Pure.

An epoch is one leadership. A claim begins it, and its writer is the primary. The records of the epoch are numbered from 1
on, without a gap. A record that does not follow counts for nothing, or shows that the log has lost records.
"""

from __future__ import annotations

from enum import Enum

from store.shared.envelope import Envelope, EnvelopeKind, LogWriter

NOBODY = LogWriter(0, 0)


class Validity(Enum):
    """What a record is. Only VALID records count."""

    VALID = "valid"
    OLD_EPOCH = "a record of an earlier epoch: its writer had been superseded"
    LATE_CLAIM = "a claim of an epoch that had begun: the first claim in the log counts"
    COPY = "a record that has come before"
    LOST = "records are missing before it, or the claim of its writer"


class LogOrder:
    """Judges the records of one log, one by one, in the order of their positions."""

    __slots__ = ("_lost", "epoch", "index", "writer")

    def __init__(self, epoch: int = 0, index: int = 0, writer: LogWriter = NOBODY) -> None:
        """Go on behind the valid record that has this epoch, index and writer; by default at the beginning of the log."""
        self.epoch = epoch
        self.index = index
        self.writer = writer
        self._lost = False

    def judge(self, envelope: Envelope) -> Validity:
        """What the next record is. After LOST every record is: a member that lacks records must not go on."""
        found = self._claimed(envelope) if envelope.kind is EnvelopeKind.CLAIM else self._followed(envelope)
        if self._lost or found is Validity.LOST:
            self._lost = True
            return Validity.LOST
        if found is Validity.VALID:
            self.epoch, self.index, self.writer = envelope.epoch, envelope.index, envelope.writer
        return found

    def _claimed(self, claim: Envelope) -> Validity:
        if claim.epoch <= self.epoch:
            return Validity.LATE_CLAIM
        return Validity.VALID if claim.epoch == self.epoch + 1 else Validity.LOST

    def _followed(self, record: Envelope) -> Validity:
        if record.epoch != self.epoch:
            return Validity.OLD_EPOCH if record.epoch < self.epoch else Validity.LOST
        # A member writes in an epoch only if its claim counted. So the log has lost that claim, and another one came first.
        if record.writer != self.writer:
            return Validity.LOST
        if record.index <= self.index:
            return Validity.COPY
        return Validity.VALID if record.index == self.index + 1 else Validity.LOST
