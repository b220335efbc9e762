"""The rows in memory of one broker group: those that wait for an attempt, and those of running attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver.config.settings import DispatchSettings
from delayserver.runtime.clock import Clock
from delayserver.runtime.marks import Mark
from delayserver.state.memory.group_queue import GroupQueue
from delayserver.state.memory.internal_groups import INTERNAL_CODES
from delayserver.state.memory.node_health import NodeHealth
from delayserver.state.memory.spilled import Spilled
from store.records.batches import I64
from store.records.membership import is_member
from wheel.keys import KEY_LOWEST, Key

# A group whose nodes are all down keeps only this many rows in memory.
FAILING_QUEUE_ROWS_MAX = 65_536


@dataclass(slots=True)
class GroupCounters:
    """Counts of a group since the start."""

    delivered: int = 0
    attempts_failed: int = 0
    duplicates_suppressed: int = 0
    uncertain_failovers: int = 0
    maybe_delivered_twice: int = 0
    failed_over: int = 0
    dropped_from_memory: int = 0

    def count_failed_attempt(self) -> None:
        """Counts an attempt of which a node did not take all."""
        self.attempts_failed += 1

    def count_delivered(self, rows: int, duplicates: int, maybe_twice: int) -> None:
        """Counts rows that a node has. It had the `duplicates` before; another node may have `maybe_twice` too."""
        self.delivered += rows
        self.duplicates_suppressed += duplicates
        self.maybe_delivered_twice += maybe_twice

    def count_failed_over(self, rows: int, uncertain: int) -> None:
        """Counts rows that went to a fallback group."""
        self.failed_over += rows
        self.uncertain_failovers += uncertain

    def count_dropped(self, rows: int) -> None:
        """Counts rows that left memory."""
        self.dropped_from_memory += rows


class GroupRows:
    """The queue of a group, its attempts in flight, and the windows whose rows had to leave memory. For the event loop.
    Writers: `Queueing` for the queue, the broker group for the attempts."""

    def __init__(
        self,
        name: str,
        code: int,
        nodes: Sequence[NodeHealth],
        settings: DispatchSettings,
        clock: Clock,
        *,
        alone: bool = False,
    ) -> None:
        """`alone`: there is one node on all routes of this group. A message that this node does not have, no node has."""
        self.name = name
        self.code = code
        self.queue = GroupQueue()
        self.spilled = Spilled()
        self.counters = GroupCounters()
        # Workers that have nothing to do.
        self.idle = trio.lowlevel.ParkingLot()
        # The last key that the wheel released to the group.
        self._released_to = KEY_LOWEST
        self._nodes = tuple(nodes)
        self._alone = alone
        self._settings = settings
        self._clock = clock
        self._in_flight: dict[int, I64] = {}
        # Attempts that began, and those of them that have ended.
        self.begun = 0
        self.ended = Mark(0)

    @property
    def is_internal(self) -> bool:
        """Whether the rows are of an internal group."""
        return self.code in INTERNAL_CODES

    @property
    def name_code(self) -> int:
        """The code of the group's name for outcome rows, 0 for an internal group."""
        return 0 if self.is_internal else self.code

    # -- the nodes

    @property
    def nodes(self) -> tuple[NodeHealth, ...]:
        """The health of each."""
        return self._nodes

    @property
    def alone(self) -> bool:
        """Whether a message that the node of this group does not have is at no other node."""
        return self._alone

    def change_nodes(self, nodes: Sequence[NodeHealth]) -> None:
        """Takes these nodes for the messages from now on."""
        self._nodes = tuple(nodes)

    def may_be_elsewhere(self) -> None:
        """Nodes or routes have changed: a node that is on no route of this group any more may have a message."""
        self._alone = False

    @property
    def failing(self) -> bool:
        """Whether the circuit of every node is open that takes messages."""
        return all(node.open_circuit for node in self._nodes if node.weight)

    @property
    def down(self) -> bool:
        """Whether the group fails, and no node may be tried now."""
        return self.failing and not any(node.ready(self._clock.monotonic_us()) for node in self._nodes if node.weight)

    @property
    def may_work(self) -> bool:
        """Whether another group may give it rows: it does not fail, or it has no row to show that a node is back."""
        return not self.failing or not (self.rows_held or self.down)

    # -- bounds

    @property
    def rows_max(self) -> int:
        """Rows that may wait."""
        rows_max = self._settings.queue_rows_max
        return min(FAILING_QUEUE_ROWS_MAX, rows_max) if self.failing else rows_max

    @property
    def full(self) -> bool:
        """Whether one more batch could push rows out of memory."""
        rows = len(self.queue)
        return rows > 0 and rows + self._settings.batch_messages_max > self._settings.queue_rows_max

    @property
    def rows_queued(self) -> int:
        """Rows that wait, those that are left alone for a while included."""
        return len(self.queue) + self.queue.rows_aside

    @property
    def rows_held(self) -> int:
        """Rows in memory, waiting or in flight."""
        return self.rows_queued + self.rows_in_flight

    # -- the wheel

    @property
    def released_to(self) -> Key:
        """The last key that the wheel released to the group. A row behind that of every group is in no queue."""
        return self._released_to

    def advance_released(self, last: Key) -> None:
        """Moves `released_to` on: the wheel has released rows up to and with this key."""
        self._released_to = max(self._released_to, last)

    def give_up_waiting(self) -> None:
        """Drops all rows that wait, and what is known of those that left memory before."""
        self.counters.count_dropped(self.rows_queued)
        self.queue.clear()
        self.spilled.clear()

    # -- attempts

    def begin(self, sequence: I64) -> int:
        """An attempt with these rows begins. Returns its number."""
        self.begun += 1
        self._in_flight[self.begun] = sequence
        return self.begun

    def narrow(self, attempt: int, sequence: I64) -> None:
        """Goes on with these rows of a running attempt."""
        self._in_flight[attempt] = sequence

    def end(self, attempt: int) -> None:
        """Ends an attempt; does nothing for one that has ended already."""
        if self._in_flight.pop(attempt, None) is not None:
            self.ended.advance(self.ended.value + 1)

    def is_running(self, attempt: int) -> bool:
        """Whether an attempt has begun and not ended."""
        return attempt in self._in_flight

    @property
    def running(self) -> int:
        """Attempts in flight."""
        return len(self._in_flight)

    @property
    def rows_in_flight(self) -> int:
        """Rows of running attempts."""
        return sum([len(sequences) for sequences in self._in_flight.values()])

    def in_flight(self) -> I64:
        """Sequences of running attempts."""
        return np.concatenate(list(self._in_flight.values())) if self._in_flight else np.empty(0, np.int64)

    def is_in_flight(self, sequence: I64) -> NDArray[np.bool_]:
        """True where a running attempt has the message, bool[n]."""
        if not self._in_flight:
            return np.zeros(len(sequence), dtype=bool)
        return is_member(sequence, self.in_flight())

    def holds(self, due_ms: I64, sequence: I64) -> NDArray[np.bool_]:
        """True where a message (i64[n], i64[n]) waits or is in flight here, bool[n]."""
        return self.queue.holds(due_ms, sequence) | self.is_in_flight(sequence)

    def check_invariants(self) -> None:
        """A row is in one place: it waits, or it is in flight."""
        self.queue.check_invariants()
        held = np.concatenate([self.queue.sequences(), self.in_flight()])
        assert len(np.unique(held)) == len(held)
