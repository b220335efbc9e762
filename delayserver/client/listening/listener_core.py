"""The decisions of one subscription of a listener: what to pull, whom to start, what to settle, when to stop. Sans-IO.

A driver reports what happened and when, and does what the core says:

    next_ask -> asked -> [pull] -> pulled, pull_failed
    start -> [handler] -> finish
    settle_due_s -> take -> [ack, nack] -> settled, settle_failed
    look: now and then        stop: once

A `LeaseKeeper` extends the leases of the sources.

Nothing here waits, reads a clock or knows a task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import Final

from delayserver.client.listening.flow_control import MESSAGE_BYTES, Ask, FlowControl
from delayserver.client.listening.handling import GIVE_BACK, Handling, ListenerStats, Verdict
from delayserver.client.listening.listener_settings import ListenerSettings
from delayserver.client.listening.ready_line import ReadyLine
from delayserver.client.listening.settlements import Settlement
from delayserver.client.listening.subject_source import SubjectSource
from delayserver.client.values.messages import Delivery

UNSETTLED_MAX: Final = 16_384
"""A source pulls nothing while it has so many acks and nacks that did not reach their node. It bounds their memory."""

WINDOW_MIN: Final = 16
"""A new source asks for this many messages at once, or for two a handler."""


class ListenerCore:
    """The state of one subscription."""

    def __init__(self, group: str, settings: ListenerSettings) -> None:
        self._group = group
        self._settings = settings
        window = max(WINDOW_MIN, 2 * settings.concurrency)
        self._flow = FlowControl(settings.prefetch_messages, settings.prefetch_bytes, window)
        self._line: ReadyLine[SubjectSource] = ReadyLine()
        self._sources: set[SubjectSource] = set()
        self._running: dict[Handling, SubjectSource] = {}
        self._overdue: set[Handling] = set()
        self.stopping = False
        self.stats = ListenerStats()

    # -- sources

    def add_source(self, subject: str, node: str) -> SubjectSource:
        """A subject is pulled from a node from now on."""
        source = SubjectSource(subject, node, self._flow.join(), self._settings)
        self._sources.add(source)
        if self.stopping:
            source.retire()
        return source

    def retire(self, source: SubjectSource) -> None:
        """Pull no more from a source. Its messages are handled and settled, or given back when the core stops."""
        source.retire()

    def is_drained(self, source: SubjectSource) -> bool:
        """Whether a retired source has nothing left to do."""
        if not source.retired or source.share.asked is not None or source.parked:
            return False
        return not source.ready and not source.running and not len(source.settlements)

    def remove(self, source: SubjectSource, now_s: float) -> Sequence[Handling]:
        """Forget a source. Returns the deliveries that it could not settle: they come again when their leases end."""
        source.retire()
        self._give_back_all(source)
        lost = source.settlements.abandon()
        self.stats.add("lost", len(lost))
        if not source.running:
            self._flow.leave(source.share)
        self._sources.discard(source)
        return lost

    # -- pulls

    def next_ask(self, source: SubjectSource) -> Ask | None:
        """The bounds of this source's next pull. None: not yet, or, of a retired source, never."""
        if source.retired or len(source.settlements) >= UNSETTLED_MAX:
            return None
        return self._flow.next_ask(source.share)

    def begin_pull(self, source: SubjectSource, ask: Ask) -> None:
        """Counts a pull that leaves, with what it asks for."""
        self._flow.begin_pull(source.share, ask)

    def fail_pull(self, source: SubjectSource) -> None:
        """Ends the pull with an error: it brought nothing."""
        self._flow.fail_pull(source.share)

    def pulled(
        self, source: SubjectSource, deliveries: Sequence[Delivery], now_s: float, connection: int = 0
    ) -> Sequence[Handling]:
        """The pull has brought these, at this time, over this connection. After a stop they are given back."""
        if source.connection is None:
            source.belong(connection)
        sizes = [_size(delivery) for delivery in deliveries]
        lease_ends_s = now_s + self._settings.ack_timeout_s
        group, node = self._group, source.node
        handlings = [
            Handling(delivery, group, node, size, now_s, lease_ends_s)
            for delivery, size in zip(deliveries, sizes, strict=True)
        ]
        self._flow.end_pull(source.share, sizes)
        source.ready.extend(handlings)
        self.stats.add("received", len(handlings))
        if self.stopping:
            self._give_back(source, len(handlings))
        elif handlings:
            self._line.put(source, len(source.running))
        return handlings

    # -- handlers

    def start(self, now_s: float) -> Handling | None:
        """The message to handle now. None: none waits, or enough handlers run."""
        if len(self._running) >= self._settings.concurrency or self.is_enough:
            return None
        while (source := self._line.first()) is not None:
            if source.ready[0].is_stale(now_s):  # the program stood still: the next look would be too late
                self._give_back_late(source, now_s)
                continue
            handling = source.ready.popleft()
            if source.has_turn(handling):
                break
            self._stand(source)
        else:
            return None
        self._flow.start_handler(source.share)
        source.begin(handling)
        self._running[handling] = source
        self._stand(source)
        handling.start(now_s)
        self.stats.add("started")
        return handling

    def source_of(self, handling: Handling) -> SubjectSource:
        """The source of a message that is being handled."""
        return self._running[handling]

    def finish(
        self, handling: Handling, verdict: Verdict, now_s: float, error: BaseException | None = None
    ) -> SubjectSource:
        """The handler has ended. Settles the delivery; the result is its source."""
        source = self._running.pop(handling)
        self._overdue.discard(handling)
        handling.end(now_s, error)
        source.end(handling)
        self._flow.end_handler(source.share, handling.size)
        if source in self._sources:
            source.settlements.add(handling, verdict)
            if verdict.ack:
                source.next_turn(handling)
            else:  # the node has taken back what is behind it, and gives it out behind it again
                self._nack_unseen(source, source.end_turns([handling]))
            self._stand(source)
        else:
            self.stats.add("lost")
            if not source.running:
                self._flow.leave(source.share)
        return source

    @property
    def is_enough(self) -> bool:
        """Whether as many handlers have begun as shall."""
        return self._settings.messages_max is not None and self.stats.started >= self._settings.messages_max

    @property
    def running(self) -> int:
        """Handlers that run."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Messages that wait for a handler."""
        return self._flow.held_messages

    @property
    def may_start(self) -> bool:
        """Whether `start` gives a message."""
        return len(self._line) > 0 and len(self._running) < self._settings.concurrency and not self.is_enough

    def _stand(self, source: SubjectSource) -> None:
        if source.ready:
            self._line.put(source, len(source.running))
        else:
            self._line.remove(source)

    # -- leases

    def look(self, now_s: float) -> list[Handling]:
        """Give back what has waited too long for a handler. The result: messages whose handler has outlived the lease
        since the last look.
        """
        for source in list(self._sources):
            self._give_back_late(source, now_s)
        overdue = [each for each in self._running if now_s > each.lease_ends_s and each not in self._overdue]
        self._overdue.update(overdue)
        self.stats.add("overdue", len(overdue))
        return overdue

    def _give_back_late(self, source: SubjectSource, now_s: float) -> None:
        late = len(list(takewhile(lambda handling: handling.is_stale(now_s), source.ready)))
        parked = source.take_parked(now_s)
        if late or parked:
            self._give_back(source, late)
            self._nack_unseen(source, [*parked, *source.end_turns(parked)])
            self._stand(source)
            self._flow.slow_down(source.share)

    def _give_back(self, source: SubjectSource, count: int) -> None:
        """Nack the first waiting messages of a source, and the others of their order keys, to be delivered again at once."""
        first = [source.ready.popleft() for _ in range(count)]
        self._nack_unseen(source, [*first, *source.end_turns(first)])
        self._stand(source)

    def _nack_unseen(self, source: SubjectSource, handlings: Sequence[Handling]) -> None:
        for handling in handlings:
            self._flow.give_back(source.share, handling.size)
            source.settlements.add(handling, GIVE_BACK)
        self.stats.add("given_back", len(handlings))

    # -- settlements

    def settle_due_s(self, source: SubjectSource, now_s: float) -> float | None:
        """When the next acks and nacks of a source leave; None while there are none."""
        return source.settlements.due_s(now_s)

    def take(self, source: SubjectSource, now_s: float) -> list[Settlement]:
        """The acks and nacks to send now, a request each."""
        return source.settlements.take(now_s)

    def finish_settlement(
        self, source: SubjectSource, settlement: Settlement, unknown: int, now_s: float, dead: int = 0
    ) -> int:
        """Ends a request that the node has answered: it has the verdicts on disk. It did not know ``unknown`` of the
        messages any more, and ``dead`` became dead letters.

        Returns how many of the unknown ones were too late. The node counts them and does not name them: those whose
        leases are over are taken to be among them. A node that restarted knows none, however early they are."""
        source.settlements.finish(settlement)
        for handling in settlement.handlings:
            handling.settle(now_s)
        self.stats.add("acked" if settlement.verdict.ack else "nacked", len(settlement.handlings) - unknown)
        late = min(unknown, sum(now_s > handling.lease_ends_s for handling in settlement.handlings)) if unknown else 0
        self.stats.add("too_late", late)
        self.stats.add("unknown", unknown - late)
        self.stats.add("dead_lettered", dead)
        return late

    def fail_settlement(self, source: SubjectSource, settlement: Settlement, now_s: float) -> Sequence[Handling]:
        """Has a failed request sent again later. Returns the messages that are given up, because their leases are over
        by then."""
        lost = source.settlements.retry_later(settlement, now_s)
        self.stats.add("lost", len(lost))
        return lost

    # -- the end

    def stop(self) -> None:
        """Start no handler and pull nothing any more. Deliveries that wait are given back."""
        self.stopping = True
        for source in self._sources:
            source.retire()
            source.settlements.hurry()
            self._give_back_all(source)

    def _give_back_all(self, source: SubjectSource) -> None:
        self._give_back(source, len(source.ready))
        self._nack_unseen(source, source.take_parked())

    def abandoned(self) -> Iterable[Handling]:
        """The messages whose handlers still run."""
        return list(self._running)

    def check_invariants(self) -> None:
        """Every message waits, runs or is settled, once. The counts agree."""
        self._flow.check_invariants()
        self._line.check_invariants()
        assert len(self._running) <= self._settings.concurrency
        running: dict[SubjectSource, set[Handling]] = {}
        for handling, source in self._running.items():
            running.setdefault(source, set()).add(handling)
        for source in self._sources:
            source.settlements.check_invariants()
            assert source.running.keys() == running.get(source, set())
            assert source.share.held_messages == len(source.ready) + len(source.parked)
            assert (source in self._line) == bool(source.ready)
            sizes = [each.size for each in (*source.ready, *source.parked, *source.running)]
            assert source.share.held_bytes == sum(sizes)
            if self.stopping:
                assert source.retired and not source.ready and not source.parked
        assert self._overdue <= self._running.keys()


def _size(delivery: Delivery) -> int:
    size = MESSAGE_BYTES + len(delivery.body) + len(delivery.message_id)
    for key, value in delivery.properties.items():
        size += len(key) + len(value)
    return size
