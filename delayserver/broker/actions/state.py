"""The state that the broker's parts share: queues, groups, store, progress. It decides nothing."""

from __future__ import annotations

from sortedcontainers import SortedDict

from delayserver.broker.actions.notes import ProgressNotes
from delayserver.broker.actions.policies import Letters, Policies
from delayserver.broker.actions.stored_messages import Damages, StoredMessages
from delayserver.broker.files.broker_files import BrokerFiles
from delayserver.broker.filters.filter import Filter
from delayserver.broker.limits import BrokerLimits
from delayserver.broker.queues.deadlines import Deadlines
from delayserver.broker.queues.groups import ConsumerGroup, Cursor, GroupKey
from delayserver.broker.queues.queue import ConsumeQueue, QueueKey
from delayserver.broker.queues.queue_table import QueueTable, RecoveredEnds
from delayserver.broker.queues.ranges import Range
from delayserver.broker.queues.windows import WindowTable
from delayserver.broker.redelivery import KeptBytes
from delayserver.broker.room import Room


class BrokerState:
    """The state of one broker.

    `recovered_ends`: the end of each queue at the last start. `capturing`: a checkpoint copies the queues in steps, so
    none of them may spill. `moves` counts seeks and removals. `removed`: groups removed since the last checkpoint, with
    the end of their retry queue, which older checkpoints still know. `undropped`: those of them whose removal is not durable
    yet. Their retry queues keep their messages, because a crash may bring the group back.
    """

    def __init__(
        self,
        files: BrokerFiles,
        limits: BrokerLimits,
        queues: QueueTable,
        windows: WindowTable,
        policies: Policies,
        room: Room,
    ) -> None:
        self.files = files
        self.limits = limits
        self.queues = queues
        self.windows = windows
        self.policies = policies
        self.room = room
        self.damages = Damages()
        self.messages = StoredMessages(files, queues, self.damages)
        self.notes = ProgressNotes()
        self.letters = Letters()
        self.groups = SortedDict()
        self.recovered_ends = RecoveredEnds()
        self.capturing = False
        self.deadlines = Deadlines()
        self.expired_messages = 0
        self.moves = 0
        self.removed: dict[GroupKey, int] = {}
        self.undropped: dict[GroupKey, int] = {}
        self.filters: dict[GroupKey, Filter] = {}
        self.filtered_messages = 0
        self.passed_over: set[GroupKey] = set()

    def queue(self, key: QueueKey) -> ConsumeQueue:
        """The queue; an empty one is made if there is none."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues.add(key, ConsumeQueue())
        return queue

    def group(self, key: GroupKey) -> ConsumerGroup:
        """The group; a new one is made if there is none, and starts at the earliest position kept."""
        group: ConsumerGroup | None = self.groups.get(key)
        if group is None:
            main, _ = self.queues.bounds((key[0], 0)) or (0, 0)
            group = ConsumerGroup(Cursor(main, self.moves), Cursor(self.retry_first(key), self.moves))
            self.groups[key] = group
            for cursor, of_retries in ((group.main, False), (group.retry, True)):
                if self.moves:  # a start must know which acks are of a group that was here before
                    self.notes.moved(key, of_retries, cursor)
                elif cursor.committed:  # and that the group never had what was before it
                    self.notes.moved_up(key, of_retries, cursor)
            self.notes.made(key)
        return group

    def move(self, key: GroupKey, main: int, retry: int) -> None:
        """Let a group go on at these positions of its two queues, as at its first pull. Its leases end."""
        self.moves += 1
        group = self.group(key)
        for cursor, position, of_retries in ((group.main, main, False), (group.retry, retry, True)):
            cursor.move_to(position, self.moves)
            self.notes.moved(key, of_retries, cursor)
        self.deadlines.forget(key)

    def recovered_moves(self, moves: int) -> None:
        """The progress log or the checkpoint knows this count of moves."""
        self.moves = max(self.moves, moves)

    def remove_group(self, key: GroupKey) -> None:
        """Forget a group. The messages in its retry queue go when that is durable."""
        self.moves += 1
        del self.groups[key]
        self.deadlines.forget(key)
        self.passed_over.discard(key)
        end = self.queues.end(key)
        self.removed[key] = self.undropped[key] = end
        self.notes.removed(key, end, self.moves)

    def removals_durable(self, removed: dict[GroupKey, int]) -> None:
        """No crash brings these groups back: drop the messages in their retry queues."""
        for key, end in removed.items():
            retry = self.queues.get(key)
            if retry is not None:
                retry.drop_below(end)
            if self.undropped.get(key) == end:
                del self.undropped[key]

    def retry_first(self, key: GroupKey) -> int:
        """Where a new group begins in its retry queue."""
        first, _ = self.queues.bounds(key) or (0, 0)
        return max(first, self.undropped.get(key, 0))

    def checkpoint_covers(self, removed: dict[GroupKey, int]) -> None:
        """A checkpoint is durable that was captured behind these removals."""
        for key, end in removed.items():
            if self.removed.get(key) == end:
                del self.removed[key]

    def expired(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Note and count a range that is done for a group because its messages have expired."""
        self.notes.expired(key, retry, start, stop)
        self.groups[key].count_expired(stop - start)
        self.expired_messages += stop - start

    def pass_over(self, key: GroupKey, gaps: list[Range], *, again: bool = False) -> None:
        """Count positions of the subject's queue that a filter keeps from a group. The progress log learns of them with
        the next acks, or with the next sync. `again`: positions in their place, which a restart left there."""
        group: ConsumerGroup = self.groups[key]
        if again:
            group.main.pass_over_again(gaps)
            for start, stop in gaps:  # at once: the log has them as handed out from their place
                self.notes.acked(key, False, start, stop)
        else:
            group.main.pass_over(gaps)
        count = sum([stop - start for start, stop in gaps])
        group.count_filtered(count)
        self.filtered_messages += count
        self.passed_over.add(key)

    def capture(self, *, on: bool) -> None:
        """A checkpoint begins or ends to copy the queues."""
        self.capturing = on

    def found_ahead(self, detail: str) -> None:
        """The progress log speaks of positions that the store does not have."""
        self.notes.found_ahead()
        self.damages.add(detail)

    def recovered(self) -> None:
        """A start has read all files."""
        self.recovered_ends = self.queues.ends()

    def kept(self, key: GroupKey) -> KeptBytes:
        """The count of a group's redelivery bytes on disk."""
        group: ConsumerGroup = self.groups[key]
        return group.kept(self.limits.redelivery_kept_ms)
