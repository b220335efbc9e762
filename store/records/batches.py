"""The kinds of rows that travel and rest: messages, cancels, outcomes. Columns only; no bytes, no files.

Times: `_ms` is milliseconds and `_us` microseconds since 1970 UTC. Sequences start at 1, so that 0 says "none".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from store.records.column_batch import ColumnBatch

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
U32 = NDArray[np.uint32]
U8 = NDArray[np.uint8]

KIND_MESSAGES, KIND_CANCELS, KIND_OUTCOMES, KIND_NAMES = 1, 2, 3, 4
KIND_STORED, KIND_PROGRESS, KIND_RUNS = 5, 6, 7  # of the embedded broker
KIND_LEDGER = 8
KIND_INDEX = 9  # of the embedded broker
KIND_FOLLOWED, KIND_TABLE, KIND_KEPT = 10, 11, 12  # of a member of a cluster

# Bit of `StoredBatch.flags`: a client published the message to this node. It has no window and was never handed over.
FLAG_PUBLISHED = 1
# Bit of `MessageBatch.flags`: a transaction that was prepared. It is never delivered; its commit puts another message in
# its place.
FLAG_PREPARED = 1
# `origin_sequence` of a row that is its own origin, before it has a sequence: the record that makes a schedule.
OWN_SEQUENCE = -(1 << 62)
# Bit of `StoredBatch.flags`, beside the one before: the node itself stored the message, as a dead letter of a consumer
# group. `window_ms` is the place of the message that was given up, as `dead_letter_burial.py` of the broker packs it.
FLAG_DEAD_LETTER = 2


@dataclass(frozen=True, slots=True)
class MessageBatch(ColumnBatch, kind=KIND_MESSAGES, version=2, steps={"sequence"}, fields_before=(15,)):
    """Accepted messages, in message_log (arrival order) and in schedule_log (the order of their sequence).

    `expires_ms` 0: never. `origin_sequence` not 0: an internal record (retry, redispatch) of that message for
    `target_group`, outside the balance. `duplicate_of` not 0: suppressed copy of that sequence (set by the replayer).
    `id_hash` 0: no id from the client. `replaces_sequence` and `replaces_due_ms` not 0: the same record cancels that
    message. `order_hash` is that of the order key as `hash_ids` makes it, 0 without one. `tag` is a code of names.log,
    0 without one. `flags`: `FLAG_PREPARED`.
    """

    sequence: I64
    due_ms: I64
    accepted_us: I64
    expires_ms: I64
    origin_sequence: I64
    duplicate_of: I64
    replaces_sequence: I64
    replaces_due_ms: I64
    id_hash: U64
    subject: U32
    target_group: U32
    redelivery: U32
    ids_length: U32
    properties_length: U32
    bodies_length: U32
    order_hash: U64
    tag: U32
    flags: U32
    order_keys_length: U32
    ids: memoryview
    properties: memoryview
    bodies: memoryview
    order_keys: memoryview


@dataclass(frozen=True, slots=True)
class CancelBatch(ColumnBatch, kind=KIND_CANCELS, version=3, steps={"sequence"}, fields_before=(4, 6)):
    """Cancels and rollbacks as control records of message_log: the message is named by its sequence and due time.

    `replaced_by_sequence` and `replaced_by_due_ms` not 0: a reschedule or a commit put that message in its place. Such a
    cancel lies in the record of the new message, so a file holds no cancel with these fields. Nor does one hold
    `origin_sequence`, which is not 0 where a later timer of a transaction replaced an earlier one. `outcome` is the code of
    the outcome that the message gets, 0 for `cancelled`.
    """

    sequence: I64
    due_ms: I64
    requested_us: I64
    subject: U32
    replaced_by_sequence: I64
    replaced_by_due_ms: I64
    outcome: U8
    origin_sequence: I64


@dataclass(frozen=True, slots=True)
class OutcomeBatch(ColumnBatch, kind=KIND_OUTCOMES, version=2, steps={"sequence"}, fields_before=(14,)):
    """Outcomes of messages, in dispatch_log. `outcome` holds the protocol's codes (4 delivered to 8 dead-lettered, and 12
    rolled back).

    Stage times in microseconds: `loaded_us` entered the wheel, `released_us` due by the wheel, `queued_us` taken from
    the group's queue, `dispatched_us` handed to the broker (lateness counts to here), `settled_us` outcome known.
    `origin_sequence`: for deduplicated rows the original; for internal records the message they belong to.
    `replaced_by_sequence` and `replaced_by_due_ms`: for cancelled rows the message that a reschedule or the commit of a
    transaction put in its place.
    """

    sequence: I64
    due_ms: I64
    accepted_us: I64
    loaded_us: I64
    released_us: I64
    queued_us: I64
    dispatched_us: I64
    settled_us: I64
    origin_sequence: I64
    subject: U32
    broker_group: U32
    attempts: U32
    redelivery: U32
    outcome: U8
    replaced_by_sequence: I64
    replaced_by_due_ms: I64


@dataclass(frozen=True, slots=True)
class NameBatch(ColumnBatch, kind=KIND_NAMES, version=1, steps={"code"}):
    """Interned names: code (counts up from 1), kind (0 subject, 1 consumer group, 2 broker group, 3 tag, 4 of the server)
    and UTF-8 text."""

    code: U32
    name_kind: U32
    names_length: U32
    names: memoryview


@dataclass(frozen=True, slots=True)
class StoredBatch(ColumnBatch, kind=KIND_STORED, version=2, steps={"sequence", "position"}, fields_before=(15,)):
    """Delivered messages in the broker's store, grouped by (subject, target_group).

    `position` counts up from 0 within the consume queue of (subject, target_group), so the store alone can rebuild
    every queue. `server_id` is the same on every row; `window_ms`, the start of the schedule window, need not be. With
    `sequence` and `redelivery` they are the key by which a node recognises a repeated hand-off. `target_group` 0: for
    every consumer group; otherwise a retry for that one. `order_hash`, `tag`: as in `MessageBatch`. `flags`:
    `FLAG_PUBLISHED`.
    """

    sequence: I64
    position: I64
    due_ms: I64
    accepted_us: I64
    dispatched_us: I64
    expires_ms: I64
    origin_sequence: I64
    server_id: I64
    window_ms: I64
    subject: U32
    target_group: U32
    redelivery: U32
    ids_length: U32
    properties_length: U32
    bodies_length: U32
    order_hash: U64
    tag: U32
    flags: U32
    order_keys_length: U32
    ids: memoryview
    properties: memoryview
    bodies: memoryview
    order_keys: memoryview


@dataclass(frozen=True, slots=True)
class ProgressBatch(ColumnBatch, kind=KIND_PROGRESS, version=3, fields_before=(7, 8)):
    """Progress of consumer groups, in the broker's progress log: positions `start` to `stop` (not included) of a queue.

    `retry` 1: of the group's retry queue. `change` 0: acked; `times` of the messages were not acked by a consumer but
    had expired (a row of no positions only counts them). `change` 1: handed out before, `times` times, from `start` up
    to `stop` (so that attempts go on counting after a restart); a row from 0 on makes earlier ones void. `change` 3:
    handed out `times` times from their place, and not leased there by now as far as the log knows; a row of `change` 2
    before it says until when they wait (`stop`, milliseconds since 1970). `change` 4: redeliveries of the group took
    `stop` bytes of disk in the time that began at `start` (milliseconds since 1970). `change` 5: the group goes on at
    `stop`, and earlier rows of it and this queue are void; `times` counts such moves. `change` 6: the group was
    removed, and its earlier rows are void, as are the messages below `stop` in its retry queue; `times` counts moves.
    `change` 7: handed out for the `times`th time, and leased. `change` 8: handed out `times` times, and not leased.
    Programs before these two wrote `change` 1. `change` 10: a record that replaces them may stand in message_log; a row
    of `change` 9 before it says from which offset on (`stop`). `change` 11: only in a member of a cluster, which wrote all
    rows before it; its store ends at `start`, its message_log was followed up to `stop`, and `next_sequence` is above the
    sequences of both.
    `anew` is 1 on rows of change 5 and 6.
    """

    start: I64
    stop: I64
    subject: U32
    consumer_group: U32
    times: U32
    retry: U8
    change: U8
    anew: U8
    next_sequence: I64


@dataclass(frozen=True, slots=True)
class RunBatch(ColumnBatch, kind=KIND_RUNS, version=1, steps={"position"}):
    """Index rows of one consume queue: from `position` on, `row_count` messages stand in the stored record at
    `store_offset`, from its row `row_start` on."""

    position: I64
    store_offset: I64
    row_start: U32
    row_count: U32


@dataclass(frozen=True, slots=True)
class LedgerBatch(ColumnBatch, kind=KIND_LEDGER, version=2, fields_before=(10,)):
    """Counts of a window that is about to be deleted: a row for each subject, all rows of a window in one record.

    `coarse` 1: the files of a coarse day, which share `start_ms` with the day's first minute. `accepted` leaves
    internal records out; `last_sequence` is the highest sequence of the window.
    """

    start_ms: I64
    subject: U32
    coarse: U32
    accepted: I64
    delivered: I64
    cancelled: I64
    expired: I64
    deduplicated: I64
    dead_lettered: I64
    last_sequence: I64
    rolled_back: I64


@dataclass(frozen=True, slots=True)
class IndexBatch(ColumnBatch, kind=KIND_INDEX, version=1):
    """One bucket of an index of a segment of the broker's store, in the order of `hash` (a 64-bit hash as a signed number).
    The record at store offset `place` has a message of this hash in its row `row`.

    The first record of an index file is its directory: a row for each bucket, with the bucket's first `hash`, the `place` of
    the bucket's record in the index file, and its number of rows.
    """

    hash: I64
    place: I64
    row: U32


@dataclass(frozen=True, slots=True)
class FollowedBatch(ColumnBatch, kind=KIND_FOLLOWED, version=4, fields_before=(6, 7, 8)):
    """How far a member of a cluster has followed its shared log: in its message_log, behind the records up to there. A row
    for each record of the shared log that brought some of them, one before and one behind each claim, one behind each
    barrier, and the last row for the place behind all.

    `position` is the next one to read. `epoch`, `record_index`, `member` and `instance` are those of the last record before
    it that counts. Nothing that is due later than `horizon_ms` was attempted before it. `records`: so many records of
    message_log came with that record of the shared log; 0 in rows of other places. `wall_us` is when that last record was
    written, by the clock of its writer; 0 where it is not known. `barrier` is the version of the shared log there."""

    position: I64
    epoch: U32
    record_index: U64
    member: U32
    instance: U64
    horizon_ms: I64
    records: U32
    wall_us: I64
    barrier: U32


@dataclass(frozen=True, slots=True)
class TableBatch(ColumnBatch, kind=KIND_TABLE, version=1):
    """Small tables of a shard, each the whole file that all members have from this record on: `table` 1 the policies of
    consumer groups, 2 the tokens of clients."""

    table: U32
    contents_length: U32
    contents: memoryview


@dataclass(frozen=True, slots=True)
class KeptBatch(ColumnBatch, kind=KIND_KEPT, version=1):
    """What the stores of all members of a shard keep: the record whose first message has this position in the queue of a
    subject and target group, and all that stands behind it. What stands before it is given up. One row."""

    position: I64
    subject: U32
    target_group: U32
