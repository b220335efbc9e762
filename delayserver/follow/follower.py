"""Reads the shared log, judges each record, and appends the valid ones to message_log."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import trio

from delayserver.follow.patient_appender import PatientAppender
from delayserver.protocol.errors import InDoubt
from delayserver.runtime.log_appender import AppendedRecords
from delayserver.runtime.marks import Bell
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.shared_log import LogLost, LogRecord, SharedLog
from delayserver.state.positions.accepted_log import AcceptedLog
from delayserver.state.shard.digest import Digest
from delayserver.state.shard.proposals import Accepted, Proposals
from delayserver.state.shard.standing import Standing
from store.errors import CorruptionError
from store.logs.message_log import LogEntry
from store.records.record_image import RecordImage
from store.records.segment import Appendable
from store.shared.envelope import Envelope, EnvelopeKind, ForeignRecordError, Unwrapped, unwrap
from store.shared.followed import FollowedTo, marker
from store.shared.log_order import LogOrder, Validity
from store.shared.payload import BarrierNote, BeatNote, ClaimNote, Note, decode_note, decode_records, require_readable

# Records that were read and wait for the disk. Past the first bound reading stops, below the second it goes on.
WAITING_BYTES_MAX = 32 << 20
WAITING_BYTES_LOW = 8 << 20
# Nobody waits for what another member wrote. So much of it, or what comes within so long, is written and replayed at once:
# for a standby, each write and each round costs more than the records in it.
GATHERED_BYTES_MAX = 4 << 20
GATHER_MS = 100
# An idle shard has nothing but beats, four a second. So often it is written down how far they were read: a restart reads
# fewer of them again, and the log can be trimmed up to there.
MARKS_APART = 10_000
# A claimant has read all but what was on its way when it claimed. So many records are remembered, to compare.
COUNTED_MAX = 1024


@dataclass(frozen=True, slots=True)
class _Valid:
    """Records of one envelope. `accepted` tells their proposer in this process, which did not propose the first `names`;
    None: another process wrote them."""

    records: Sequence[Appendable]
    accepted: Accepted | None
    names: int = 0


@dataclass(frozen=True, slots=True)
class _Taken:
    """What is appended with one write: valid records, and the place of the log behind them."""

    valid: list[_Valid]
    came: list[tuple[FollowedTo, int]]
    place: FollowedTo
    size_bytes: int

    @property
    def records(self) -> list[Appendable]:
        return [*(record for each in self.valid for record in each.records), marker(self.came, self.place)]


class Follower:
    """The one writer of message_log, of the accepted log and of `Standing` in a member of a cluster."""

    def __init__(
        self,
        start: FollowedTo,
        appender: PatientAppender,
        accepted: AcceptedLog,
        standing: Standing,
        proposals: Proposals,
        digest: Digest,
        runtime: Runtime,
    ) -> None:
        """`start` is where the last process left the log."""
        self._place = start
        # The last positions that count, with the epoch and the index behind each.
        self._counted = deque([(start.position - 1, start.epoch, start.index)], COUNTED_MAX)
        self._order = LogOrder(start.epoch, start.index, start.writer)
        self._appender = appender
        self._accepted = accepted
        self._standing = standing
        self._proposals = proposals
        self._digest = digest
        self._damage = runtime.damage
        self._waiting: deque[_Valid] = deque()
        # The place behind each record of the log that waits, and how many records it brought. Also those which
        # message_log has already, and the places around claims.
        self._came: list[tuple[FollowedTo, int]] = []
        # The epoch and the version of the log at the last place in message_log.
        self._marked = start.epoch, start.barrier
        self._waiting_bytes = 0
        self._appending = False
        self._paused = False
        # Whether another member has taken this process over: what it knows ran ahead of the log, so it takes no more.
        self._superseded = False
        self._ring = Bell()
        self._hurry = Bell()
        # Records that did not count, by the reason; and those that were none of this shard.
        self.void: Counter[Validity] = Counter()
        self.foreign = 0

    @property
    def place(self) -> FollowedTo:
        """Up to where the log was read and judged."""
        return self._place

    async def run(self, log: SharedLog) -> None:
        """Follow until cancelled. Raises LogLost and the other errors of the log, and StoreError if a sync fails."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._append_waiting, log)
            await log.run(self._place.position, lambda records: self._arrived(log, records))

    # -- reading

    def _arrived(self, log: SharedLog, records: Sequence[LogRecord]) -> None:
        for record in records:
            if self._superseded:
                break
            self._read(record)
        standing = self._standing
        standing.advance(self._place)
        if not self._waits:
            if not self._appending:
                standing.applied.advance(self._place.position)
        elif not self._appending and not self._gathers and self._appender.takes_now(self._waiting_bytes):
            self._append_now()
        else:
            self._ring.ring()
            if not self._gathers:
                self._hurry.ring()
            if self._waiting_bytes > WAITING_BYTES_MAX and not self._paused:
                self._paused = True
                log.pause()

    def _append_now(self) -> None:
        taken = self._take()
        appended = self._appender.append_now(taken.records, taken.size_bytes)
        if appended is not None:
            self._accept(taken, appended)
            return
        self._waiting.extend(taken.valid)
        self._waiting_bytes, self._came = taken.size_bytes, taken.came
        self._marked = -1, 0  # a place alone waits too
        self._ring.ring()
        self._hurry.ring()

    def _read(self, record: LogRecord) -> None:
        before = self._place
        try:
            self._judge(record)
        except BaseException:
            # What waits may be written before this process ends. It must not say that this record was taken.
            self._place = before
            raise

    def _judge(self, record: LogRecord) -> None:
        position = record.position
        # Also behind records that do not count: the log has nothing unread where the last one is of those.
        before, self._place = self._place, self._place.at(position + 1)
        try:
            found = unwrap(record.data, self._standing.seat.identity, position)
        except ForeignRecordError as error:
            self.foreign += 1
            self._damage.report(CorruptionError("the shared log", position, str(error)), own=False)
            return
        envelope = found.envelope
        validity = self._order.judge(envelope)
        if validity is Validity.LOST:
            raise LogLost(
                self._standing.seat.shard,
                before.position,
                position,
                f"the record there is number {envelope.index} of epoch {envelope.epoch}, "
                f"and the last one was number {before.index} of epoch {before.epoch}",
            )
        if validity is not Validity.VALID:
            self.void[validity] += 1
            return
        epoch, index, writer, wall_us = envelope.epoch, envelope.index, envelope.writer, envelope.wall_us
        self._place = FollowedTo(
            position + 1, epoch, index, writer, before.horizon_ms, before.ahead, wall_us, before.barrier
        )
        self._standing.written_us.advance(envelope.wall_us)
        self._standing.heard.ring()
        note = None if envelope.kind is EnvelopeKind.RECORDS else decode_note(envelope.kind, found.payload, position)
        if isinstance(note, ClaimNote):
            self._require_same_log(note, position)
            # The tools learn from these rows how long the shard had no primary.
            self._came += [(before, 0), (self._place, 0)]
        self._counted.append((position, envelope.epoch, envelope.index))
        if note is None:
            self._take_records(found, position, len(record.data))
        else:
            self._take_note(envelope, note)

    def _require_same_log(self, note: ClaimNote, position: int) -> None:
        """Raises LogLost where the claimant had not the records before its claim that this member has: the log lost them."""
        before = next((each for each in reversed(self._counted) if each[0] < note.position), None)
        if note.index < 0 or before is None:  # it read the log only where an earlier process of this member did
            return
        _, epoch, index = before
        if index != note.index:
            raise LogLost(
                self._standing.seat.shard,
                note.position,
                position,
                f"{note.member} claims behind record {note.index} of epoch {epoch}, and this member has read {index} of it",
            )

    def _take_records(self, found: Unwrapped, position: int, size_bytes: int) -> None:
        accepted: Accepted | None = None
        names = 0
        if found.envelope.writer == self._standing.seat.me:
            proposal = self._proposals.came_back(found.envelope.index)
            records, accepted, names = proposal.records, proposal.accepted, proposal.names
        else:
            records = decode_records(found.payload, position)
        self._came.append((self._place, len(records)))
        if self._place.ahead:
            known = min(self._place.ahead, len(records))
            records = records[known:]
            self._place = replace(self._place, ahead=self._place.ahead - known)
        if records:
            self._waiting.append(_Valid(records, accepted, names))
            self._waiting_bytes += size_bytes

    def _take_note(self, envelope: Envelope, note: Note) -> None:
        standing, proposals = self._standing, self._proposals
        led = standing.leads
        if isinstance(note, BarrierNote):
            require_readable(note.version, standing.reads, self._place.position - 1, note.program)
        standing.take(envelope.epoch, envelope.writer, note)
        self._place = replace(self._place, horizon_ms=standing.horizon_ms, barrier=standing.barrier.value)
        if isinstance(note, BarrierNote):
            # A log that is healed has a barrier in this place again.
            self._came.append((self._place, 0))
        if isinstance(note, ClaimNote):
            doubtful = proposals.end()
            if doubtful:  # they are told behind what came back before the claim
                error = InDoubt(f"member {note.member} leads since, so the result is unknown; look there")
                self._waiting.append(_Valid((), lambda _: [proposal.refused(error) for proposal in doubtful]))
            if standing.leads:
                proposals.begin(envelope.epoch)
                self._waiting.append(_Valid((), lambda _: self._accepted.lead()))
            elif standing.acts.is_set():
                self._superseded = True
            elif led:  # its next claim came before it had seen that it led
                self._waiting.append(_Valid((), lambda _: self._accepted.follow()))
            return
        if envelope.writer == standing.seat.me:
            proposals.came_back(envelope.index).accepted([])
        if isinstance(note, BeatNote):
            self._look_at_beat(note, self._place.position - 1)

    def _look_at_beat(self, note: BeatNote, position: int) -> None:
        """Compare what the primary says of an earlier beat. What came before this one is summed up when it is replayed."""
        self._digest.compare(note.position, note.digest)
        if self._place.ahead:  # message_log has more than what came before
            return
        if self._waiting or self._appending:
            self._waiting.append(_Valid((), lambda _: self._digest.look_at(position)))
        else:
            self._digest.look_at(position)

    # -- appending

    @property
    def _waits(self) -> bool:
        """Whether something is to be appended. A new epoch is: from then on the log is one that goes on. So is a barrier."""
        place = self._place
        return bool(self._waiting) or (
            not place.ahead
            and (
                (place.epoch, place.barrier) != self._marked
                or place.position - self._standing.kept.value >= MARKS_APART
            )
        )

    @property
    def _gathers(self) -> bool:
        """Whether what waits may wait for more. Behind an end a member is to lead."""
        little = self._waiting_bytes < GATHERED_BYTES_MAX and self._standing.heir is None
        return little and all(each.accepted is None for each in self._waiting)

    async def _gather(self) -> None:
        """Wait for more, while nothing hurries."""
        if self._waiting and self._gathers:
            self._hurry.hush()
            with trio.move_on_after(GATHER_MS / 1000):
                await self._hurry.rung()

    async def _append_waiting(self, log: SharedLog) -> None:
        while True:
            await self._gather()
            self._ring.hush()
            if not self._waits:
                await self._ring.rung()
                continue
            taken = self._take()
            self._appending = True
            try:
                appended = await self._appender.append(taken.records, taken.size_bytes)
            finally:
                self._appending = False
            self._accept(taken, appended)
            if self._paused and self._waiting_bytes < WAITING_BYTES_LOW:
                self._paused = False
                log.resume()

    def _take(self) -> _Taken:
        """All that waits, and behind it the place of the log up to which it goes."""
        valid, size = list(self._waiting), self._waiting_bytes
        self._waiting.clear()
        self._waiting_bytes = 0
        came, self._came = self._came, []
        self._marked = self._place.epoch, self._place.barrier
        return _Taken(valid, came, self._place, size)

    def _accept(self, taken: _Taken, appended: AppendedRecords) -> None:
        entries, first = [_as_batch(entry) for entry in appended.entries], 0
        for each in taken.valid:
            own = entries[first : first + len(each.records)]
            first += len(own)
            if each.accepted is None:
                self._accepted.accept(own)
            else:
                if each.names:
                    self._accepted.accept(own[: each.names])
                each.accepted(own[each.names :])
        self._accepted.accept(entries[first:])
        self._standing.kept.advance(taken.place.position)
        self._standing.applied.advance(taken.place.position if self._waiting else self._place.position)


def _as_batch(entry: LogEntry) -> LogEntry:
    return entry._replace(batch=entry.batch.to_batch()) if isinstance(entry.batch, RecordImage) else entry
