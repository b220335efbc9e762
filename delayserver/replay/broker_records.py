"""The round step of a member of a cluster for records that another process's broker has made."""

from __future__ import annotations

from collections.abc import Callable

from delayserver.state.replay_round import Round
from store.errors import FormatError
from store.logs.message_log import LogEntry


class BrokerRecords:
    """Round → the embedded broker, which is built later."""

    def __init__(self, known_to: int) -> None:
        """A single server was a member up to this offset: its broker has what stands before."""
        self._known_to = known_to
        self._take: Callable[[LogEntry], None] | None = None

    def give_to(self, take: Callable[[LogEntry], None]) -> None:
        """Give such records to the broker of this member from now on."""
        self._take = take

    def publish(self, done: Round) -> None:
        """Hand the records of a round over, in order. Raises FormatError in a single server, DiskFullError, StoreError."""
        waiting = done.of_broker
        while waiting:
            if self._take is not None:
                self._take(waiting[0])
            elif waiting[0].start >= self._known_to:
                raise FormatError("message_log", "belongs to a member of a cluster; start it with its cluster file")
            waiting.popleft()  # after a full disk a further call goes on with those that are left
