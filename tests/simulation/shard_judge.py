"""The judge of a shard. It reads the log, and knows from that alone who led, what counts and what may be delivered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from delayserver.config.cluster_settings import ClusterSettings
from delayserver.protocol.columns import unpack_column
from store.records.batches import KeptBatch, MessageBatch, OutcomeBatch
from store.shared.envelope import Envelope, EnvelopeKind, LogWriter, ShardIdentity, unwrap
from store.shared.payload import BarrierNote, BeatNote, EndNote, decode_note, decode_records, version_needed
from tests.simulation.clocks import SimulatedTime
from tests.simulation.failures import SimulationFailure
from tests.simulation.log import LogShard
from tests.simulation.members import IDENTITY, DeliverFrame, Member

I64 = np.dtype("<i8")
# A disk that does nothing for so long hangs.
HANGS_S = 5.0


@dataclass(slots=True)
class Reign:
    """An epoch. `horizon_ms`: the next primary takes for attempted what was due until then. `beat_s`: when the last beat
    came into the log that counts."""

    writer: LogWriter
    horizon_ms: int
    beat_s: float | None = None
    beats: int = 0


class ShardJudge:
    """Follows the log as a member does, with no disk and no delay."""

    def __init__(
        self,
        shard: LogShard,
        members: Sequence[Member],
        time: SimulatedTime,
        note: Callable[..., None],
        identity: ShardIdentity = IDENTITY,
    ) -> None:
        """`identity`: the ids that the records of the shard carry."""
        self._identity = identity
        self._shard = shard
        self._members = members
        self._time = time
        self._note = note
        self._read = 0
        # The epochs in order, and the number of the last record of the present one that counts.
        self.epochs: list[Reign] = []
        self._index = 0
        # The version of the log, and what was given up by it.
        self.version = 0
        self.given_up = 0
        self.sequences: set[int] = set()
        self.outcomes: dict[int, int] = {}
        self.lease_s = ClusterSettings().lease_ms / 1000

    @property
    def server_id(self) -> str:
        """That of the members: 12 hex digits."""
        return f"{self._identity.server_id:012x}"

    def look(self) -> None:
        """Read what has landed since."""
        landed = self._shard.landed
        while self._read < len(landed):
            record = landed[self._read]
            self._read += 1
            found = unwrap(record.data, self._identity, record.position)
            envelope = found.envelope
            if not self._counts(envelope):
                continue
            if self._reads(envelope.writer) < self.version:
                self._fail(f"a program that does not read version {self.version} writes at position {record.position}")
            if envelope.kind is EnvelopeKind.RECORDS:
                self._take(found.payload, record.position)
                continue
            note = decode_note(envelope.kind, found.payload, record.position)
            if envelope.kind is EnvelopeKind.CLAIM:
                self._note("judge", "epoch", epoch=envelope.epoch, member=record.member)
            elif isinstance(note, BeatNote):
                reign = self.epochs[-1]
                reign.beat_s, reign.horizon_ms = record.landed_s, max(reign.horizon_ms, note.horizon_ms)
                reign.beats += 1
            elif isinstance(note, EndNote):
                reign = self.epochs[-1]
                reign.horizon_ms = max(reign.horizon_ms, note.horizon_ms) if note.horizon_ms else 0
            elif isinstance(note, BarrierNote):
                self._note("judge", "barrier", version=note.version)
                if not self.version < note.version <= self._reads(envelope.writer):
                    self._fail(f"a barrier of version {note.version} behind one of version {self.version}")
                self.version = note.version

    def _reads(self, writer: LogWriter) -> int:
        """The highest version of the log that the program of a process reads."""
        (reads,) = [each.programs[writer.instance] for each in self._members if each.number == writer.member]
        return reads

    def _counts(self, envelope: Envelope) -> bool:
        """The first claim of the next epoch counts; then the records of its writer, one by one."""
        if envelope.kind is EnvelopeKind.CLAIM:
            if envelope.epoch != len(self.epochs) + 1:
                return False
            self.epochs.append(Reign(envelope.writer, self.epochs[-1].horizon_ms if self.epochs else 0))
            self._index = 0
            return True
        present = len(self.epochs), self.epochs[-1].writer if self.epochs else None, self._index + 1
        if (envelope.epoch, envelope.writer, envelope.index) != present:
            return False
        self._index += 1
        return True

    def _take(self, payload: memoryview, position: int) -> None:
        for batch in decode_records(payload, position):
            plain: Any = batch.to_batch()
            if version_needed(batch.header.kind, batch.header.version) > self.version:
                self._fail(f"a record of kind {batch.header.kind} at position {position}, in front of its barrier")
            self.given_up += isinstance(plain, KeptBatch)
            if isinstance(plain, MessageBatch):
                sequences = set(plain.sequence.tolist())
                if len(sequences) < len(plain) or sequences & self.sequences:
                    self._fail(f"sequences of the record at position {position} were given before")
                self.sequences |= sequences
            elif isinstance(plain, OutcomeBatch):
                for sequence, outcome in zip(plain.sequence.tolist(), plain.outcome.tolist(), strict=True):
                    if sequence in self.outcomes:
                        self._fail(f"sequence {sequence} has outcomes {self.outcomes[sequence]} and {outcome}")
                    self.outcomes[sequence] = outcome

    def delivers(self, member: Member, frame: DeliverFrame) -> None:
        """A member hands messages over, now."""
        self.look()
        count: Any = frame["count"]
        due_ms = int(unpack_column(frame["due_ms"], count, I64, "due_ms").max())
        sequences = unpack_column(frame["sequence"], count, I64, "sequence").tolist()
        self._note("judge", "delivers", member=member.name, sequences=sequences, uncertain=frame["uncertain"])
        dispatched_us = int(unpack_column(frame["dispatched_us"], count, I64, "dispatched_us").min())
        if due_ms * 1000 > dispatched_us or not member.clock.has_shown(due_ms, dispatched_us // 1000 + 1):
            self._fail(f"{member.name} delivers what is due at {due_ms}, and its clock shows {member.clock.now_ms()}")
        reign = self._acts(member, "delivers")
        if due_ms > reign.horizon_ms:
            self._fail(f"{member.name} delivers what is due at {due_ms}, behind its horizon {reign.horizon_ms}")

    def _acts(self, member: Member, what: str) -> Reign:
        """A process does what only a primary may do."""
        me = LogWriter(member.number, member.instance)
        reign = next((each for each in reversed(self.epochs) if each.writer == me), None)
        if reign is None or reign.beat_s is None:
            self._fail(f"{member.name} {what}, and no beat of its process counts")
        past_s = self._time.now_s - reign.beat_s
        if past_s > self.lease_s:
            self._fail(f"{member.name} {what} {past_s:.3f} s after its last beat that counts")
        return reign

    def beats_of(self, member: Member) -> int:
        """How many beats of a process count so far."""
        self.look()
        me = LogWriter(member.number, member.instance)
        return sum(reign.beats for reign in self.epochs if reign.writer == me)

    async def watch_hanging(self, member: Member) -> None:
        """A primary whose disk hangs beats no more. One beat may be under way, and one more may come late."""
        await self._time.sleep(HANGS_S)
        life, place, beats = member.lives, member.waits_for_disk_from, self.beats_of(member)
        await self._time.sleep(HANGS_S)
        if place is None or (member.lives, member.waits_for_disk_from) != (life, place):
            return  # it has died, or its disk goes on
        count = self.beats_of(member) - beats
        if count > 2:
            self._fail(f"{member.name} beat {count} times in {HANGS_S} s, and its disk did nothing")

    def verdict(self, accepted: set[int]) -> None:
        """Each message that was acknowledged is in a record that counts."""
        self.look()
        lost = accepted - self.sequences
        if lost:
            self._fail(f"sequences {sorted(lost)[:5]} were acknowledged, and no record that counts has them")

    def _fail(self, what: str) -> NoReturn:
        self._note("judge", "FAILURE", promise=what)
        raise SimulationFailure(what)
