# Made by `python -m ops.blocking_client` from asynchronous/operations.py. Change that file.
"""The operations of the blocking client.

`blocking/operations.py` is written by hand. `python -m ops.blocking_client` makes `blocking/operations.py` from it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import ClassVar, TypeVar

import numpy as np
from msgspec.structs import replace
from numpy.typing import ArrayLike, NDArray

from delayserver.client import tracing
from delayserver.client.blocking.batching import Batcher, Sender
from delayserver.client.blocking.figure_operations import BlockingFigureOperations
from delayserver.client.blocking.group_operations import BlockingGroupOperations
from delayserver.client.blocking.one_way_operations import BlockingOneWayOperations
from delayserver.client.blocking.position_operations import BlockingPositionOperations
from delayserver.client.blocking.publish_operations import BlockingPublishOperations
from delayserver.client.blocking.schedule_operations import BlockingScheduleOperations
from delayserver.client.blocking.transaction_operations import BlockingTransactionOperations
from delayserver.client.calls import (
    message_calls,
    position_calls,
    pull_calls,
    send_calls,
    token_calls,
)
from delayserver.client.calls.core import Call, ClientCore, described_call
from delayserver.client.calls.message_calls import Target
from delayserver.client.calls.published_at import PublishedAt
from delayserver.client.calls.pull_calls import Deliveries
from delayserver.client.calls.retry_policy import RetryPolicy
from delayserver.client.calls.send_calls import Instants, Integers, SendColumns, Spans
from delayserver.client.connections.server_addresses import Addresses, Given
from delayserver.client.values.messages import (
    AckResult,
    ColumnsSent,
    Delivery,
    ExtendResult,
    Message,
    NackResult,
    SendResult,
    Status,
)
from delayserver.client.values.pulled_columns import PulledColumns
from delayserver.client.values.timing import (
    Instant,
    Seconds,
    Span,
    instant_ms,
    milliseconds_or_none,
    resolve_due_ms,
    span_ms,
    span_s,
)
from delayserver.protocol.errors import DelayServerError, InvalidArgument
from delayserver.protocol.limits import Limits
from delayserver.protocol.operation_names import CLUSTER, FIND, MAP, RELOAD, ROUTE, SNAPSHOT, SUBJECTS
from delayserver.protocol.schema.fates import CancelResult, LookupResult, RescheduleResult
from delayserver.protocol.schema.greetings import ServerInfo
from delayserver.protocol.schema.groups import ConsumerGroup, GroupCursor, GroupsPage
from delayserver.protocol.schema.members import LeadershipEnded, MemberStanding, ShowMember, SwitchPrimary
from delayserver.protocol.schema.node_routes import AskRoute, Route
from delayserver.protocol.schema.reload import Changes, ReloadConfiguration
from delayserver.protocol.schema.shard_map import AskMap, ShardMap
from delayserver.protocol.schema.snapshots import DropSnapshot, KeepSnapshot, Snapshot, SnapshotDropped, TakeSnapshot
from delayserver.protocol.schema.stored import FindMessages, FindPage, FoundMessage
from delayserver.protocol.schema.subjects import ListSubjects, SubjectsPage
from delayserver.protocol.schema.tokens import Token

T = TypeVar("T")


class BlockingOperations(
    BlockingFigureOperations,
    BlockingGroupOperations,
    BlockingOneWayOperations,
    BlockingPositionOperations,
    BlockingPublishOperations,
    BlockingScheduleOperations,
    BlockingTransactionOperations,
):
    """The operations of a server, as methods. `Client` adds the connection, the attempts and the closing."""

    _FOLLOWS: ClassVar[bool] = True
    """Whether it goes to the primary of a cluster. A kind of client that does not raises `NotPrimary`: one whose callers can
    go there themselves."""

    def __init__(self, address: Given, client_name: str, retries: int, token: str | None = None) -> None:
        self._addresses = Addresses(address)
        self._core = ClientCore(client_name, token=token)
        self._retries = RetryPolicy(retries, follows=self._FOLLOWS)
        self._published_at = PublishedAt()

    @abstractmethod
    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """The result of a call, after as many attempts as it needs. With a ``close_count`` it raises `ConnectionLost`
        if the client was closed after `_close_count` had that value.
        """

    @property
    @abstractmethod
    def _close_count(self) -> int:
        """How often the client was closed."""

    @abstractmethod
    def _read_notices(self) -> bool:
        """Read the notices that the server has sent up to now, without waiting. False if no connection is open, so that none
        could come.
        """

    @abstractmethod
    def _shard_prefix(self) -> str:
        """The begin of an id that the client makes now. It names a shard where the cluster has several."""

    @abstractmethod
    def _batching_client(self) -> Sender[SendResult]:
        """The client over which a batcher sends."""

    # --- about the server

    def connect(self) -> ServerInfo:
        """The server's identity and limits. Connects if not connected, as every call does."""
        if self._core.server is None:
            self.ping()  # Any call connects. A ping also makes the clock exact.
        assert self._core.server is not None
        return self._core.server

    def hello(self) -> ServerInfo:
        """Ask who the server is. The client also learns its clock."""
        return self._run(self._core.hello())

    def ping(self) -> int:
        """The server's time in microseconds. The client also learns its clock."""
        return self._run(self._core.ping())

    @property
    def limits(self) -> Limits:
        """The server's limits; the defaults before the first connection."""
        return self._core.limits

    def status(self) -> Status:
        """The server's status map."""
        return self._run(message_calls.status_call())

    def route(
        self, *, group: str | None = None, subject: str | None = None, order_key: str | None = None
    ) -> Route:
        """The nodes of a broker group, or of the group that a subject routes to, and the node of an order key."""
        call = described_call(ROUTE, AskRoute(group=group, subject=subject, order_key=order_key), Route)
        return (self._run(call)).from_server_at(*self._addresses.current)

    def reload(self) -> list[str]:
        """Have the server read its configuration again and take over other groups, nodes, weights and routes. Returns what
        has changed, a sentence each, when the batches of nodes that leave are settled. Raises ConfigInvalid; nothing was
        changed then.
        """
        return (self._run(described_call(RELOAD, ReloadConfiguration(), Changes))).changes

    def take_snapshot(self) -> Snapshot:
        """Have the server take a snapshot of its directory, in the place of one that is there. ``path`` of the result is a
        folder on the server's machine. Copy it and drop it; ``delayserver backup`` does both. Not repeated after a lost
        reply.
        """
        return self._run(described_call(SNAPSHOT, TakeSnapshot(), Snapshot, repeatable=False))

    def keep_snapshot(self, name: str) -> Snapshot:
        """Keep a snapshot for another ten minutes. Raises InvalidArgument if it was dropped."""
        return self._run(described_call(SNAPSHOT, KeepSnapshot(name=name), Snapshot))

    def cluster_standing(self) -> MemberStanding:
        """What this member of a cluster knows of its shard: who leads, in which epoch, and how far it is itself. Raises
        InvalidArgument for a server without a cluster.
        """
        return self._run(described_call(CLUSTER, ShowMember(), MemberStanding))

    def shard_map(self) -> ShardMap:
        """The shards of the cluster, as this member knows them now. A server without a cluster has none."""
        return self._run(described_call(MAP, AskMap(), ShardMap))

    def switch_primary(self, to: str) -> int:
        """Have the primary hand its leadership over to another member. Returns the epoch that has ended; the other member
        leads a moment later. Not repeated after a lost reply. Raises NotPrimary.
        """
        return (
            self._run(described_call(CLUSTER, SwitchPrimary(member=to), LeadershipEnded, repeatable=False))
        ).epoch

    def drop_snapshot(self, name: str, *, complete: bool = False) -> bool:
        """Drop a snapshot. ``complete``: a backup of it is complete, which the server's figures tell from then on. False if
        it was not there."""
        drop = DropSnapshot(name=name, complete=complete)
        return (self._run(described_call(SNAPSHOT, drop, SnapshotDropped))).dropped

    def token(
        self,
        role: str | Sequence[str],
        subjects: str | Sequence[str] = "*",
        *,
        name: str = "",
        expires: datetime | int = 0,
        expires_ms: Instant = 0,
        rate: int = 0,
        bytes_rate: int = 0,
        pending_max: int = 0,
    ) -> token_calls.MadeToken:
        """Make a token for ``send``, ``consume``, ``look`` or ``admin``, or several of them, and for subjects that match one
        of the patterns. ``expires`` is a datetime, or ``expires_ms`` gives the time; 0 for never. The limits are messages a
        second, bytes a second, and messages that wait at a time; 0 for none. Not repeated after a lost reply: it would make
        two.
        """
        limits = {"rate": rate, "bytes_rate": bytes_rate, "pending_max": pending_max}
        wanted = token_calls.wanted_token(role, subjects, expires or expires_ms, name=name, **limits)
        return self._run(token_calls.making_call(wanted))

    def tokens(self) -> list[Token]:
        """All tokens of the server, without their secrets."""
        return (self._run(token_calls.list_call())).tokens

    def revoke_token(self, token_id: str) -> Token:
        """End a token at once. Connections that use it are closed."""
        return self._run(token_calls.revoke_call(token_id))

    def rotate_token(
        self, token_id: str, overlap: timedelta | float | None = None, *, overlap_s: Seconds | None = None
    ) -> token_calls.MadeToken:
        """Give a token a new secret. The old one stays valid for the ``overlap`` or ``overlap_s``, an hour by default."""
        return self._run(token_calls.rotate_call(token_id, overlap if overlap_s is None else overlap_s))

    def subjects(self, pattern: str | None = None, *, prefix: str = "") -> list[str]:
        """The subjects that this node has met, or those that match a shell-style ``pattern`` and begin with ``prefix``.
        It asks for a page at a time. Those of several shards come in the order of their names.
        """
        page = self.subjects_page(pattern, prefix=prefix)
        found = page.subjects
        while page.more:
            page = self.subjects_page(pattern, prefix=prefix, after=page.next)
            found += page.subjects
        return found

    def subjects_page(
        self, pattern: str | None = None, *, prefix: str = "", after: int | str = 0
    ) -> SubjectsPage:
        """A page of `subjects`: those behind ``after``, the ``next`` of another page. Of several shards it is a name."""
        asked = ListSubjects(pattern=pattern, prefix=prefix, after=after)  # type: ignore[arg-type]  # no server gets a name
        return self._run(described_call(SUBJECTS, asked, SubjectsPage))

    def groups(self, subject: str | None = None) -> list[ConsumerGroup]:
        """The consumer groups of this node, or those of one subject, asked for a page at a time. Those of several shards
        come in the order of their names, and their counts are added.
        """
        page = self.groups_page(subject)
        groups = page.groups
        while page.next is not None:
            page = self.groups_page(subject, page.next)
            groups += page.groups
        return groups

    def groups_page(
        self, subject: str | None = None, after: GroupCursor | None = None, max_groups: int | None = None
    ) -> GroupsPage:
        """A page of `groups`, behind the ``next`` of another page. A page may be empty and not the last one."""
        return self._run(position_calls.groups_call(subject, after, max_groups))

    def find(
        self,
        message_id: str | None = None,
        *,
        key: str | None = None,
        subject: str | None = None,
        from_ms: Instant | None = None,
        to_ms: Instant | None = None,
        max_messages: int = 1000,
    ) -> list[FoundMessage]:
        """Messages that are stored on this node, consumed or not: by their id, by a word of their property ``keys``, or all
        of a ``subject``.

        ``from_ms`` and ``to_ms`` (not included) bound the time of their dispatch to the node. It asks for a page at a time.
        """
        asked = FindMessages(message_id=message_id, key=key, subject=subject)
        if from_ms is not None:
            asked = replace(asked, from_ms=instant_ms(from_ms))
        if to_ms is not None:
            asked = replace(asked, to_ms=instant_ms(to_ms))
        page = self._run(described_call(FIND, asked, FindPage))
        found = page.messages
        while page.next is not None and len(found) < max_messages:
            page = self._run(described_call(FIND, replace(asked, after=page.next), FindPage))
            found += page.messages
        return found[:max_messages]

    def resolve_due_ms(
        self, due_ms: Instant | None, delay_ms: Span | None, at: datetime | None, delay: timedelta | None
    ) -> int:
        """The absolute due time of exactly one of the four, by the server's clock."""
        if delay_ms is not None or delay is not None:
            self._learn_clock()
        return resolve_due_ms(self._core.clock, due_ms, delay_ms, at, delay)

    def _learn_clock(self) -> None:
        """Make the server's clock fit to resolve a delay: learn it, unless it was learned exactly and lately, and was not
        stepped since. Without a connection nobody tells of a step.
        """
        if not self._read_notices():
            self._core.clock.forget()
        while self._core.clock.stale:
            self.ping()

    # --- send

    def send(
        self,
        subject: str,
        body: bytes | str,
        *,
        due_ms: Instant | None = None,
        delay_ms: Span | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        delay_level: int | None = None,
        tell_duplicates: bool = False,
    ) -> SendResult:
        """Send one message, due at ``due_ms``, ``at``, or after ``delay_ms`` or ``delay`` by the server's clock.
        ``delay_level`` is the number of a named delay of the server, from 1 on.

        The message is durable on return. The client resolves a delay once, before the first attempt.
        A message without a ``message_id`` gets a random one (UUID 4) if the client has ``retries``. By it the server
        recognises a retry after a lost reply, and does not deliver the message twice. With ``retries=0`` the server
        makes the id.

        With ``tell_duplicates`` the result says whether the server had the message before (`SendResult.duplicate`), and what
        became of it: a message that was cancelled is not delivered when it is sent again. The answer then takes about a
        millisecond longer, and up to a second if the server is behind. It needs a ``message_id`` of yours.
        """
        if delay_level is not None:
            if delay_ms is not None:
                raise InvalidArgument("give either delay_ms or delay_level, not both")
            delay_ms = send_calls.delay_of_level(self.connect(), delay_level)
        due_ms = self.resolve_due_ms(due_ms, delay_ms, at, delay)
        if tell_duplicates and message_id is None:
            raise InvalidArgument("tell_duplicates needs a message_id: a new one has no duplicates")
        if message_id is None and self._retries.retries:
            message_id = send_calls.new_message_id(self._shard_prefix())
        with tracing.sending("send", subject, properties, due_ms) as made:
            return self._run(
                send_calls.send_call(
                    subject,
                    body,
                    due_ms,
                    message_id=message_id,
                    properties=made.properties,
                    expires_ms=expires_ms,
                    tag=tag,
                    order_key=order_key,
                    tell_duplicates=tell_duplicates,
                )
            )

    def send_many(
        self, messages: Sequence[Message], *, tell_duplicates: bool = False
    ) -> list[SendResult | DelayServerError]:
        """Send up to ``batch_messages_max`` messages in one frame: a result or an error for each, in order.

        A refused message does not fail its neighbours and is not retried here. Ids are made as by `send`. With
        ``tell_duplicates`` the results say which messages are duplicates, and come later, as by `send`.
        """
        if not messages:
            return []
        if any(m.delay_ms is not None or m.delay is not None for m in messages):
            self._learn_clock()
        make_ids = self._retries.retries > 0
        with tracing.sending_many("send", messages) as traced:
            call = send_calls.send_many_call(
                traced,
                self._core.clock,
                make_ids=make_ids,
                prefix=self._shard_prefix(),
                tell_duplicates=tell_duplicates,
            )
            return self._run(call)

    def send_placed(self, messages: Sequence[Message], shard: int) -> list[SendResult | DelayServerError]:
        """`send_many` of messages as `placed` gave them for a shard: their ids or keys name it."""
        return self.send_many(messages)

    def send_columns(
        self,
        subjects: str | Sequence[str],
        given: send_calls.Bodies | Instants | None = None,
        then_bodies: send_calls.Bodies | None = None,
        *,
        bodies: send_calls.Bodies | None = None,
        due_ms: Instants | None = None,
        delay_ms: Spans | None = None,
        body_length: Integers | None = None,
        subject_index: Integers | None = None,
        message_ids: Sequence[str] | None = None,
        properties: Sequence[Mapping[str, str] | None] | None = None,
        expires_ms: Instants | None = None,
        count: int | None = None,
        tags: str | Sequence[str | None] | None = None,
        tag_index: Integers | None = None,
        order_keys: Sequence[str | None] | None = None,
        tell_duplicates: bool = False,
    ) -> ColumnsSent:
        """Send arrays: the fast way, as ``send_columns("orders", bodies, delay_ms=...)``. ``due_ms`` (or ``delay_ms``) is
        i64[n] or one value, ``bodies`` a list or one blob with ``body_length``. The form of before, ``send_columns("orders",
        due_ms, bodies)``, works too.

        ``subjects`` is one subject, or a list with ``subject_index`` u32[n]. ``tags`` is one tag, a list with one for each
        row, or a list with ``tag_index`` u32[n] that counts from 1 (0: none). The client makes no ids here. Without
        ``message_ids`` the server could not recognise a duplicate, so a lost reply is not retried: it raises
        `ConnectionLost`. ``tell_duplicates``: the answer names rows that the server had before. It then comes after their
        replay, some milliseconds later.
        """
        due_ms, bodies = send_calls.columns_given(given, then_bodies, due_ms, bodies)
        if delay_ms is not None:
            self._learn_clock()
        columns = SendColumns(
            subjects=subjects,
            due_ms=send_calls.resolve_due_column(self._core.clock, due_ms, delay_ms),
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
            tell_duplicates=tell_duplicates,
        )
        with tracing.sending_columns("send", subjects):
            return self._run(send_calls.send_columns_call(columns))

    def batcher(
        self,
        subject: str | None = None,
        *,
        batch_messages_max: int = 1000,
        linger_ms: Span = 5,
        pending_messages_max: int = 100_000,
    ) -> Batcher[SendResult]:
        """Send in the background, in batches; see `Batcher`."""
        return Batcher(
            self._batching_client(),
            subject,
            batch_messages_max=batch_messages_max,
            linger_ms=linger_ms,
            pending_messages_max=pending_messages_max,
        )

    # --- about messages

    def cancel(self, target: Target) -> CancelResult:
        """Cancel one message by receipt or `MessageKey`. The cancel is durable on return."""
        return message_calls.only_row(self.cancel_many([target]))

    def cancel_many(self, targets: Sequence[Target]) -> list[CancelResult | DelayServerError]:
        """Cancel many, all by receipt or all by `MessageKey`: a result or an error for each, in order."""
        return self._run(message_calls.cancel_call(targets)) if targets else []

    def cancel_columns(self, due_ms: ArrayLike, sequence: ArrayLike) -> NDArray[np.uint8]:
        """Cancel many by due time and sequence (i64[n] each); gives `Outcome` codes, u8[n]."""
        return self._run(message_calls.cancel_columns_call(due_ms, sequence))

    def reschedule(
        self,
        target: Target,
        *,
        due_ms: Instant | None = None,
        delay_ms: Span | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        body: bytes | str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
    ) -> RescheduleResult:
        """Move a message to another due time in one atomic step. Fields that are not given stay as they are.
        ``delay_ms=0`` delivers it now.

        Not retried once its request has left: after `ConnectionLost` ask `lookup` what became of it.
        """
        new_due_ms = self.resolve_due_ms(due_ms, delay_ms, at, delay)
        return self._run(
            message_calls.reschedule_call(
                target, new_due_ms, body, properties, None if expires_ms is None else instant_ms(expires_ms)
            )
        )

    def lookup(self, target: Target, *, body: bool = False, times: bool = False) -> LookupResult:
        """The fate of one message, by receipt or `MessageKey`; with ``body`` also what it says, with ``times`` also when it
        passed each stage.
        """
        return message_calls.only_row(self.lookup_many([target], body=body, times=times))

    def lookup_many(
        self,
        targets: Sequence[Target],
        *,
        body: bool = False,
        times: bool = False,
    ) -> list[LookupResult | DelayServerError]:
        """The fate of many messages: a result or an error for each, in order; ``body`` and ``times`` as for `lookup`."""
        return self._run(message_calls.lookup_call(targets, body=body, times=times)) if targets else []

    # --- consume

    def pull(
        self,
        subject: str,
        group: str,
        max_messages: int = 100,
        wait_s: Seconds = 0.0,
        *,
        ack_timeout_s: Seconds | None = None,
        ack: Deliveries | None = None,
        start: str | datetime | int | None = None,
        start_ms: Instant | None = None,
        broadcast: bool = False,
        tags: str | None = None,
        where: str | None = None,
        outlive_s: Seconds | None = None,
    ) -> list[Delivery]:
        """Up to ``max_messages`` deliveries; waits up to ``wait_s`` for the first. See `pull_columns`."""
        pulled = self.pull_columns(
            subject,
            group,
            max_messages,
            wait_s,
            ack_timeout_s=ack_timeout_s,
            ack=ack,
            start=start,
            start_ms=start_ms,
            broadcast=broadcast,
            tags=tags,
            where=where,
            outlive_s=outlive_s,
        )
        return pulled.deliveries()

    def pull_columns(
        self,
        subject: str,
        group: str,
        max_messages: int = 1000,
        wait_s: Seconds = 0.0,
        *,
        ack_timeout_s: Seconds | None = None,
        max_bytes: int | None = None,
        ack: Deliveries | None = None,
        start: str | datetime | int | None = None,
        start_ms: Instant | None = None,
        broadcast: bool = False,
        tags: str | None = None,
        where: str | None = None,
        outlive_s: Seconds | None = None,
    ) -> PulledColumns:
        """Deliveries as columns. ``ack`` settles earlier ones in the same round trip.

        ``start`` counts if this pull makes the group: ``"earliest"`` (the default), ``"latest"``, or a datetime,
        as ``start_ms`` gives a time: the first message that was dispatched at or after it.

        ``broadcast``: the group belongs to this client's connection. It begins at the latest message unless ``start``
        says otherwise, needs no acks, and ends with the connection; after a lost connection it begins anew. A client
        that must miss nothing keeps its own place with `read`.

        ``tags`` (``"paid || shipped"``, ``"*"`` for all) and ``where`` (``"price > 3 AND country IN ('de', 'fr')"``) are
        the filter of the group, at this node, from now on. Without both the group keeps the filter that it has. Messages
        that do not match are done for the group. Raises `FilterInvalid` with the place of the first fault, and
        `FilterInUse` while other consumers use another filter of the group.

        A delivery that is not acked within ``ack_timeout_s`` (default: the server's) comes again. With ``outlive_s`` (0 to
        60) it also comes again so long after the end of this client's connection. After a lost connection `extend` with
        ``outlive_s`` keeps it. The client splits a ``wait_s`` beyond the server's bound into several requests.
        """
        ack_timeout_ms = milliseconds_or_none(ack_timeout_s)
        wait_ms = round(span_s(wait_s) * 1000)
        close_count = self._close_count
        self.connect()  # Before it the server's bound of a wait is not known.
        while True:
            part_ms = min(wait_ms, self._core.limits.wait_ms_max)
            wait_ms -= part_ms
            call = pull_calls.pull_call(
                subject,
                group,
                max_messages=max_messages,
                wait_ms=part_ms,
                ack_timeout_ms=ack_timeout_ms,
                max_bytes=max_bytes,
                ack=ack,
                start=position_calls.start_argument(start if start_ms is None else instant_ms(start_ms)),
                broadcast=broadcast,
                tags=tags,
                where=where,
                outlive_ms=milliseconds_or_none(outlive_s),
            )
            pulled = self._run(call, close_count)
            if pulled.count or wait_ms <= 0:
                return pulled
            ack = None

    def ack(self, subject: str, group: str, deliveries: Deliveries) -> AckResult:
        """Settle deliveries. The result is durable at their node when this returns.

        Deliveries counted as ``acked`` do not come again. Of those counted as ``unknown`` some were settled before; the
        others come again, because their leases have ended. After an error the result is unknown, and all may come again.
        An ack settles a delivery, not its message: after a crash another node may have the message too, and
        ``redispatch`` delivers it again. So consume idempotently, by ``message_id``.
        """
        return self._run(pull_calls.ack_call(subject, group, deliveries))

    def nack(
        self,
        subject: str,
        group: str,
        deliveries: Deliveries,
        delay: timedelta | None = None,
        *,
        delay_ms: Span | None = None,
        level: int | None = None,
        reason: str = "",
        unseen: bool = False,
        snooze: bool = False,
    ) -> NackResult:
        """Hand deliveries back. They come again after ``delay`` or ``delay_ms``, or after the delay level ``level``. Without
        any of these they come after the growing pauses of the group.

        After the last attempt of the group's policy a message becomes a dead letter, which keeps the ``reason``.
        ``unseen``: the consumer has not begun to handle the messages. ``snooze``: it wants them later, and nothing has
        failed. Both are no attempt, so the messages do not become dead letters.
        """
        if delay_ms is not None:
            if delay is not None:
                raise InvalidArgument("give one of delay and delay_ms")
            delay = timedelta(milliseconds=span_ms(delay_ms))
        call = pull_calls.nack_call(
            subject, group, deliveries, delay, level=level, reason=reason, unseen=unseen, snooze=snooze
        )
        return self._run(call)

    def extend(
        self,
        subject: str,
        group: str,
        deliveries: Deliveries,
        *,
        ack_timeout_s: Seconds | None = None,
        outlive_s: Seconds | None = None,
    ) -> ExtendResult:
        """Let the leases of deliveries go on: they end ``ack_timeout_s`` from now (default: the server's).

        A consumer that works longer than its lease extends it in time. Listeners do so by themselves. With ``outlive_s``
        the leases also end so long after the end of this client's present connection. Without it they outlive every
        connection. A restart of the node ends all leases.
        """
        ack_timeout_ms, outlive_ms = milliseconds_or_none(ack_timeout_s), milliseconds_or_none(outlive_s)
        return self._run(pull_calls.extend_call(subject, group, deliveries, ack_timeout_ms, outlive_ms))
