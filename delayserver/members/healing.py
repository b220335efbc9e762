"""Makes the log of a shard whole again that has lost records which members have.

The member that has most writes them anew, as they were: the same epochs and numbers, behind the end of the log. Notes are
not kept, so beats stand in their places. By the order of the log a member knows what it has, and takes the rest. When the
map says that the log is healed, all before is removed, since the log is broken there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from typing import Final

from delayserver.members.member_map import Announced, Healed, Stranded
from delayserver.runtime.log_reading import reading
from delayserver.runtime.marks import Mark
from delayserver.runtime.shared_log import LogLost, LogRecord, LogTrimmed, SharedLog
from store.disk.filesystem import Buffer
from store.records.column_batch import ColumnBatch
from store.records.versions import lowest_schema
from store.shared.copied import CopiedPiece
from store.shared.envelope import Envelope, EnvelopeKind, ForeignRecordError, LogWriter, ShardIdentity, unwrap, wrap
from store.shared.followed import FollowedTo
from store.shared.log_order import LogOrder, Validity
from store.shared.payload import (
    LOG_VERSION,
    BarrierNote,
    BeatNote,
    ClaimNote,
    encode_note,
    encode_records,
    require_readable,
    version_needed,
)

IN_FLIGHT: Final = 32
"""Half of what a log takes at once."""

Pieces = Callable[[], Iterator[CopiedPiece]]
"""Reads what the message_log of a member has, from its beginning."""


class HealingRefusedError(Exception):
    """Healing would lose something. The text says what, and what the operator does."""


def look(own: Announced, pieces: Iterator[CopiedPiece]) -> tuple[Stranded, FollowedTo]:
    """How far a member has followed the log, for the others and for itself. Raises UpgradeNeededError where the log has a
    version there that this program does not read: it cannot tell what it would write anew."""
    place, records, ahead = FollowedTo(), (0, 0), 0
    for piece in pieces:
        if piece.place is None:
            ahead = len(piece.records)
            continue
        place = piece.place
        if piece.records:
            records = place.epoch, place.index
    require_readable(place.barrier, LOG_VERSION, place.position)
    writer = place.writer
    return Stranded(
        own.name, own.shard, place.epoch, place.index, writer.member, f"{writer.instance:016x}", *records, ahead
    ), place


def who_heals(stranded: Sequence[Stranded]) -> Stranded:
    """The member that has most: at least one is there."""
    return max(stranded, key=lambda each: (each.records_place, each.ahead, each.place, each.name))


def require_part_of(pieces: Iterator[CopiedPiece], healer: Stranded, others: Sequence[Stranded]) -> None:
    """What the healer has goes on where the others are. Raises HealingRefusedError: the logs of two members differ, or one
    is too far behind."""
    writers: dict[int, LogWriter] = {}
    carried: set[tuple[int, int]] = {(0, 0)}
    wanted = {each.records_place for each in others}
    first: tuple[int, int] | None = None
    for piece in pieces:
        if piece.place is None:
            continue
        place = piece.place.epoch, piece.place.index
        if first is None:
            first = (0, 0) if piece.records else place
        writers[piece.place.epoch] = piece.place.writer
        if piece.records and place in wanted:
            carried.add(place)
    for other in others:
        if other.place < (first or (0, 0)):
            raise HealingRefusedError(
                f"{other.name} had followed the log to record {other.index} of epoch {other.epoch}, and {healer.name} has "
                f"no longer what came next. Forget {other.name}, and make its directory anew from a backup afterwards"
            )
        known = other.records_place in carried or other.records_place <= (first or (0, 0))
        writer = LogWriter(other.writer, int(other.instance, 16))
        if not known or writers.get(other.epoch, writer) != writer:
            raise HealingRefusedError(
                f"{other.name} has records up to number {other.records_index} of epoch {other.records_epoch} that "
                f"{healer.name} does not have: the log went on without them, up to epoch {healer.epoch}. Both cannot be "
                "kept. Put the directory of one of them aside and forget that member; afterwards make it anew from a backup"
            )


def place_after(place: FollowedTo, healed: Healed | None) -> FollowedTo:
    """Where a member goes on that has followed the log to a place. Raises LogTrimmed where a healed log begins behind it."""
    if healed is None or place.epoch > healed.until:
        return place
    if (place.epoch, place.index) < (healed.epoch, healed.index):
        raise LogTrimmed(healed.shard, place.position, healed.position)
    return replace(place, position=healed.position)


@dataclass(frozen=True, slots=True)
class Healing:
    """A shard, how its log is opened, and who writes it anew."""

    open: Callable[[], SharedLog]
    shard: ShardIdentity
    healer: Announced
    me: LogWriter

    async def require_lost(self, place: FollowedTo) -> None:
        """Raises HealingRefusedError where the log has what comes behind a place: then nothing is to be healed."""
        log = self.open()
        described = await log.describe()
        if not described.first <= place.position <= described.end:
            return
        read = Mark(place.position)
        try:
            async with self._reading(log, place.position, LogOrder(place.epoch, place.index, place.writer), read):
                await read.reached(described.end)
        except LogLost:
            return
        raise HealingRefusedError(
            "the log has all that this member needs, so nothing is to be healed: start the members"
        )

    async def write(self, pieces: Iterator[CopiedPiece], stranded: Sequence[Stranded], wall_us: int) -> Healed:
        """Write what the members lack behind the end of the log, and say where they go on. They do not work meanwhile. The
        caller puts the result into the map, and removes what stands before only then.

        Raises LogUnusable, LogUnavailable; then nothing is healed, and the call may be repeated."""
        behind = min(stranded, key=lambda each: each.place)
        log = self.open()
        start, until = (await log.describe()).end, max([each.epoch for each in stranded])
        order = LogOrder(behind.epoch, behind.index, LogWriter(behind.writer, int(behind.instance, 16)))
        read, sent = Mark(start), 0
        async with self._reading(log, start, order, read):
            for envelope, payload in self._envelopes(pieces, behind, until, wall_us):
                until = max(until, envelope.epoch)
                log.append(wrap(envelope, payload))
                sent += 1
                # Another process may write too. Then the order of its records is wrong.
                await read.reached(start + sent - IN_FLIGHT)
            await read.reached(start + sent)
        return Healed(self.healer.shard, start, behind.epoch, behind.index, until)

    async def remove_before(self, healed: Healed) -> bool:
        """Remove the broken records in front of a healed log, which the map has. False where nothing of them is there.
        Raises LogUnusable, LogUnavailable."""
        log = self.open()
        described = await log.describe()
        if not described.first < healed.position <= described.end:
            return False
        await log.trim(healed.position)
        return True

    def _reading(self, log: SharedLog, start: int, order: LogOrder, read: Mark) -> AbstractAsyncContextManager[None]:
        """Read for the block, from `start` on, and judge. Raises LogLost, LogUnusable."""

        def arrived(records: Sequence[LogRecord]) -> None:
            for each in records:
                with suppress(ForeignRecordError):
                    if order.judge(unwrap(each.data, self.shard, each.position).envelope) is Validity.LOST:
                        raise LogLost(self.healer.shard, start, each.position, "records are missing before it")
            read.advance(records[-1].position + 1)

        return reading(log, start, arrived)

    def _envelopes(
        self, pieces: Iterator[CopiedPiece], behind: Stranded, until: int, wall_us: int
    ) -> Iterator[tuple[Envelope, Sequence[Buffer]]]:
        epoch, index = behind.place
        barrier = 0

        def envelope(kind: EnvelopeKind, epoch: int, index: int, writer: LogWriter) -> Envelope:
            return Envelope(kind, self.shard, epoch, index, writer, wall_us)

        def lead_to(stop: FollowedTo) -> Iterator[tuple[Envelope, Sequence[Buffer]]]:
            """The notes up to a place. A barrier has a place of its own."""
            nonlocal epoch, index, barrier
            while epoch < stop.epoch:
                epoch, index = epoch + 1, 0
                writer = stop.writer if epoch == stop.epoch else self.me
                yield envelope(EnvelopeKind.CLAIM, epoch, 0, writer), [encode_note(self._claim())]
            while index < stop.index:
                index += 1
                if index == stop.index and stop.barrier > barrier:
                    barrier = stop.barrier
                    note = BarrierNote(barrier, self.healer.program)
                    yield envelope(EnvelopeKind.BARRIER, epoch, index, stop.writer), [encode_note(note)]
                    continue
                beat = BeatNote(horizon_ms=stop.horizon_ms, lease_ms=0, digest=b"", position=0)
                yield envelope(EnvelopeKind.BEAT, epoch, index, stop.writer), [encode_note(beat)]

        horizon_ms = 0
        for piece in pieces:
            records = piece.records
            # Records without a place come in an epoch that no member has seen. They are the last ones.
            place = piece.place or self._place_of(records, until, horizon_ms, barrier)
            until, horizon_ms = max(until, place.epoch), place.horizon_ms
            if (place.epoch, place.index) <= (epoch, index):
                barrier = place.barrier
                continue
            if records:
                yield from lead_to(
                    replace(place, index=place.index - 1, barrier=barrier if piece.place else place.barrier)
                )
                index = place.index
                yield envelope(EnvelopeKind.RECORDS, epoch, index, place.writer), encode_records(records)
            else:
                yield from lead_to(place)
        yield from lead_to(FollowedTo(0, until, 0, self.me))

    def _place_of(self, records: Sequence[ColumnBatch], until: int, horizon_ms: int, barrier: int) -> FollowedTo:
        """The place of records without one, in an epoch of their own. A crash may have cut off a barrier too."""
        schemas = [lowest_schema(each) for each in records]
        needed = max([barrier, *[version_needed(each.kind, each.version) for each in schemas]])
        return FollowedTo(0, until + 1, 2 if needed > barrier else 1, self.me, horizon_ms, barrier=needed)

    def _claim(self) -> ClaimNote:
        own = self.healer
        return ClaimNote(own.name, own.address, own.program, 0, "the log was healed", own.http)
