# Made by `python -m ops.blocking_client` from asynchronous/position_operations.py. Change that file.
"""The operations of the blocking client on positions: seek, remove, and reads without a group.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from datetime import datetime
from typing import TypeVar

from delayserver.client.calls import position_calls
from delayserver.client.calls.core import Call
from delayserver.client.values.timing import Seconds, span_s
from delayserver.protocol.limits import Limits
from delayserver.protocol.schema.greetings import ServerInfo
from delayserver.protocol.schema.groups import ConsumerGroup, Sought
from delayserver.protocol.schema.stored import ReadPage

T = TypeVar("T")


class BlockingPositionOperations(ABC):
    """Requests about the positions of consumer groups."""

    @abstractmethod
    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """The result of a call, after as many attempts as it needs."""

    @abstractmethod
    def connect(self) -> ServerInfo:
        """The server's identity and limits."""

    @property
    @abstractmethod
    def limits(self) -> Limits:
        """The server's limits; the defaults before the first connection."""

    def group(self, subject: str, group: str) -> ConsumerGroup:
        """The progress of one consumer group. Raises `GroupUnknown`."""
        return self._run(position_calls.group_call(subject, group))

    def seek(self, subject: str, group: str, to: str | int | datetime) -> Sought:
        """Move a group, durably: ``to`` is ``"earliest"``, ``"latest"``, a time, or a position (int).

        The group's leases end, so acks of what it holds are unknown afterwards. Every message from the new position on
        comes as if for the first time. Raises `GroupUnknown`, `PositionOutOfRange`.
        """
        return self._run(position_calls.seek_call(subject, group, to))

    def remove_group(self, subject: str, group: str) -> None:
        """Remove a group, durably. A later pull makes a new one. Raises `GroupUnknown`."""
        self._run(position_calls.remove_group_call(subject, group))

    def read(
        self,
        subject: str,
        position: int,
        max_messages: int = 100,
        wait_s: Seconds = 0.0,
        *,
        max_bytes: int | None = None,
    ) -> ReadPage:
        """Messages of a subject from ``position`` on, without a group or a lease; see `ReadPage`.

        At the end of the subject it waits up to ``wait_s`` for the next message, at most the server's bound of a wait.
        """
        self.connect()  # Before it the server's bound of a wait is not known.
        wait_ms = min(round(span_s(wait_s) * 1000), self.limits.wait_ms_max)
        return self._run(position_calls.read_call(subject, position, max_messages, wait_ms, max_bytes))
