"""The consumer groups of a broker: which there are, where they go on, and what each has done without an ack."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from sortedcontainers import SortedDict

from delayserver.broker.actions.notes import ProgressNotes
from delayserver.broker.broker_limits import BrokerLimits
from delayserver.broker.queues.deadlines import Deadlines
from delayserver.broker.queues.group_cursors import GroupCursors, GroupKey
from delayserver.broker.queues.queue_table import QueueTable
from delayserver.broker.queues.ranges import Range
from delayserver.broker.redelivery_policy import KeptBytes


class Removals:
    """Groups that were removed, each with the end of its retry queue. `GroupTable` adds them, `Durability` ends them.

    `known`: since the last checkpoint, because older checkpoints still have these groups. `undropped`: those whose removal
    is not durable. Their retry queues keep their messages, because a crash may bring the group back."""

    def __init__(self, queues: QueueTable) -> None:
        self._queues = queues
        self.known: dict[GroupKey, int] = {}
        self.undropped: dict[GroupKey, int] = {}

    def add(self, key: GroupKey) -> int:
        """A group is removed. Returns the end of its retry queue."""
        end = self.known[key] = self.undropped[key] = self._queues.end(key)
        return end

    def durable(self, removed: dict[GroupKey, int]) -> None:
        """Drops the messages in the retry queues of these groups, because no crash brings the groups back."""
        for key, end in removed.items():
            retry = self._queues.get(key)
            if retry is not None:
                retry.drop_below(end)
            if self.undropped.get(key) == end:
                del self.undropped[key]

    def for_checkpoint(self) -> dict[GroupKey, int]:
        """Those that a checkpoint covers which is captured now."""
        return {key: end for key, end in self.known.items() if key not in self.undropped}

    def checkpoint_covers(self, removed: dict[GroupKey, int]) -> None:
        """Forgets these removals, because a checkpoint that was captured behind them is durable."""
        for key, end in removed.items():
            if self.known.get(key) == end:
                del self.known[key]

    def retry_first(self, key: GroupKey) -> int:
        """Where a new group begins in its retry queue."""
        first, _ = self._queues.bounds(key) or (0, 0)
        return max(first, self.undropped.get(key, 0))


class GroupTable:
    """The groups in the order of their codes. They are made and removed here alone.

    `moves` counts seeks and removals. `deadlines` has the group whose leases end next: who leases messages notes it."""

    def __init__(self, queues: QueueTable, notes: ProgressNotes, limits: BrokerLimits) -> None:
        self._queues = queues
        self._notes = notes
        self._limits = limits
        self._groups: SortedDict[GroupKey, GroupCursors] = SortedDict()
        # The group, or None. Each pull and each ack asks, so it is the dict's own.
        self.get: Callable[[GroupKey], GroupCursors | None] = self._groups.get
        self.removals = Removals(queues)
        self.deadlines = Deadlines()
        self.moves = 0
        # Since the start, of all groups.
        self.expired_messages = 0
        self.filtered_messages = 0
        # Groups whose filters passed over messages since the last sync.
        self._passed_over: set[GroupKey] = set()

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(self._groups)

    def __contains__(self, key: GroupKey) -> bool:
        return key in self._groups

    def __getitem__(self, key: GroupKey) -> GroupCursors:
        group: GroupCursors = self._groups[key]
        return group

    def items(self) -> Iterable[tuple[GroupKey, GroupCursors]]:
        """All groups with their keys."""
        items: Iterable[tuple[GroupKey, GroupCursors]] = self._groups.items()
        return items

    def values(self) -> Iterable[GroupCursors]:
        """All groups."""
        return [group for _, group in self.items()]

    def between(self, low: GroupKey, high: GroupKey, *, inclusive: bool) -> Iterator[GroupKey]:
        """The keys of the groups from `low` to `high`. `inclusive`: these two may be among them."""
        keys: Iterator[GroupKey] = self._groups.irange(low, high, inclusive=(inclusive, inclusive))
        return keys

    def admits(self, key: GroupKey) -> bool:
        """Whether this group may pull: it exists, or there is room for one more."""
        return key in self._groups or len(self._groups) < self._limits.groups_max

    def leased(self, key: GroupKey) -> int:
        """How many messages a group has leased."""
        group = self.get(key)
        return 0 if group is None else group.main.leased() + group.retry.leased()

    def kept(self, key: GroupKey) -> KeptBytes:
        """The count of a group's redelivery bytes on disk."""
        return self[key].kept(self._limits.redelivery_kept_ms)

    def get_or_make(self, key: GroupKey) -> GroupCursors:
        """Returns the group. Makes it if there is none; a new group starts at the earliest position kept."""
        group = self.get(key)
        if group is None:
            main, _ = self._queues.bounds((key[0], 0)) or (0, 0)
            group = self.recover(key, main, self.removals.retry_first(key), self.moves)
            for cursor, of_retries in ((group.main, False), (group.retry, True)):
                if self.moves:  # a start must know which acks are of a group that was here before
                    self._notes.add_moved(key, of_retries, cursor)
                elif cursor.committed:  # and that the group never had what was before it
                    self._notes.add_moved_up(key, of_retries, cursor)
            self._notes.add_group(key)
        return group

    def move(self, key: GroupKey, main: int, retry: int) -> None:
        """Let a group go on at these positions of its two queues, as at its first pull. Its leases end."""
        self.moves += 1
        group = self.get_or_make(key)
        for cursor, position, of_retries in ((group.main, main, False), (group.retry, retry, True)):
            cursor.move_to(position, self.moves)
            self._notes.add_moved(key, of_retries, cursor)
        self.deadlines.forget(key)

    def remove(self, key: GroupKey) -> None:
        """Remove a group that exists. Durable after the next sync; then the messages in its retry queue go."""
        self.moves += 1
        del self._groups[key]
        self.deadlines.forget(key)
        self._passed_over.discard(key)
        self._notes.add_removed(key, self.removals.add(key), self.moves)

    # What needs no ack

    def count_expired(self, key: GroupKey, retry: bool, start: int, stop: int) -> None:
        """Notes and counts a range that is done for a group because its messages have expired."""
        self._notes.add_expired(key, retry, start, stop)
        self[key].count_expired(stop - start)
        self.expired_messages += stop - start

    def pass_over(self, key: GroupKey, gaps: list[Range], *, again: bool = False) -> None:
        """Count positions of the subject's queue that a filter keeps from a group. The progress log learns of them with
        the next acks, or with the next sync. `again`: positions in their place, which a restart left there."""
        group = self[key]
        if again:
            group.main.pass_over_again(gaps)
            for start, stop in gaps:  # at once: the log has them as handed out from their place
                self._notes.add_acked(key, False, start, stop)
        else:
            group.main.pass_over(gaps)
        count = sum([stop - start for start, stop in gaps])
        group.count_filtered(count)
        self.filtered_messages += count
        self._passed_over.add(key)

    def take_passed_over(self) -> list[tuple[GroupKey, Range]]:
        """How far the filters of groups passed over messages, once: for the progress log."""
        spans = [(key, self[key].main.passed_to_log()) for key in self._passed_over]
        self._passed_over.clear()
        return [(key, span) for key, span in spans if span is not None]

    # At a start

    def recover(self, key: GroupKey, main: int, retry: int, moves: int = 0) -> GroupCursors:
        """Add a group that goes on at these positions of its two queues."""
        group = self._groups[key] = GroupCursors(main, retry, moves)
        return group

    def recover_removal(self, key: GroupKey, retry_end: int) -> None:
        """Removes a group whose removal the progress log has. Its retry queue ended here. An older checkpoint, or the
        store behind it, may know that queue still."""
        self.removals.known[key] = retry_end
        self._groups.pop(key, None)
        retry = self._queues.get(key)
        if retry is not None:
            retry.drop_below(retry_end)

    def recover_moves(self, moves: int) -> None:
        """Takes the count of moves that the progress log or the checkpoint has."""
        self.moves = max(self.moves, moves)
