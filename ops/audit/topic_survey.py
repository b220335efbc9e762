"""What the log of a shard has, read once from its first record to its end: places to cut it at, names, takeovers, damage.

Records that do not count are left out by the rule of the members: those of a deposed primary, and repetitions. So each
message comes once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Final

import numpy as np

from delayserver.runtime.shared_log import LogRecord
from ops.audit.capture import PART_BYTES
from ops.audit.directories import CorruptRow
from ops.audit.takeovers import Epoch, Epochs
from ops.audit.topics import TopicShard
from store.indexes.id_index import id_keys
from store.records.batches import I64, KIND_MESSAGES, KIND_NAMES, U64, MessageBatch, NameBatch
from store.records.records import RecordsBuilder
from store.shared.envelope import Envelope, EnvelopeKind, ForeignRecordError, Unwrapped, unwrap
from store.shared.followed import FollowedTo
from store.shared.log_order import LogOrder, Validity
from store.shared.payload import LOG_VERSION, BarrierNote, decode_note, decode_records, require_readable
from store.tables.names import SUBJECT

# Of a log that was trimmed, so many records are looked at to find its epoch: what a deposed primary had in flight is fewer.
_LOOKED_AT: Final = 256
_ID_COLUMNS: Final = ("sequence", "id_hash", "subject", "due_ms", "origin_sequence", "replaces_sequence")

Name = tuple[int, str]
"""Kind and text."""


@dataclass(frozen=True, slots=True)
class Survey:
    """The log of one shard up to a moment.

    `places`: the first one, those at which a task may begin, and the end. `sizes`: bytes between them. `names`: by code from
    1 on. `first_sequence`: no message below it came into what the log still has. `copies`: sequences of messages whose id
    came before, i64[n] ascending."""

    shard: TopicShard
    places: tuple[FollowedTo, ...]
    sizes: tuple[int, ...]
    names: tuple[Name, ...]
    first_sequence: int
    epochs: Epochs
    damages: tuple[CorruptRow, ...]
    copies: I64


def survey(shard: TopicShard) -> list[Survey]:
    """The survey of a shard, in a list. Raises the errors of the log, and UpgradeNeededError."""
    first, stop = shard.bounds()
    return [take_survey(shard, begin(shard, shard.records(first, stop), first), stop, PART_BYTES)]


def begin(shard: TopicShard, records: Iterable[LogRecord], first: int) -> FollowedTo:
    """The place before the first record of a log. A log that was trimmed begins with any record, also with one that does not
    count. `records` are its first ones."""
    if first == 0:
        return FollowedTo()
    place = FollowedTo(first)
    seated: LogOrder | None = None
    for record in islice(records, _LOOKED_AT):
        try:
            envelope = unwrap(record.data, shard.identity, record.position).envelope
        except ForeignRecordError:
            continue
        lost = seated is not None and seated.judge(envelope) is Validity.LOST
        if seated is None or (lost and envelope.epoch > place.epoch):
            place = _before(envelope, record.position)
            seated = LogOrder(place.epoch, place.index, place.writer)
            seated.judge(envelope)
    return place


def _before(envelope: Envelope, position: int) -> FollowedTo:
    if envelope.kind is EnvelopeKind.CLAIM:
        return FollowedTo(position, envelope.epoch - 1)
    return FollowedTo(position, envelope.epoch, envelope.index - 1, envelope.writer)


def judged(
    shard: TopicShard, place: FollowedTo, records: Iterable[LogRecord], damages: list[CorruptRow] | None = None
) -> Iterator[tuple[FollowedTo, Unwrapped]]:
    """The records that count, from a place on, each with the place behind it. Damage goes to `damages`. Raises
    UpgradeNeededError, also where a barrier raises the log to a version that this program does not read."""
    order = LogOrder(place.epoch, place.index, place.writer)
    found_damages = [] if damages is None else damages
    for record in records:
        position = record.position
        try:
            found = unwrap(record.data, shard.identity, position)
        except ForeignRecordError as error:
            found_damages.append(_damage(shard, position, position + 1, f"no record of this shard: {error}"))
            continue
        envelope, known = found.envelope, (order.epoch, order.index)
        validity = order.judge(envelope)
        if validity is Validity.LOST:
            detail = (
                f"records are missing: number {envelope.index} of epoch {envelope.epoch} follows number {known[1]} of epoch "
                f"{known[0]}"
            )
            found_damages.append(_damage(shard, position, position, detail))
            order = LogOrder(envelope.epoch, envelope.index, envelope.writer)
        elif validity is not Validity.VALID:
            continue
        if envelope.kind is EnvelopeKind.BARRIER:
            note = decode_note(envelope.kind, found.payload, position)
            assert isinstance(note, BarrierNote)
            require_readable(note.version, LOG_VERSION, position, note.program)
        yield (
            FollowedTo(position + 1, envelope.epoch, envelope.index, envelope.writer, wall_us=envelope.wall_us),
            found,
        )


def _damage(shard: TopicShard, start: int, stop: int, detail: str) -> CorruptRow:
    return {"server_id": f"{shard.server_id:012x}", "file": shard.path, "start": start, "stop": stop, "detail": detail}


def take_survey(
    shard: TopicShard, start: FollowedTo, stop: int, part_bytes: int, names: tuple[Name, ...] = ()
) -> Survey:
    """The survey from a place on. `names`: those before it."""
    gatherer = _Gatherer(names)
    places, sizes, size = [start], [], 0
    damages: list[CorruptRow] = []
    place = start
    for place, found in judged(shard, start, shard.records(start.position, stop), damages):
        gatherer.take(shard.server_id, place, found)
        size += len(found.payload)
        if size >= part_bytes:
            places.append(place)
            sizes.append(size)
            size = 0
    # Behind the last record that counts may stand others.
    places.append(replace(place, position=max(stop, place.position)))
    sizes.append(size)
    return Survey(
        shard, tuple(places), tuple(sizes), tuple(gatherer.names), gatherer.first_sequence, gatherer.epochs, tuple(damages),
        gatherer.copies(),
    )  # fmt: skip


class _Gatherer:
    """What the records of a log tell of it."""

    def __init__(self, names: tuple[Name, ...]) -> None:
        self.names = list(names)
        self.first_sequence = 0
        self.epochs: Epochs = {}
        self._messages = RecordsBuilder()
        self._ids: list[tuple[U64, I64]] = []

    def take(self, server_id: int, place: FollowedTo, found: Unwrapped) -> None:
        """The next record that counts."""
        key, brings = (server_id, place.epoch), found.envelope.kind is EnvelopeKind.RECORDS
        ends = found.envelope.kind is EnvelopeKind.END
        known = self.epochs.get(key, Epoch())
        self.epochs[key] = known.with_record(place.index, place.wall_us, brings=brings, ends=ends)
        if not brings:
            return
        for image in decode_records(found.payload, place.position - 1):
            if image.header.kind == KIND_NAMES:
                batch = image.to_batch()
                assert isinstance(batch, NameBatch)
                self._name(batch)
            elif image.header.kind == KIND_MESSAGES:
                self.first_sequence = self.first_sequence or image.header.first_sequence
                self._messages.add(image.header, bytes(image.columns))
                if self._messages.rows >= 1 << 17:
                    self._take_ids()

    def _name(self, batch: NameBatch) -> None:
        ends = np.cumsum(batch.names_length).tolist()
        texts = bytes(batch.names)
        rows = zip(batch.code.tolist(), batch.name_kind.tolist(), [0, *ends[:-1]], ends, strict=True)
        for code, kind, start, end in rows:
            # The log was trimmed: it has no text of earlier codes.
            self.names += [(SUBJECT, f"#{missing}") for missing in range(len(self.names) + 1, code)]
            if code == len(self.names) + 1:
                self.names.append((kind, texts[start:end].decode()))

    def _take_ids(self) -> None:
        columns = self._messages.take().columns_alone(MessageBatch, _ID_COLUMNS)
        keys = id_keys(columns["id_hash"], columns["subject"], columns["due_ms"])
        wanted = (columns["id_hash"] != 0) & (columns["origin_sequence"] == 0)
        # A rescheduled message is wanted whatever its id says. As the first one it makes others its copies.
        self._ids.append((keys[wanted], np.where(columns["replaces_sequence"] != 0, 0, columns["sequence"])[wanted]))

    def copies(self) -> I64:
        """The sequences of messages whose id came before, ascending."""
        if self._messages.records:
            self._take_ids()
        if not self._ids:
            return np.zeros(0, np.int64)
        keys, sequence = (np.concatenate(column) for column in zip(*self._ids, strict=True))
        order = np.argsort(keys, kind="stable")
        repeats = np.concatenate([[False], keys[order][1:] == keys[order][:-1]])
        copies: I64 = np.sort(sequence[order][repeats & (sequence[order] != 0)])
        return copies
