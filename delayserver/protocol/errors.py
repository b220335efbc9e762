"""The named errors of the whole service. The docstring of each says what happened and what to do.

Every error that may cross the wire is one class here; ``error`` is its name on the wire. The server raises it or sends it,
and the client raises it again. The store has errors of its own for files and formats, which the server translates. The
table of errors in PROTOCOL.md, and that of the site, are made from the classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL, Outcome


class DelayServerError(Exception):
    """Base of every error of this service. A caller that catches it catches them all.

    ``error`` is the stable name on the wire, ``message`` a sentence for people, which may change. ``retriable``: the same
    request, unchanged, may succeed later, after a pause of ``retry_after_ms`` if that is not None. ``fault``: who has to do
    something, `client`, `operator`, `server` or `nobody`. ``again``: when a repeat makes sense, where `retriable` does not
    say all of it.
    """

    error: ClassVar[str] = "internal_error"
    retriable: ClassVar[bool] = False
    fault: ClassVar[str] = "server"
    again: ClassVar[str] = ""

    def __init__(
        self,
        message: str = "",
        *,
        retry_after_ms: int | None = None,
        request_id: int = 0,
        name: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        # The request that this error answers. 0: its id is not known, or the error concerns the whole connection.
        self.request_id = request_id
        # The name as it came over the wire. It differs from ``error`` only if this version does not know the name.
        self.name = name or self.error
        # Numbers and texts of this kind of error, which are fields of its map on the wire.
        self.details: Mapping[str, Any] = details or {}

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


class InternalError(DelayServerError):
    """The server has a bug, of which its log says more. Please report it. The result is unknown."""


class UnknownError(DelayServerError):
    """The server sent an error that this version does not know, so the server is newer. Read ``name`` and ``message``,
    or upgrade.
    """

    error = "unknown_error"


class ProtocolError(DelayServerError):
    """The caller's program does not follow the protocol. Fix the program: a retry sends the same wrong bytes again."""

    error = "protocol_error"
    fault = "client"


class MalformedFrame(ProtocolError):
    """The caller sent bytes that are not a request. The server answers with id 0 and closes the connection."""

    error = "malformed_frame"


class MalformedRequest(ProtocolError):
    """The caller sent an operation that is no text, or arguments that are no map with text keys. The connection goes on."""

    error = "malformed_request"


class FrameTooLarge(ProtocolError):
    """The caller announced a frame above ``frame_bytes_max``. Send smaller batches. The server answers with id 0 and
    closes the connection.
    """

    error = "frame_too_large"

    def __init__(self, message: str = "", *, speaks: str = "", **fields: Any) -> None:
        """``speaks``: the bytes are no frame, but the beginning of this other protocol."""
        super().__init__(message, **fields)
        self.speaks = speaks


class UnknownOperation(ProtocolError):
    """The caller named an operation that this server does not have. It is a typo, the server is older than the client,
    or it is a broker, which has fewer operations.
    """

    error = "unknown_operation"


class UnsupportedVersion(ProtocolError):
    """Caller and server share no protocol version: upgrade the older of the two."""

    error = "unsupported_version"


class Refused(DelayServerError):
    """The server refuses this item, and will refuse it again: change the item. Other items of the request are unaffected."""

    error = "refused"
    fault = "client"


class InvalidArgument(Refused):
    """The caller left out a field, or gave one of the wrong type, length or range. Mend the field that the message names."""

    error = "invalid_argument"


class TooFar(Refused):
    """The caller asked for a due time beyond ``delay_ms_max``. The server clamps nothing. Send the message later, or
    raise the limit.
    """

    error = "too_far"


class TooOld(Refused):
    """The caller gave a due time before the oldest kept window, where the server could not recognise a duplicate. Give
    another one. Section 8 of PROTOCOL.md has a second cause.
    """

    error = "too_old"


class MessageTooLarge(Refused):
    """The caller's body is above ``body_bytes_max``. Store it elsewhere and send a reference, or raise the limit."""

    error = "message_too_large"


class BatchTooLarge(Refused):
    """The caller put more items into one request than a bound allows, such as ``batch_messages_max``. Split the request."""

    error = "batch_too_large"


class SubjectInvalid(Refused):
    """The caller's subject, or consumer group, is empty, above ``subject_bytes_max`` bytes, or not printable text.
    Change it.
    """

    error = "subject_invalid"


class MessageIdInvalid(Refused):
    """The caller's message id is empty, above ``message_id_bytes_max`` bytes, or not UTF-8 text; or it has the form of
    an id that the server makes. Change it.
    """

    error = "message_id_invalid"


class PropertiesInvalid(Refused):
    """The caller's properties are not a map of text to text, or are above ``properties_bytes_max`` bytes when encoded."""

    error = "properties_invalid"


class ReceiptInvalid(Refused):
    """The caller's receipt does not have the form of a receipt. Perhaps it was cut."""

    error = "receipt_invalid"


class ForeignReceipt(Refused):
    """The caller gave a receipt of another server. Ask the server whose id the receipt begins with."""

    error = "foreign_receipt"


class NotRouted(Refused):
    """There is no such broker group: the caller has a typo, or the operator adds the group. Or consumers cannot pull
    from its nodes.
    """

    error = "not_routed"


class PublishedElsewhere(Refused):
    """The messages of this subject belong to other nodes, which the message names. Publish at a node that `route` gives,
    as the client library does. Or send, and the server delivers them there.
    """

    error = "published_elsewhere"


class ServerNotProven(Refused):
    """The caller asked for an operation of servers without a proof that it is one. Configure it with the
    ``server_secret`` of this server, and let it ask for `prove` first. Without a secret, add its address to the
    ``server_networks`` here.
    """

    error = "server_not_proven"
    fault = "operator"


class Unauthenticated(Refused):
    """The server asks for a token, and the caller gave none, or one that is wrong, revoked or expired. The operator
    makes one with ``delayserver token create``. With id 0 the connection closes: its token has just ended, or a frame
    above 4,096 bytes came before the token.
    """

    error = "unauthenticated"


class Forbidden(Refused):
    """The caller's token lacks the role of the operation, or a pattern for the subject. Nothing of the item was done.
    For a message of several it is the error of its row. A receipt of a message whose subject is closed is `unknown`, as
    if there were no such message. The operator makes a token that allows it.
    """

    error = "forbidden"


class TransactionUnknown(Refused):
    """The caller named a transaction that was never prepared here: a wrong receipt, or that of an ordinary message."""

    error = "transaction_unknown"


class TransactionEnded(Refused):
    """The transaction has ended in another way than the caller asks for; ``outcome`` says how. The first end counts."""

    error = "transaction_ended"

    @property
    def outcome(self) -> Outcome:
        """How it ended: ROLLED_BACK, COMMITTED, CANCELLED, DEDUPLICATED or RETIRED; UNKNOWN if the server did not say."""
        return Outcome(self.details.get("outcome", Outcome.UNKNOWN))


class ScheduleUnknown(Refused):
    """The caller named a schedule that this server does not have: a wrong name, or one that was deleted."""

    error = "schedule_unknown"


class SchedulesFull(Refused):
    """The server has as many schedules as it can have. Delete some that have ended, or give one the work of several."""

    error = "schedules_full"


class SubjectsFull(Refused):
    """The table of subject names is full, or the part of it that one token may fill (``names_of_token_percent``). The
    message says which. Perhaps the caller puts ids into subjects; otherwise the operator raises ``subjects_max``.
    """

    error = "subjects_full"


class TagsFull(Refused):
    """The table of tag names is full, or the part of it that one token may fill, as for `subjects_full`. Perhaps the
    caller puts ids into tags; otherwise the operator raises ``tags_max``.
    """

    error = "tags_full"


class FilterInvalid(Refused):
    """The caller's filter does not parse, is above a bound, or can match no message. The error says by ``line``,
    ``column`` and ``offset`` where its first fault is, and the message what was expected there.
    """

    error = "filter_invalid"


class GroupsFull(Refused):
    """This node has ``groups_max`` consumer groups, or the part of them that one token may make, as for `subjects_full`.
    Give all consumers of a kind one group name; otherwise the operator raises ``groups_max``.
    """

    error = "groups_full"


class PolicyInvalid(Refused):
    """The caller's policy for a consumer group makes no sense, or has a field that this node does not know. The message
    names the field and its valid values.
    """

    error = "policy_invalid"


class GroupUnknown(Refused):
    """The caller named a consumer group that this node does not have, or a subject that it never saw. `groups` lists
    what it has. It is a typo, another node has the group, or the group was removed.
    """

    error = "group_unknown"


class PositionOutOfRange(Refused):
    """A `seek` named a position that the subject does not have: name one from ``first`` to ``end``, which the error has.
    Or the group of a `pull` lagged by more than the node keeps for it (``broker.lag_bytes_max``, ``broker.lag_ms_max``), and
    lost messages. Only one pull gets this error; the next one goes on at ``first``. A pull that waited when the messages
    were removed can bring later ones first, without this error.
    """

    error = "position_out_of_range"
    again = "`seek` no, `pull` yes"


class ConfigInvalid(Refused):
    """The operator asked for a reload of a configuration that is wrong, or that differs in what a running server cannot
    change. Nothing was changed. Mend the settings that the message names, or restart the server.
    """

    error = "config_invalid"
    fault = "operator"


class DeadlinePassed(Refused):
    """The `deadline_ms` of the request came before its turn. The server has carried out nothing of it."""

    error = "deadline_passed"
    again = "with a later deadline"


class MessageDamaged(DelayServerError):
    """The server's disk has changed bytes or cannot read them, and the message may lie there. The operator looks at
    `corruption` and `unreadable` in the status.
    """

    error = "message_damaged"
    fault = "operator"


class Unavailable(DelayServerError):
    """The server cannot serve this request now. The same request may succeed later; the caller did nothing wrong."""

    error = "unavailable"
    retriable = True
    fault = "nobody"


class DiskFull(Unavailable):
    """The server's disk is nearly full. Nothing was stored. Once the operator has made room, the server accepts again."""

    error = "disk_full"
    fault = "operator"


class StorageFailed(Unavailable):
    """The server's disk refused an operation. With ``retry_after_ms`` it was a read, which changed nothing: ask again.
    Without it a write or a sync failed: the result is unknown, and the server accepts nothing until its restart.
    """

    error = "storage_failed"
    fault = "operator"
    again = "yes; a `send` only if it is repeatable"


class QueueFull(Unavailable):
    """The server cannot take more requests now. Wait ``retry_after_ms`` and send more slowly."""

    error = "queue_full"
    fault = "client"


class RateLimited(Unavailable):
    """The caller's token has used up what it may send now, in messages, in bytes, or in messages that wait. Nothing was
    stored. Wait ``retry_after_ms``, or the operator gives the token a higher limit.
    """

    error = "rate_limited"
    fault = "client"


class FilterInUse(Unavailable):
    """A consumer of the group pulls with another filter, or has messages that came by it. The filter belongs to the
    group. Give all consumers of a group the same one, wait until the others are gone, or use another group.
    """

    error = "filter_in_use"
    fault = "client"


class NotReady(Unavailable):
    """The server starts; the message says what it waits for. Wait ``retry_after_ms``."""

    error = "not_ready"


class KeysIncomplete(Unavailable):
    """The server makes its index of message ids again, and cannot find a message by its id alone yet. A receipt, or an id
    with its due time, finds it. Wait ``retry_after_ms``.
    """

    error = "keys_incomplete"


class NotPrimary(Unavailable):
    """This member of a cluster does not lead, so it has done nothing of the request. Ask the member at ``primary``, if the
    error names one, and else the other members. ``http`` is the URL of that member's HTTP interface, if it has one.
    """

    error = "not_primary"
    again = "yes, at the primary"

    @property
    def primary(self) -> str:
        """Where the primary answers, as ``host:port``; empty if this member does not know it."""
        return str(self.details.get("primary", ""))

    @property
    def http(self) -> str:
        """The URL of the primary's HTTP interface; empty if it has none or this member does not know it."""
        return str(self.details.get("http", ""))


class WrongShard(Unavailable):
    """The message belongs to another shard of the cluster: to ``shard``, if the error names one, by ``version`` of the map.
    Nothing of it was stored. Read the map, and send it there. If the map of the caller is newer than ``version``, the member
    is behind: wait ``retry_after_ms``.
    """

    error = "wrong_shard"
    again = "yes, at the shard that the map names"

    @property
    def version(self) -> int:
        """The version of the map by which the message was refused."""
        return int(self.details.get("version", 0))


class SharedLogUnavailable(Unavailable):
    """The shared log of the cluster does not answer, so nothing can be made durable. Nothing was stored. It goes on by
    itself when the log does; the operator looks at Kafka.
    """

    error = "log_unavailable"
    fault = "operator"


class Superseded(Unavailable):
    """The server has delivered to this node over a newer connection, so the node refuses this older one. Nothing was
    stored. The server connects again. Only servers get this error.
    """

    error = "superseded"
    fault = "server"
    again = "yes, over a new connection"


class DuplicateServerId(Unavailable):
    """Another process with the caller's server id delivers to this node: somebody has copied a data directory. Nothing
    was stored. The operator stops one of the two processes. A minute later the node accepts the other one.
    """

    error = "duplicate_server_id"
    fault = "operator"


class NotDue(Unavailable):
    """The server delivered a message more than ``server_clock_ahead_ms_max`` before its due time by this node's clock.
    Nothing was stored. The operator corrects the wrong clock.
    """

    error = "not_due"
    fault = "operator"


class ShuttingDown(Unavailable):
    """The server is stopping. Connect again after its restart, or use another node."""

    error = "shutting_down"


class TooManyConnections(Unavailable):
    """The server has as many connections as it may have, or as many of this client. Share connections, or the operator
    raises ``connections_max``. With id 0 the connection closes. As the answer to a `hello` it says that the token has as
    many connections as one may have.
    """

    error = "too_many_connections"
    fault = "client"


class FrameTimeout(Unavailable):
    """The rest of the caller's frame came too late, or too slowly while the server was short of memory. The request was
    not begun. The server answers with id 0 and closes the connection. Connect again and repeat the request.
    """

    error = "frame_timeout"
    fault = "client"
    again = "yes, over a new connection"


class InDoubt(Unavailable):
    """The member that took the request leads no longer, and nobody knows whether the next primary has it. The result is
    unknown. Ask there again, or look the message up.
    """

    error = "in_doubt"
    fault = "nobody"
    again = "yes; a `send` only if it is repeatable"


class ConnectionLost(InDoubt):
    """The client could not connect, or the connection broke before the reply. The result is unknown. The client raises
    this error itself.
    """

    error = "connection_lost"
    again = ""


class RequestTimedOut(InDoubt):
    """No reply came within ``timeout_s``. The result is unknown: send again with the same message id and due time. The
    client raises this error itself.
    """

    error = "timed_out"
    again = ""


def _leaves(base: type[DelayServerError]) -> list[type[DelayServerError]]:
    children = base.__subclasses__()
    return [base] if not children else [leaf for child in children for leaf in _leaves(child)]


# A server sends `InDoubt` itself; its kinds are the client's own.
_CONCRETE: list[type[DelayServerError]] = [*_leaves(DelayServerError), InDoubt]

ERRORS: dict[str, type[DelayServerError]] = {kind.error: kind for kind in _CONCRETE}
"""Every concrete error by its name on the wire."""


def kept(error: DelayServerError) -> DelayServerError:
    """The same error without its traceback, to keep it as a value. A traceback keeps every stack frame of its way,
    with the request in it, until the garbage collector runs.
    """
    error.__cause__ = error.__context__ = None
    return error.with_traceback(None)


def copied(error: DelayServerError) -> DelayServerError:
    """A copy of the error for another caller. One object that many callers raise would collect all their tracebacks."""
    copy = type(error)(error.message, retry_after_ms=error.retry_after_ms, name=error.name, details=error.details)
    copy.__cause__ = error.__cause__
    return copy


def error_to_map(error: DelayServerError) -> dict[str, Any]:
    """Encode an error as the map of the wire: ``error``, ``message`` and, if known, ``retry_after_ms``."""
    fields: dict[str, Any] = {"error": error.name, "message": error.message, **error.details}
    if error.retry_after_ms is not None:
        fields["retry_after_ms"] = error.retry_after_ms
    return fields


def make_error(
    name: object,
    message: object = "",
    retry_after_ms: object = None,
    *,
    request_id: int = 0,
    details: Mapping[str, Any] | None = None,
) -> DelayServerError:
    """The exception for an error name of the wire. An unknown name gives `UnknownError`.

    A client that has joined the replies of several servers may have the exception itself in the place of its name."""
    if isinstance(name, DelayServerError):
        return name
    known = ERRORS.get(name) if isinstance(name, str) else None
    return (known or UnknownError)(
        str(message),
        retry_after_ms=retry_after_ms if type(retry_after_ms) is int else None,
        request_id=request_id,
        name=str(name),
        details=details,
    )


_COMMON = ("error", "message", "retry_after_ms")


def error_from_map(fields: dict[str, Any], *, request_id: int = 0) -> DelayServerError:
    """The exception of an error map from the wire. Never raises."""
    details = {name: value for name, value in fields.items() if name not in _COMMON and type(value) in (int, str)}
    label = fields.get("outcome")
    if type(label) is str:
        details["outcome"] = int(OUTCOMES_BY_LABEL.get(label, Outcome.UNKNOWN))
    return make_error(
        fields.get("error", UnknownError.error),
        fields.get("message", ""),
        fields.get("retry_after_ms"),
        request_id=request_id,
        details=details,
    )
