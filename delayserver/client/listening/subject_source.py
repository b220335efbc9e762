"""A subject at a node, as a source of messages of a listener. No I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from delayserver.client.consuming.extending import EXTENDED_PART
from delayserver.client.listening.flow_control import FlowShare
from delayserver.client.listening.handling import Handling
from delayserver.client.listening.listener_settings import ListenerSettings
from delayserver.client.listening.settlements import Settlements


class SubjectSource:
    """A subject at a node: its deliveries that wait or are handled, its share of the flow control, and its settlements.
    ``connection``: the number of the connection to which its leases belong; None: not known.
    """

    __slots__ = (
        "_parked",
        "_settings",
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

    def __init__(self, subject: str, node: str, share: FlowShare, settings: ListenerSettings) -> None:
        self.subject = subject
        self.node = node
        self.share = share
        self.settlements = Settlements(settings.ack_interval_s)
        self.ready: deque[Handling] = deque()
        self.running: dict[Handling, None] = {}
        self.retired = False
        self.connection: int | None = None
        self._settings = settings
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
        keys = [key for key, waiting in self._parked.items() if now_s is None or waiting[0].is_stale(now_s)]
        return [handling for key in keys for handling in self._parked.pop(key)]

    def __repr__(self) -> str:
        return f"SubjectSource({self.subject!r}, {self.node!r})"

    def begin(self, handling: Handling) -> None:
        """The handler of a message begins."""
        self.running[handling] = None

    def end(self, handling: Handling) -> None:
        """The handler of a message has ended."""
        del self.running[handling]

    def due(self, now_s: float) -> list[Handling]:
        """The running handlers whose leases shall be extended now."""
        soon_s = now_s + EXTENDED_PART * self._settings.ack_timeout_s
        begun_s = now_s - self._settings.extend_max_s
        return [
            each
            for each in self.running
            if not each.lost and now_s < each.lease_ends_s < soon_s and begun_s < each.started_s
        ]

    def known(self, now_s: float) -> list[Handling]:
        """The leases to take over to another connection, those of acks and nacks that are not at the node included."""
        begun_s = now_s - max(self._settings.extend_max_s, self._settings.ack_timeout_s)
        running = [each for each in self.running if each.started_s > begun_s]
        held = [*running, *self.ready, *self.parked, *self.settlements.waiting]
        return [each for each in held if each.lease_ends_s > now_s and not each.lost]

    def retire(self) -> None:
        """It is pulled from no more."""
        self.retired = True

    def belong(self, connection: int) -> None:
        """All its leases belong to this connection."""
        self.connection = connection
