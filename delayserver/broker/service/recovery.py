"""Opening the broker's files after a stop or a crash: checkpoint, then the store behind it, then the progress log.

1. The checkpoint gives the queues as of a store offset. Without a checkpoint they are made from the whole store.
2. A torn tail of the store is cut off. The columns behind the offset give the rest of the queues and windows.
3. The progress log gives the acks of each group. Leased messages are deliverable again.
"""

from __future__ import annotations

from delayserver.broker.actions.block_cuts import give_up, may_pass
from delayserver.broker.actions.dead_letter_burial import ack_originals, has_letters
from delayserver.broker.actions.given_up import FirstKept, GivenUpByLog
from delayserver.broker.actions.group_table import GroupTable
from delayserver.broker.actions.notes import ProgressNotes
from delayserver.broker.actions.policy_table import LettersToSync, PolicyTable
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.actions.stored_messages import Damages, StoredMessages
from delayserver.broker.actions.stored_records import add_record
from delayserver.broker.broker_limits import NACK_DELAY_MS_MAX, BrokerLimits
from delayserver.broker.disk_room import DiskRoom
from delayserver.broker.files.broker_checkpoint import BrokerCheckpoint, decode_checkpoint
from delayserver.broker.files.broker_files import BrokerFiles, close_files
from delayserver.broker.files.policies_file import read_policies
from delayserver.broker.files.progress_log import (
    ACKED,
    COUNTED,
    FROM,
    GIVEN_UP,
    HANDED,
    IN_PLACE,
    KEPT,
    MOVED,
    REMOVED,
    RETURNING,
    SEEN,
    UNTIL,
    AppliedTo,
    ProgressLog,
    ProgressRow,
    ProgressRows,
)
from delayserver.broker.files.store import BrokerStore, StoredColumns
from delayserver.broker.queues.delivery_id import Epoch
from delayserver.broker.queues.group_cursors import GroupCursors
from delayserver.broker.queues.places import READY, WAITING, Place
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey
from delayserver.broker.queues.queue_table import QueueTable
from delayserver.broker.queues.run_blocks import RunBlocks
from delayserver.broker.queues.window_table import WindowTable
from delayserver.broker.reads import Reads
from store.disk.filesystem import FileSystem, read_twice, read_whole
from store.errors import CorruptionError, FormatError, UnreadableError
from store.logs.message_log_opening import cut_log
from store.records.record import HEADER_BYTES
from store.records.segment import FILE_HEADER_BYTES, FILE_STORE

# Other members have all that one has lost. One that led without it would take it from them too.
MEMBER_REMEDY = (
    "Put it back; or make the directory of this member anew: restore a backup of its shard, or begin with none"
)


def recover_broker(
    fs: FileSystem,
    directory: str,
    server_id: int,
    limits: BrokerLimits,
    now_us: int,
    lease_us: int,
    room: DiskRoom,
    *,
    patient: bool = False,
    shared: bool = False,
    begun: bool = False,
) -> tuple[BrokerState, ProgressReplay]:
    """Open or create the files; returns the state, and the replay of its progress: it has all rows and is not finished. With
    `patient` raises UnreadableError where the disk cannot read the store: it may read that later. Without, its messages are
    passed over. `shared`: of a member of a cluster; the files are cut to their last mark. `begun`: message_log has records,
    so a member has written such a mark.

    Raises FormatError for files of another server, StoreError if the disk fails, and CorruptionError if a file is
    missing and messages would silently be lost or come again."""
    fs.make_directory(directory)
    _refuse_lost_files(fs, directory, shared=shared)
    checkpoint = _read_checkpoint(fs, f"{directory}/checkpoint", server_id)
    # Without a checkpoint the time gives the epoch, so that it differs from the epochs of old delivery ids.
    epoch = checkpoint.epoch + 1 if checkpoint else now_us // 1_000_000
    reads = Reads()
    progress = ProgressLog.open(fs, f"{directory}/progress.log", server_id)
    if shared:
        _cut_to_mark(fs, directory, server_id, progress, begun=begun)
    stored = checkpoint.store_offset if checkpoint else 0
    store = BrokerStore.open(fs, f"{directory}/store", server_id, limits, stored, reads)
    if (
        shared and progress.applied is None
    ):  # from the first start on, so that no other directory is taken for a member's
        progress.write_applied(ProgressRows(), AppliedTo(0, store.end, 1), anew=False)
    complete = checkpoint is not None
    if checkpoint is None or checkpoint.store_offset > store.end:
        checkpoint = BrokerCheckpoint(server_id, moves=checkpoint.moves if checkpoint else 0)
    policies = read_policies(fs, directory, server_id)
    # Segments written behind the checkpoint have an unknown age, so they age from now on. The clock may be behind now.
    newest_us = max([now_us, *checkpoint.segment_newest_us.values()])
    files = BrokerFiles(
        fs,
        directory,
        server_id,
        Epoch(epoch),
        store,
        RunBlocks.open(fs, f"{directory}/queue", server_id, limits, checkpoint.blocks_offset, reads),
        progress,
        reads,
        {
            base: checkpoint.segment_newest_us.get(base, newest_us) if end <= checkpoint.store_offset else newest_us
            for base, end, _ in store.log.segments()
        },
    )
    queues, damages, notes = QueueTable(checkpoint.queues), Damages(), ProgressNotes(files.progress, shared=shared)
    state = BrokerState(
        files,
        limits,
        room,
        queues,
        WindowTable(limits.window_extents_max, checkpoint.windows),
        PolicyTable(fs, directory, server_id, limits, policies.rows, policies.damage is not None),
        damages,
        StoredMessages(files, queues, damages),
        notes,
        LettersToSync(),
        GroupTable(queues, notes, limits),
        GivenUpByLog(),
    )
    for text in (
        *([] if policies.damage is None else [policies.damage]),
        *[f"{found.path}: {found.damage.detail}" for found in store.damages],
        *[f"{directory}/progress.log: {damage.detail}" for damage in files.progress.damages],
    ):
        damages.add(text)
    state.groups.recover_moves(checkpoint.moves)
    try:
        if patient:
            store.log.require_readable()
        letters = _scan(state, checkpoint, patient=patient)
    except UnreadableError:
        close_files(files)
        raise
    replay = ProgressReplay(state, letters, complete=complete)
    for row in state.files.progress.rows():
        replay.apply(row, now_us, lease_us)
    give_up(state)
    return state, replay


def _refuse_lost_files(fs: FileSystem, directory: str, *, shared: bool) -> None:
    """Raise CorruptionError if the store or the progress log is missing and the other files show that it was there.

    Both exist before the first checkpoint, message and ack. Only the operator may decide to go on without one of them,
    by a step that the error names. A member of a cluster goes on without neither: the others have all of it."""
    store, progress, checkpoint = f"{directory}/store", f"{directory}/progress.log", f"{directory}/checkpoint"
    has_store = any(name.endswith(".log") for name in fs.listdir(store))
    has_progress = fs.exists(progress)
    if not has_store and (fs.exists(checkpoint) or (has_progress and fs.size(progress) > FILE_HEADER_BYTES)):
        remedy = (
            f"Put it back; or remove all of {directory}, start with an empty broker, and let "
            "`delayserver recover redispatch` deliver again"
        )
        detail = "the store is missing, and with it all that was delivered and not consumed yet"
        raise CorruptionError(store, 0, f"{detail}. {MEMBER_REMEDY if shared else remedy}")
    if not has_progress and (fs.exists(checkpoint) or _has_messages(fs, store)):
        remedy = (
            "Put it back; or make an empty file of this name: then every group gets once more all that the store keeps"
        )
        detail = "the progress log is missing, and with it what every consumer group has acked"
        raise CorruptionError(progress, 0, f"{detail}. {MEMBER_REMEDY if shared else remedy}")


def _cut_to_mark(fs: FileSystem, directory: str, server_id: int, progress: ProgressLog, *, begun: bool) -> None:
    """Cut the files of a member to what they had at its last mark. Its store may have more that never came into the log of
    its shard. Raises FormatError if a server that was no member wrote them, CorruptionError if they are gone."""
    progress.cut_to_mark()
    store, mark = f"{directory}/store", progress.applied
    if mark is not None:
        cut_log(fs, store, server_id, FILE_STORE, mark.store_end)
    elif progress.length_bytes > FILE_HEADER_BYTES or _has_messages(fs, store):
        raise FormatError(directory, "has messages of a server that was no member of a cluster")
    elif begun:
        raise CorruptionError(directory, 0, f"what this member knew of its consumers is missing. {MEMBER_REMEDY}")


def _has_messages(fs: FileSystem, store: str) -> bool:
    names = sorted(name for name in fs.listdir(store) if name.endswith(".log"))
    if len(names) != 1:
        return len(names) > 1
    file = fs.open(f"{store}/{names[0]}", write=False)
    try:
        return any(read_twice(file, FILE_HEADER_BYTES, HEADER_BYTES))
    finally:
        file.close()


def _read_checkpoint(fs: FileSystem, path: str, server_id: int) -> BrokerCheckpoint | None:
    try:
        return decode_checkpoint(read_whole(fs, path), server_id)
    except FileNotFoundError:
        return None


def _scan(state: BrokerState, checkpoint: BrokerCheckpoint, *, patient: bool) -> list[StoredColumns]:
    """Bring queues and windows from the checkpoint to the store's end, and drop the records that retention removed.

    Returns the records of dead letters whose messages may lack their acks."""
    store, offset = state.files.store, checkpoint.store_offset
    letters: list[StoredColumns] = []
    if checkpoint.letters_offset is not None:
        before = store.readable_columns(checkpoint.letters_offset, offset, state.damages.add, patient=patient)
        letters += [record for record in before if has_letters(record)]
    state.queues.retire(store.first)
    state.windows.retire(store.first)
    for record in store.readable_columns(offset, store.end, state.damages.add, patient=patient):
        for queue in add_record(state, record):
            queue.spill_above(state.limits.queue_runs_max, state.files.blocks)
        if has_letters(record):
            letters.append(record)
    return letters


class ProgressReplay:
    """Brings groups to where the rows of a progress log say that they are."""

    def __init__(self, state: BrokerState, letters: list[StoredColumns], *, complete: bool) -> None:
        """`letters`: dead letters that may lack the acks of their messages. `complete`: a checkpoint named all queues, also
        those whose messages were removed."""
        self._state = state
        self.letters = letters
        self._complete = complete
        # Queues that have acks and no message.
        self._lost: dict[QueueKey, int] = {}
        # What the row before said of the one that follows.
        self._until_ms = 0
        self._offset = 0

    def apply(self, row: ProgressRow, now_us: int, lease_us: int) -> None:
        """The next row of the log, in its order."""
        state = self._state
        if row.change == UNTIL:
            self._until_ms = row.stop
        elif row.change == IN_PLACE:
            # After a wall clock was set back, no message waits for longer than a nack can ask for.
            rest_us = min(self._until_ms * 1000 - now_us, NACK_DELAY_MS_MAX * 1000)
            waits = (WAITING, lease_us + rest_us, self._until_ms) if rest_us > 0 else (READY, 0, 0)
            group = _group(state, row)
            stop = _stored_stop(state, row)
            group.cursor(row.retry).restore(Place(row.start, stop, row.times, *waits))
            self._until_ms = 0
        elif row.change == FROM:
            self._offset = row.stop
        elif row.change == RETURNING:
            place = Place(row.start, _stored_stop(state, row), 0, READY, 0, self._offset)
            _group(state, row).cursor(row.retry).restore_return(place)
        elif row.change == REMOVED:
            state.groups.recover_removal((row.subject, row.group), row.stop)
            state.groups.recover_moves(row.times)
        elif row.change == GIVEN_UP:
            state.given_up.keep(FirstKept(row.subject, row.group, row.stop))
        else:
            _apply(state, row, self._lost)

    def finish(self, now_us: int) -> None:
        """All rows were applied: what was leased is deliverable again."""
        state = self._state
        ack_originals(state, self.letters)
        if self._complete:
            for (subject, target), stop in self._lost.items():
                state.damages.add(
                    f"acked up to {stop} of subject {subject}, group {target}, and nothing of it is stored: "
                    "messages are missing"
                )
        for key, group in state.groups.items():
            if group.redelivery_bytes:
                state.groups.kept(key).forget(now_us // 1000)
            for cursor, queue_key in ((group.main, (key[0], 0)), (group.retry, key)):
                bounds = state.queues.bounds(queue_key)
                if bounds is not None:
                    cursor.skip_to(bounds[0], lagging=may_pass(state))
                cursor.restart(bounds[1] if bounds else 0)
                deadline_us = cursor.next_deadline_us()
                if deadline_us is not None:
                    state.groups.deadlines.note(key, deadline_us)
        state.queues.keep_ends()


def _group(state: BrokerState, row: ProgressRow) -> GroupCursors:
    """The group of a row; the first row of a group makes it."""
    key = (row.subject, row.group)
    group = state.groups.get(key)
    if group is None:
        # Where retention may pass a group, the rows alone say how far it came, and so what it lost.
        bounds = [None if may_pass(state) else state.queues.bounds((row.subject, target)) for target in (0, row.group)]
        firsts = [0 if known is None else known[0] for known in bounds]
        group = state.groups.recover(key, *firsts)
    return group


def _apply(state: BrokerState, row: ProgressRow, lost: dict[QueueKey, int]) -> None:
    group = _group(state, row)
    cursor = group.cursor(row.retry)
    if row.change == SEEN:
        cursor.seen.restore_step(row.start, row.stop, row.times)
    elif row.change in (HANDED, COUNTED):
        cursor.restore_count(row.start, _stored_stop(state, row), row.times, leased=row.change == HANDED)
    elif row.change == KEPT:
        state.groups.kept((row.subject, row.group)).add(row.start, row.stop)
    if row.change not in (ACKED, MOVED):
        return
    queue = _queue_of(state, (row.subject, row.group if row.retry else 0), row.stop, lost)
    end = 0 if queue is None else queue.end
    if row.stop > end:
        state.notes.mark_ahead()
        state.damages.add(f"acked up to {row.stop}, stored up to {end}: durable messages are missing")
    if row.change == MOVED:
        cursor.move_to(min(row.stop, end), row.times)
        state.groups.recover_moves(row.times)
    else:
        group.count_expired(row.times)
        cursor.ack(row.start, row.stop, end)


def _stored_stop(state: BrokerState, row: ProgressRow) -> int:
    """Where the stored positions of a row about hand-outs end. A loss of power may have taken messages that it names, since
    it does not wait for the store's sync. Then the log is replaced before other messages get their positions."""
    bounds = state.queues.bounds((row.subject, row.group if row.retry else 0))
    end = 0 if bounds is None else bounds[1]
    if row.stop > end:
        state.notes.mark_ahead()
    return min(row.stop, end)


def _queue_of(state: BrokerState, key: QueueKey, stop: int, lost: dict[QueueKey, int]) -> ConsumeQueue | None:
    """The queue of a row, None if it never had a message. A queue that lost messages continues where its acks end, and
    is noted in `lost`. So no position is used twice."""
    queue = state.queues.get(key)
    if queue is None and stop > 0:
        queue = state.queues.add(key, ConsumeQueue(stop, stop))
        lost[key] = stop
    elif queue is not None and queue.first == queue.end < stop:
        queue.go_on_at(stop)
        lost[key] = stop
    return queue
