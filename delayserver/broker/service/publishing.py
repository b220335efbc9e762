"""Publishes: stores messages that are due now straight in the broker's store, and answers when they are durable.

All messages of one event-loop step are one group: one write and one sync. While the disk is quick, the event loop waits
for the sync of a small group, as the group commit of message_log does. Larger groups share the syncs of `BrokerCommit`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeAlias

import numpy as np
import trio

from delayserver.broker.actions.arrivals import PublishedPositions
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.config.settings import StorageSettings
from delayserver.protocol.errors import DelayServerError, DiskFull, QueueFull, StorageFailed
from delayserver.runtime.name_look import NameLook
from delayserver.runtime.runtime import Runtime
from delayserver.runtime.sequence_source import SequenceSource
from store.errors import DiskFullError, StoreError
from store.records.batches import FLAG_PUBLISHED, I64, MessageBatch, StoredBatch
from store.records.message_rows import ROWS_MAX, Row
from store.records.stored_rows import StoredRows, stored_batch

# Memory of one message besides its bytes, for the bound on bytes that wait for their sync.
ROW_OVERHEAD_BYTES = 120
# Rows that become one record: a quarter of what a record of a shared log may have.
RECORD_BYTES = 8 << 20
# The pause between two steps of zeros ahead of the store's end, as that of message_log.
WARM_PAUSE_MS = 20


class StoredPart(NamedTuple):
    """Durable messages: the sequence of the first one, and the position of each in the queue of its subject."""

    first_sequence: int
    positions: I64 | list[int]


PartDone: TypeAlias = Callable[[StoredPart | DelayServerError], None]
"""Gets the messages of one publish when they are durable, or its error."""


class Publishing:
    """Takes publishes in order. `run` is a task that keeps sequences and zeroed space ahead."""

    def __init__(
        self,
        broker: LocalBroker,
        sequences: SequenceSource,
        server_id: int,
        settings: StorageSettings,
        failed: Callable[[StorageFailed], None],
        runtime: Runtime,
    ) -> None:
        """`failed` is called if the store cannot be written or synced; the server must then stop."""
        self._broker = broker
        self._log = broker.core.state.files.store.log
        self._commit = broker.commit
        self._sequences = sequences
        self._server_id = server_id
        self._settings = settings
        self._failed = failed
        self._workers = runtime.workers
        self._clock = runtime.clock
        self._in_step = False
        self._parts: list[_Part] = []
        self._waiting_bytes = 0
        self._refusal: StorageFailed | None = None
        self._attend = trio.Event()
        # Held by `run` while it works on the files, and for good by `close`.
        self._ahead = trio.Lock()
        # The end of the store at which `run` looks at the space ahead again.
        self._attend_at = 0
        self._name = NameLook(self._log.require_name)
        self.groups = 0
        self.sync_us_max = 0

    # -- taking

    def submit_rows(self, rows: list[Row], done: PartDone) -> None:
        """Stores at least one message in row form. Raises StorageFailed, QueueFull."""
        size = ROW_OVERHEAD_BYTES * len(rows)
        for _, _, _, message_id, properties, body, _, order_key in rows:
            size += len(message_id) + len(properties) + len(body) + len(order_key)
        self._take(_Part(rows, None, done, size))

    def submit(self, batch: MessageBatch, done: PartDone) -> None:
        """Stores messages in columns as one record, all or nothing. Their sequences do not count. Raises as above."""
        size = len(batch.bodies) + len(batch.properties) + len(batch.ids) + len(batch.order_keys)
        self._take(_Part([], batch, done, size + ROW_OVERHEAD_BYTES * len(batch)))

    def _take(self, part: _Part) -> None:
        if self._refusal is not None:
            raise StorageFailed(self._refusal.message)
        if self._waiting_bytes and self._waiting_bytes + part.size_bytes > self._settings.gather_bytes_max:
            raise QueueFull("too many publishes wait for the disk", retry_after_ms=50)
        self._waiting_bytes += part.size_bytes
        self._parts.append(part)
        if not self._in_step:
            self._flush()

    def begin_step(self) -> None:
        """Begins a step of the event loop. Messages taken until `end_step` are one group."""
        self._in_step = True

    def end_step(self) -> bool:
        """Stores the messages of this step. False if some of them wait for a sync in a thread."""
        self._in_step = False
        if self._parts:
            self._flush()
        return not self._waiting_bytes

    # -- storing

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        size = sum([part.size_bytes for part in parts])
        try:
            self._store(parts, size)
        except DiskFullError as error:
            self._answer_all(parts, size, DiskFull(str(error), retry_after_ms=1000))
        except StoreError as error:
            self._refusal = StorageFailed(str(error))
            self._answer_all(parts, size, self._refusal)
            self._failed(self._refusal)

    def _store(self, parts: list[_Part], size: int) -> None:
        groups, count = ([parts], len(parts[0])) if len(parts) == 1 else (_folded(parts), sum(map(len, parts)))
        first, now_us = self._sequences.take(count), self._clock.now_us()
        batches, sequence = [], first
        for group in groups:
            batches.append(self._batch(group, sequence, now_us))
            sequence += len(batches[-1])
        log = self._log
        durably = self._settings.durability == "sync"
        inline = (
            durably
            and size <= self._settings.inline_sync_bytes_max
            and log.synced == log.end
            and self._commit.pace.quick
        )
        started_us = self._clock.monotonic_us()

        def stored(published: PublishedPositions) -> None:
            answers = _answers(groups, published.positions, first)
            ended_us = self._clock.monotonic_us()
            # With durability `os` the page cache counts as durable, but a start finds a new segment only by its name.
            if not inline and (durably or not log.is_named):
                self._commit.when_stored(published.end, partial(self._synced, answers, size))
                return
            self._name.require(ended_us)
            self._answer(answers, size)
            if inline:
                self._took(ended_us - started_us)
            else:
                self._commit.soon()

        published = self._broker.publish(batches, stored, durably=inline)
        self.groups += 1
        if published.end >= self._attend_at or self._sequences.needs_extension():
            self._attend.set()

    def _took(self, duration_us: int) -> None:
        """A small group was written and synced on the event loop."""
        self.sync_us_max = max(self.sync_us_max, duration_us)
        self._commit.pace.add_sync(duration_us)

    def _batch(self, group: list[_Part], sequence: int, now_us: int) -> StoredBatch | StoredRows:
        columns = group[0].columns
        if columns is not None:
            return _stored_columns(columns, sequence, now_us, self._server_id)
        rows = group[0].rows if len(group) == 1 else [row for part in group for row in part.rows]
        sequences = list(range(sequence, sequence + len(rows)))
        if len(rows) <= ROWS_MAX:
            return StoredRows(rows, sequences, sequences, now_us, self._server_id)
        return stored_batch(rows, sequences, sequences, now_us, self._server_id)

    def _synced(self, answers: list[tuple[_Part, StoredPart]], size: int, failure: Exception | None) -> None:
        if failure is None:
            self._answer(answers, size)
        elif isinstance(failure, DelayServerError):
            self._answer_all([part for part, _ in answers], size, failure)
        else:
            # Also on a full disk: consumers can see the messages and they may yet be synced, so they are not refused.
            self._answer_all([part for part, _ in answers], size, StorageFailed(str(failure)))

    def _answer(self, answers: list[tuple[_Part, StoredPart]], size: int) -> None:
        self._waiting_bytes -= size
        for part, stored in answers:
            part.done(stored)

    def _answer_all(self, parts: list[_Part], size: int, error: DelayServerError) -> None:
        self._waiting_bytes -= size
        for part in parts:
            part.done(error)

    # -- around

    async def run(self) -> None:
        """Reserves sequences and overwrites space ahead of the store's end with zeros, until cancelled. A node to which
        nothing is published does neither. Raises SyncFailedError."""
        while True:
            await self._attend.wait()
            self._attend = trio.Event()
            try:
                async with self._ahead:
                    if self._sequences.needs_extension():
                        await self._workers.run(self._sequences.extend)
                await self._warm()
            except DiskFullError:
                await self._clock.sleep_ms(1000)

    async def close(self) -> None:
        """Let `run` end what it does with the files and begin no more: they will be closed."""
        await self._ahead.acquire()

    async def _warm(self) -> None:
        log, ahead_bytes = self._log, self._settings.warm_ahead_bytes
        while ahead_bytes:
            async with self._ahead:
                step = log.warm_ahead(ahead_bytes)
                if step is None:
                    break
                await self._workers.run(partial(log.sync_warm, step))
                log.use_warm(step)
            await self._clock.sleep_ms(WARM_PAUSE_MS)
        # A new segment begins without zeros ahead of its end.
        self._attend_at = log.end + (ahead_bytes // 2 or 1 << 62)


class _Part(NamedTuple):
    """The messages of one publish: rows, or columns."""

    rows: list[Row]
    columns: MessageBatch | None
    done: PartDone
    size_bytes: int

    def __len__(self) -> int:
        return len(self.rows) if self.columns is None else len(self.columns)


def _answers(
    groups: list[list[_Part]], positions_of: Sequence[I64 | list[int]], first: int
) -> list[tuple[_Part, StoredPart]]:
    """The answer to each part. Sequences count from `first` on."""
    if len(groups) == len(groups[0]) == 1:  # a single producer waits for this
        return [(groups[0][0], StoredPart(first, positions_of[0]))]
    answers = []
    for group, positions in zip(groups, positions_of, strict=True):
        begin = 0
        for part in group:
            own = positions if len(part) == len(positions) else positions[begin : begin + len(part)]
            answers.append((part, StoredPart(first, own)))
            begin += len(part)
            first += len(part)
    return answers


def _folded(parts: list[_Part]) -> list[list[_Part]]:
    """Neighbours in row form become one record, up to a bound of bytes. So the order of the parts stays."""
    groups: list[list[_Part]] = []
    room = 0
    for part in parts:
        if groups and part.size_bytes <= room and part.columns is None and groups[-1][0].columns is None:
            groups[-1].append(part)
        else:
            groups.append([part])
            room = RECORD_BYTES
        room -= part.size_bytes
    return groups


def _stored_columns(batch: MessageBatch, sequence: int, now_us: int, server_id: int) -> StoredBatch:
    return StoredBatch.filled(
        len(batch),
        sequence=np.arange(sequence, sequence + len(batch), dtype=np.int64),
        due_ms=batch.due_ms,
        accepted_us=now_us,
        dispatched_us=now_us,
        expires_ms=batch.expires_ms,
        server_id=server_id,
        subject=batch.subject,
        ids_length=batch.ids_length,
        properties_length=batch.properties_length,
        bodies_length=batch.bodies_length,
        order_hash=batch.order_hash,
        tag=batch.tag,
        flags=FLAG_PUBLISHED,
        order_keys_length=batch.order_keys_length,
        ids=batch.ids,
        properties=batch.properties,
        bodies=batch.bodies,
        order_keys=batch.order_keys,
    )
