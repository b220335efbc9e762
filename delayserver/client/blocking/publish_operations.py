# Made by `python -m ops.blocking_client` from asynchronous/publish_operations.py. Change that file.
"""The operations of the blocking client that publish messages for now.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from delayserver.client import tracing
from delayserver.client.blocking.batching import Batcher, PublishClient, PublishSender
from delayserver.client.calls import publish_calls
from delayserver.client.calls.core import Call
from delayserver.client.calls.published_at import PublishedAt
from delayserver.client.calls.retry_policy import RESULT_UNKNOWN
from delayserver.client.calls.send_calls import Instants, Integers, SendColumns
from delayserver.client.connections.server_addresses import Addresses
from delayserver.client.values.messages import ColumnsPublished, Message, PublishResult
from delayserver.client.values.timing import Instant, Span
from delayserver.protocol.errors import ConnectionLost, DelayServerError, PublishedElsewhere
from delayserver.protocol.schema.node_routes import Route

T = TypeVar("T")


class BlockingPublishOperations(ABC):
    """Publishes. If the server says that other nodes store a subject, the client asks for the route and publishes there."""

    _addresses: Addresses
    _published_at: PublishedAt

    @abstractmethod
    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """The result of a call, after as many attempts as it needs."""

    @abstractmethod
    def _reach(self) -> None:
        """Have a connection. One attempt; raises `ConnectionLost`."""

    @abstractmethod
    def route(
        self, *, group: str | None = None, subject: str | None = None, order_key: str | None = None
    ) -> Route:
        """The nodes of a broker group, or of the group that a subject routes to, and the node of an order key."""

    @abstractmethod
    def _publisher_at(self, address: str) -> BlockingPublishOperations:
        """A client of another node, which lives as long as this one."""

    @abstractmethod
    def _publishing_client(self) -> PublishClient:
        """The client over which a batcher publishes."""

    def publish(
        self,
        subject: str,
        body: bytes | str,
        *,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
        tag: str | None = None,
        order_key: str | None = None,
    ) -> PublishResult:
        """Publish one message, due now. It is durable on its node on return, and consumers may have it already.

        Messages of one caller keep their order. With a ``message_id`` the client retries after a lost reply, and the
        message may be stored twice: consumers recognise it by the id. Without one a lost reply raises `ConnectionLost`.
        """
        with tracing.sending("publish", subject, properties) as made:
            call = publish_calls.publish_call(
                subject,
                body,
                message_id=message_id,
                properties=made.properties,
                expires_ms=expires_ms,
                tag=tag,
                order_key=order_key,
            )
            return self._run_where(subject, call)

    def publish_many(self, messages: Sequence[Message]) -> list[PublishResult | DelayServerError]:
        """Publish up to ``batch_messages_max`` messages in one frame: a result or an error for each, in order. A refused
        message does not fail its neighbours. Messages of other nodes follow in a frame for each subject.
        """
        with tracing.sending_many("publish", messages) as traced:
            return self._publish_all(traced)

    def publish_placed(self, messages: Sequence[Message], shard: int) -> list[PublishResult | DelayServerError]:
        """`publish_many` of messages for a shard, among them such as any shard may take."""
        with tracing.sending_many("publish", messages) as traced:
            return self._publish_all(traced, shard)

    def _publish_all(
        self, messages: Sequence[Message], shard: int | None = None
    ) -> list[PublishResult | DelayServerError]:
        results: list[PublishResult | DelayServerError] = [PublishedElsewhere()] * len(messages)
        here = [place for place, message in enumerate(messages) if self._published_at.get(message.subject) is None]
        if here:
            call = publish_calls.publish_many_call([messages[place] for place in here])
            stored = self._run(replace(call, shard=shard))
            for place, result in zip(here, stored, strict=True):
                results[place] = result
        elsewhere: dict[str, list[int]] = {}
        for place, result in enumerate(results):
            if isinstance(result, PublishedElsewhere):
                elsewhere.setdefault(messages[place].subject, []).append(place)
        for subject, places in elsewhere.items():
            stored = self._many_there(subject, [messages[place] for place in places])
            for place, result in zip(places, stored, strict=True):
                results[place] = result
        return results

    def _many_there(self, subject: str, messages: list[Message]) -> list[PublishResult | DelayServerError]:
        try:
            return self._run_there(subject, publish_calls.publish_many_call(messages))
        except DelayServerError as error:
            return [error] * len(messages)

    def publish_columns(
        self,
        subjects: str | Sequence[str],
        bodies: bytes | Sequence[bytes],
        *,
        body_length: Integers | None = None,
        subject_index: Integers | None = None,
        message_ids: Sequence[str] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        expires_ms: Instants | None = None,
        count: int | None = None,
        tags: str | Sequence[str | None] | None = None,
        tag_index: Integers | None = None,
        order_keys: Sequence[str | None] | None = None,
    ) -> ColumnsPublished:
        """Publish arrays: the fast way. Arguments are those of `send_columns`. With one subject the client follows its
        route. With several, rows of other nodes are rejected as `PublishedElsewhere`.
        """
        call = publish_calls.publish_columns_call(
            SendColumns(
                subjects=subjects,
                due_ms=0,
                bodies=bodies,
                body_length=body_length,
                subject_index=subject_index,
                message_ids=message_ids,
                properties=properties,
                expires_ms=expires_ms,
                count=count,
                tags=tags,
                tag_index=tag_index,
                order_keys=order_keys,
            )
        )
        with tracing.sending_columns("publish", subjects):
            if isinstance(subjects, str):
                return self._run_where(subjects, call)
            return self._run(call)

    def publisher(
        self,
        subject: str | None = None,
        *,
        batch_messages_max: int = 1000,
        linger_ms: Span = 5,
        pending_messages_max: int = 100_000,
    ) -> Batcher[PublishResult]:
        """Publish in the background, in batches; see `Batcher`. Its ``send`` takes no time."""
        return Batcher(
            PublishSender(self._publishing_client()),
            subject,
            batch_messages_max=batch_messages_max,
            linger_ms=linger_ms,
            pending_messages_max=pending_messages_max,
        )

    def _run_where(self, subject: str, call: Call[T]) -> T:
        """Runs a publish of one subject here, or at the node of its route."""
        if self._published_at.get(subject) is None:
            try:
                return self._run(call)
            except PublishedElsewhere:
                pass
        return self._run_there(subject, call)

    def _run_there(self, subject: str, call: Call[T]) -> T:
        """Runs a publish at the node of the subject. If that cannot be reached, or refuses for now, at the next one."""
        known = self._published_at.get(subject)
        if known is not None and self._reaches(subject, known):
            return self._run_at(subject, known, call)
        nodes = (self.route(subject=subject)).nodes
        *addresses, last = self._published_at.choices(subject, nodes, self._addresses.current_text)
        for address in addresses:
            if not self._reaches(subject, address):
                continue
            try:
                return self._run_at(subject, address, call)
            except DelayServerError as error:
                if not error.retriable or isinstance(error, RESULT_UNKNOWN):
                    raise
        return self._run_at(subject, last, call)

    def _reaches(self, subject: str, address: str) -> bool:
        """Whether a node can be reached. Nothing is sent, so another one may be tried."""
        node = self._publisher_at(address)
        try:
            node._reach()
        except ConnectionLost:
            self._published_at.distrust(subject, address)
            return False
        return True

    def _run_at(self, subject: str, address: str, call: Call[T]) -> T:
        node = self._publisher_at(address)
        self._published_at.learn(subject, address)
        try:
            result = node._run(call)
        except DelayServerError:
            self._published_at.distrust(subject, address)
            raise
        self._published_at.trust(address)
        return result
