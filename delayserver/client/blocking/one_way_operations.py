# Made by `python -m ops.blocking_client` from asynchronous/one_way_operations.py. Change that file.
"""The operations of the blocking client that get no reply.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import TypeVar

from delayserver.client.calls import publish_calls, send_calls
from delayserver.client.calls.core import Call, ClientCore
from delayserver.client.values.timing import Instant, Span
from delayserver.protocol.frames import OneWayRefused

T = TypeVar("T")


class BlockingOneWayOperations(ABC):
    """Sends and publishes without a reply, as fast as the connection takes them. The client never knows if they arrived.

    A message that the server refuses is counted. The next reply to any call of this client has the count; see
    `take_one_way_refused`. Messages of a connection that breaks may be lost without a trace. A client that is closed waits
    until the server has taken them.
    """

    _core: ClientCore

    @abstractmethod
    def resolve_due_ms(
        self, due_ms: Instant | None, delay_ms: Span | None, at: datetime | None, delay: timedelta | None
    ) -> int:
        """The absolute due time of exactly one of the four, by the server's clock."""

    @abstractmethod
    def _post(self, call: Call[T]) -> None:
        """Send a request that gets no reply. Connects if not connected."""

    def publish_one_way(
        self,
        subject: str,
        body: bytes | str,
        *,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
        tag: str | None = None,
        order_key: str | None = None,
    ) -> None:
        """Publish one message to this server, without a reply. A subject that other nodes store is refused: it does not
        follow the route.
        """
        call = publish_calls.publish_call(
            subject,
            body,
            message_id=message_id,
            properties=properties,
            expires_ms=expires_ms,
            tag=tag,
            order_key=order_key,
        )
        self._post(one_way(call))

    def send_one_way(
        self,
        subject: str,
        body: bytes | str,
        due_ms: Instant | None = None,
        *,
        delay_ms: Span | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
        tag: str | None = None,
        order_key: str | None = None,
    ) -> None:
        """Send one message, without a reply. Its due time is given as for `send`."""
        call = send_calls.send_call(
            subject,
            body,
            self.resolve_due_ms(due_ms, delay_ms, at, delay),
            message_id=message_id,
            properties=properties,
            expires_ms=expires_ms,
            tag=tag,
            order_key=order_key,
        )
        self._post(one_way(call))

    def take_one_way_refused(self) -> OneWayRefused | None:
        """The number of one-way messages that were refused since the last call of this method, and the first error.
        Replies carry it, so send a `ping` behind the messages.
        """
        return self._core.take_one_way_refused()


def one_way(call: Call[T]) -> Call[T]:
    """The call as one that gets no reply."""
    return Call(call.operation, {**call.arguments, "one_way": True}, call.read, repeatable=False)
