"""The decisions of one subscription of a listener: what to pull, whom to start, what to settle, when to stop. Sans-IO.

A driver reports what happened and when, and does what the core says:

    next_ask -> asked -> [pull] -> pulled, pull_failed
    start -> [handler] -> finish
    settle_due_s -> take -> [ack, nack] -> settled, settle_failed
    look: now and then        stop: once
    extensions -> [extend] -> extensions_done
    adoptions -> [extend over a new connection] -> adopted, extensions_done

Nothing here waits, reads a clock or knows a task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from delayserver.client.consuming.extending import EXTENDED_PART, OUTLIVE_S
from delayserver.client.listening.flow_control import MESSAGE_BYTES, Ask, FlowControl, FlowShare
from delayserver.client.listening.handling import GIVE_BACK, Handling, ListenerStats, Verdict
from delayserver.client.listening.ready_line import ReadyLine
from delayserver.client.listening.settlements import Settlement, Settlements
from delayserver.client.values.messages import Delivery
from delayserver.protocol.errors import InvalidArgument

KEPT_PART: Final = 0.5
"""A delivery waits for a handler for at most this part of its lease. The handler needs the rest."""

UNSETTLED_MAX: Final = 16_384
"""A source pulls nothing while it has so many acks and nacks that did not reach their node. It bounds their memory."""

WINDOW_MIN: Final = 16
"""A new source asks for this many messages at once, or for two a handler."""


OUTLIVE_S_MAX: Final = 60
"""A server remembers the leases of a connection that has ended no longer."""


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """How a listener consumes.

    ``concurrency``: handlers of one subscription at once. ``prefetch_messages``, ``prefetch_bytes``: what may wait for
    them here. ``ack_timeout_s``: the lease that it asks for, and for which it extends it. ``ack_interval_s``: acks are
    gathered for so long. ``stop_s``: at the end running handlers get so much time. ``messages_max``: the subscription
    stops by itself when so many handlers have begun. ``extend_max_s``: while a handler runs, its lease is extended, until so
    long after its begin; 0: never. So a handler that hangs keeps its message for that time and one lease more.
    ``outlive_s``: leases end so long after the connection, so the messages of a listener that dies come again soon. After a
    lost connection the listener takes them over to the next one. None: they last for ``ack_timeout_s`` in any case.
    """

    concurrency: int = 10
    prefetch_messages: int = 4096
    prefetch_bytes: int = 16 * 1024 * 1024
    ack_timeout_s: float = 60.0
    ack_interval_s: float = 0.005
    stop_s: float = 30.0
    messages_max: int | None = None
    extend_max_s: float = 3600.0
    outlive_s: float | None = OUTLIVE_S

    def __post_init__(self) -> None:
        for name in ("concurrency", "prefetch_messages", "prefetch_bytes"):
            if type(getattr(self, name)) is not int or getattr(self, name) < 1:
                raise InvalidArgument(f"{name} is an integer of at least 1, not {getattr(self, name)!r}")
        if not 0.001 <= self.ack_timeout_s <= 86_400:
            raise InvalidArgument(f"ack_timeout_s lies within 0.001 and 86400 (a day), not {self.ack_timeout_s!r}")
        if self.messages_max is not None and (type(self.messages_max) is not int or self.messages_max < 1):
            raise InvalidArgument(f"messages_max is an integer of at least 1, not {self.messages_max!r}")
        if self.ack_interval_s < 0 or self.stop_s < 0 or not self.extend_max_s >= 0:
            raise InvalidArgument("ack_interval_s, stop_s and extend_max_s are 0 or more")
        if self.outlive_s is not None and not 0 <= self.outlive_s <= OUTLIVE_S_MAX:
            raise InvalidArgument(f"outlive_s lies within 0 and {OUTLIVE_S_MAX}, or is None, not {self.outlive_s!r}")


class SubjectSource:
    """A subject at a node: its waiting deliveries, its share of the flow control, and its settlements. ``connection``: the
    number of the connection to which its leases belong; None: not known.
    """

    __slots__ = (
        "_parked",
        "_turns",
        "connection",
        "node",
        "ready",
        "retired",
        "running",
        "settlements",
        "share",
        "subject",
    )

    def __init__(self, subject: str, node: str, share: FlowShare, settlements: Settlements) -> None:
        self.subject = subject
        self.node = node
        self.share = share
        self.settlements = settlements
        self.ready: deque[Handling] = deque()
        self.running = 0
        self.retired = False
        self.connection: int | None = None
        # By order key: the message that is handled, or is next; and those that wait for it.
        self._turns: dict[str, Handling] = {}
        self._parked: dict[str, deque[Handling]] = {}

    @property
    def parked(self) -> list[Handling]:
        """The messages that wait for an earlier one of their order key."""
        return [handling for waiting in self._parked.values() for handling in waiting]

    def has_turn(self, handling: Handling) -> bool:
        """Whether a message may be handled now. Otherwise it is parked until the earlier ones of its order key are done."""
        key = handling.delivery.order_key
        if key is None or self._turns.setdefault(key, handling) is handling:
            return True
        self._parked.setdefault(key, deque()).append(handling)
        return False

    def next_turn(self, handling: Handling) -> None:
        """A message is done: the next one of its order key is the first to be handled."""
        key = handling.delivery.order_key
        if key is None:
            return
        del self._turns[key]
        waiting = self._parked.get(key)
        if waiting:
            following = waiting.popleft()
            self._turns[key] = following
            self.ready.appendleft(following)
            if not waiting:
                del self._parked[key]

    def end_turns(self, handlings: Sequence[Handling]) -> Sequence[Handling]:
        """Messages are not done. Returns the others of their order keys that waited here, and wait no more: a nack of one
        message takes back all that came behind it."""
        keys = {handling.delivery.order_key for handling in handlings} - {None}
        if not keys:
            return ()
        for handling in handlings:
            key = handling.delivery.order_key
            if key is not None and self._turns.get(key) is handling:
                del self._turns[key]
        behind = [each for key in keys if key is not None for each in self._parked.pop(key, ())]
        behind += [each for each in self.ready if each.delivery.order_key in keys]
        self.ready = deque([each for each in self.ready if each.delivery.order_key not in keys])
        return behind

    def take_parked(self, now_s: float | None = None) -> Sequence[Handling]:
        """Takes out all parked messages; with `now_s`, those of keys whose first one has waited too long."""
        keys = [key for key, waiting in self._parked.items() if now_s is None or _is_late(waiting[0], now_s)]
        return [handling for key in keys for handling in self._parked.pop(key)]

    def __repr__(self) -> str:
        return f"SubjectSource({self.subject!r}, {self.node!r})"

    def run(self, count: int) -> None:
        """So many more handlers run, or fewer."""
        self.running += count

    def retire(self) -> None:
        """It is pulled from no more."""
        self.retired = True

    def belong(self, connection: int) -> None:
        """All its leases belong to this connection."""
        self.connection = connection


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
        # Sources whose leases are being extended, and those whose nodes cannot extend leases.
        self._extending: set[SubjectSource] = set()
        self._without_extend: set[SubjectSource] = set()
        self.stopping = False
        self.stats = ListenerStats()

    # -- sources

    def add_source(self, subject: str, node: str) -> SubjectSource:
        """A subject is pulled from a node from now on."""
        source = SubjectSource(subject, node, self._flow.join(), Settlements(self._settings.ack_interval_s))
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
        self._without_extend.discard(source)
        return lost

    # -- pulls

    def next_ask(self, source: SubjectSource) -> Ask | None:
        """The bounds of this source's next pull. None: not yet, or, of a retired source, never."""
        if source.retired or len(source.settlements) >= UNSETTLED_MAX:
            return None
        return self._flow.next_ask(source.share)

    def asked(self, source: SubjectSource, ask: Ask) -> None:
        """A pull for this leaves."""
        self._flow.asked(source.share, ask)

    def pull_failed(self, source: SubjectSource) -> None:
        """The pull ended with an error, and brought nothing."""
        self._flow.failed(source.share)

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
        self._flow.answered(source.share, sizes)
        source.ready.extend(handlings)
        self.stats.add("received", len(handlings))
        if self.stopping:
            self._give_back(source, len(handlings))
        elif handlings:
            self._line.put(source, source.running)
        return handlings

    # -- handlers

    def start(self, now_s: float) -> Handling | None:
        """The message to handle now. None: none waits, or enough handlers run."""
        if len(self._running) >= self._settings.concurrency or self.is_enough:
            return None
        while (source := self._line.first()) is not None:
            if _is_late(source.ready[0], now_s):  # the program stood still: the next look would be too late
                self._give_back_late(source, now_s)
                continue
            handling = source.ready.popleft()
            if source.has_turn(handling):
                break
            self._stand(source)
        else:
            return None
        self._flow.started(source.share)
        source.run(1)
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
        source.run(-1)
        self._flow.ended(source.share, handling.size)
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
            self._line.put(source, source.running)
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

    def extensions(self, now_s: float) -> dict[SubjectSource, list[Handling]]:
        """The running handlers whose leases shall be extended now, by source. `extensions_done` follows for each source."""
        if not self._settings.extend_max_s:
            return {}
        soon_s = now_s + EXTENDED_PART * self._settings.ack_timeout_s
        found: dict[SubjectSource, list[Handling]] = {}
        for handling, source in self._running.items():
            if handling.lost:
                continue
            if now_s < handling.lease_ends_s < soon_s and now_s < handling.started_s + self._settings.extend_max_s:
                found.setdefault(source, []).append(handling)
        for source in self._extending | self._without_extend:
            found.pop(source, None)
        self._extending |= found.keys()
        return found

    def adoptions(self, connections: Mapping[SubjectSource, int], now_s: float) -> dict[SubjectSource, list[Handling]]:
        """The leases of sources whose connection is another one now, or (0) has ended. They shall be extended over the next
        one, the acks and nacks that are not at the node included. `extensions_done` follows for each source.
        """
        found: dict[SubjectSource, list[Handling]] = {}
        begun_s = now_s - max(self._settings.extend_max_s, self._settings.ack_timeout_s)
        for source, connection in connections.items():
            if connection == source.connection or source in self._extending or source in self._without_extend:
                continue
            running = [each for each, its in self._running.items() if its is source and each.started_s > begun_s]
            held = [*running, *source.ready, *source.parked, *source.settlements.waiting]
            held = [handling for handling in held if handling.lease_ends_s > now_s and not handling.lost]
            if held:
                found[source] = held
            elif connection:
                source.belong(connection)
        self._extending |= found.keys()
        return found

    def adopted(self, source: SubjectSource, connection: int) -> None:
        """The leases of a source belong to this connection, or (0) to no known one."""
        source.belong(connection)

    def still_running(self, handlings: Sequence[Handling]) -> list[Handling]:
        """Those whose handlers still run."""
        return [handling for handling in handlings if handling in self._running]

    def extensions_done(self, source: SubjectSource, count: int, *, able: bool) -> None:
        """So many leases of running handlers of a source are extended. `able`: false if its node cannot extend leases at
        all.
        """
        self._extending.discard(source)
        self.stats.add("extended", count)
        if not able and source in self._sources:
            self._without_extend.add(source)

    def _give_back_late(self, source: SubjectSource, now_s: float) -> None:
        late = len(list(takewhile(lambda handling: _is_late(handling, now_s), source.ready)))
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
            self._flow.given_back(source.share, handling.size)
            source.settlements.add(handling, GIVE_BACK)
        self.stats.add("given_back", len(handlings))

    # -- settlements

    def settle_due_s(self, source: SubjectSource, now_s: float) -> float | None:
        """When the next acks and nacks of a source leave; None while there are none."""
        return source.settlements.due_s(now_s)

    def take(self, source: SubjectSource, now_s: float) -> list[Settlement]:
        """The acks and nacks to send now, a request each."""
        return source.settlements.take(now_s)

    def settled(self, source: SubjectSource, settlement: Settlement, unknown: int, now_s: float, dead: int = 0) -> int:
        """The node has them on disk. It did not know ``unknown`` of them any more, and ``dead`` became dead letters.

        Returns how many of the unknown ones were too late. The node counts them and does not name them: those whose leases
        are over are taken to be among them. A node that restarted knows none, however early they are.
        """
        source.settlements.settled(settlement)
        for handling in settlement.handlings:
            handling.settle(now_s)
        self.stats.add("acked" if settlement.verdict.ack else "nacked", len(settlement.handlings) - unknown)
        late = min(unknown, sum(now_s > handling.lease_ends_s for handling in settlement.handlings)) if unknown else 0
        self.stats.add("too_late", late)
        self.stats.add("unknown", unknown - late)
        self.stats.add("dead_lettered", dead)
        return late

    def settle_failed(self, source: SubjectSource, settlement: Settlement, now_s: float) -> Sequence[Handling]:
        """The request failed, and is sent again later. The result is what is given up, because its lease is over by then."""
        lost = source.settlements.failed(settlement, now_s)
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
        running: dict[SubjectSource, int] = {}
        for source in self._running.values():
            running[source] = running.get(source, 0) + 1
        for source in self._sources:
            source.settlements.check_invariants()
            assert source.running == running.get(source, 0)
            assert source.share.held_messages == len(source.ready) + len(source.parked)
            assert (source in self._line) == bool(source.ready)
            sizes = [each.size for each in (*source.ready, *source.parked)]
            sizes += [each.size for each, its in self._running.items() if its is source]
            assert source.share.held_bytes == sum(sizes)
            if self.stopping:
                assert source.retired and not source.ready and not source.parked
        assert self._overdue <= self._running.keys()


def _is_late(handling: Handling, now_s: float) -> bool:
    """Whether a message has waited too long for a handler, or is with another consumer by now."""
    return handling.lost or now_s >= handling.received_s + KEPT_PART * (handling.lease_ends_s - handling.received_s)


def _size(delivery: Delivery) -> int:
    size = MESSAGE_BYTES + len(delivery.body) + len(delivery.message_id)
    for key, value in delivery.properties.items():
        size += len(key) + len(value)
    return size
