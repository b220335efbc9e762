"""The named errors of the whole service: what the wire calls them, and whose fault each one is.

Every error that may cross the wire is one class here, and its ``error`` attribute is its name on the wire. The server
raises or names them, the clients raise them again. Errors of files and formats are not here: the store has its own, and
the server translates them at its edge. Nothing in this module knows a socket.
"""

from __future__ import annotations

from typing import Any, ClassVar


class DelayServerError(Exception):
    """Base of every error of this service; catch it to catch them all.

    ``error`` is the stable name on the wire, ``message`` a sentence for people (it may change), ``retry_after_ms`` the
    pause after which the same request may succeed (None: waiting does not help, or nobody knows). ``retriable`` says
    whether the same request, unchanged, may succeed later.
    """

    error: ClassVar[str] = "internal_error"
    retriable: ClassVar[bool] = False

    def __init__(
        self, message: str = "", *, retry_after_ms: int | None = None, request_id: int = 0, name: str | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after_ms = retry_after_ms
        # The request this error answers, where a decoder could still read its id; 0 = unknown, or the whole connection.
        self.request_id = request_id
        # The name as it came over the wire; differs from ``error`` only for names this version does not know.
        self.name = name or self.error

    def __str__(self) -> str:
        return f"{self.name}: {self.message}" if self.message else self.name


class InternalError(DelayServerError):
    """The server met a bug of its own while it answered. Its log says more; report it. Retrying may or may not help."""


class UnknownError(DelayServerError):
    """The server named an error that this version does not know, so it is newer: read ``name`` and ``message``,
    or upgrade.
    """

    error = "unknown_error"


class ProtocolError(DelayServerError):
    """The caller's program speaks the protocol wrongly: fix the program. Retrying sends the same wrong bytes again."""

    error = "protocol_error"


class MalformedFrame(ProtocolError):
    """The caller sent bytes that are no request. The server answers with id 0 and closes the connection."""

    error = "malformed_frame"


class FrameTooLarge(ProtocolError):
    """The caller announced a frame above ``frame_bytes_max``. The server closes the connection;
    send smaller batches.
    """

    error = "frame_too_large"


class UnknownOperation(ProtocolError):
    """The caller named an operation that this server does not have: a typo, or a server older than the client."""

    error = "unknown_operation"


class UnsupportedVersion(ProtocolError):
    """Caller and server share no protocol version: upgrade the older of the two."""

    error = "unsupported_version"


class Refused(DelayServerError):
    """The item asked for something that cannot be: change the item. The same item is refused again;
    neighbours are unaffected.
    """

    error = "refused"


class InvalidArgument(Refused):
    """The caller left out a field, or gave one of the wrong type, length or range; the message names the field."""

    error = "invalid_argument"


class TooFar(Refused):
    """The caller asked for a due time beyond ``delay_ms_max``. Nothing is clamped: send it later,
    or raise the limit.
    """

    error = "too_far"


class TooOld(Refused):
    """The caller gave a due time older than the oldest window kept, so a duplicate could not be recognised any more."""

    error = "too_old"


class MessageTooLarge(Refused):
    """The caller's body is above ``body_bytes_max``: store it elsewhere and send a reference, or raise the limit."""

    error = "message_too_large"


class BatchTooLarge(Refused):
    """The caller put more items than ``batch_messages_max`` in one request: split it."""

    error = "batch_too_large"


class SubjectInvalid(Refused):
    """The caller's subject is empty, above ``subject_bytes_max`` bytes, or not printable text."""

    error = "subject_invalid"


class MessageIdInvalid(Refused):
    """The caller's message id is empty, above ``message_id_bytes_max`` bytes, or not UTF-8 text."""

    error = "message_id_invalid"


class PropertiesInvalid(Refused):
    """The caller's properties are no map of text to text, or above ``properties_bytes_max`` bytes when encoded."""

    error = "properties_invalid"


class ReceiptInvalid(Refused):
    """The caller's receipt has not the form of one: it was cut, or is something else."""

    error = "receipt_invalid"


class ForeignReceipt(Refused):
    """The caller showed a receipt of another server: ask the server whose id it begins with."""

    error = "foreign_receipt"


class NotRouted(Refused):
    """No route of the server's configuration covers this subject or group: the operator adds one,
    or the caller has a typo.
    """

    error = "not_routed"


class SubjectsFull(Refused):
    """The table of subject names is full: the caller puts ids into subjects,
    or the operator raises ``subjects_max``.
    """

    error = "subjects_full"


class MessageDamaged(DelayServerError):
    """Nobody's fault but the server's disk: its bytes changed at rest, and what was asked for may stand in them. The
    operator repairs the file that `corruption` in the status names; until then nothing more can be said.
    """

    error = "message_damaged"


class Unavailable(DelayServerError):
    """The server cannot serve this now, through no fault of the caller: the same request may succeed later."""

    error = "unavailable"
    retriable = True


class DiskFull(Unavailable):
    """The server's disk is nearly full. Nothing was stored; the operator makes room and service resumes by itself."""

    error = "disk_full"


class StorageFailed(Unavailable):
    """A write or sync of the server failed, and it accepts nothing more until it is restarted.
    The result is unknown.
    """

    error = "storage_failed"


class QueueFull(Unavailable):
    """More is asked of the server than it can take in just now: wait ``retry_after_ms`` and send more slowly."""

    error = "queue_full"


class NotReady(Unavailable):
    """The server is starting and recovers its files: wait ``retry_after_ms``."""

    error = "not_ready"


class ShuttingDown(Unavailable):
    """The server is stopping: connect again after its restart, or to another node."""

    error = "shutting_down"


class TooManyConnections(Unavailable):
    """The server has ``connections_max`` connections already: share connections, or the operator raises the limit."""

    error = "too_many_connections"


class ConnectionLost(Unavailable):
    """The client could not connect, or the connection broke before the reply: the result is unknown.
    Made by the client.
    """

    error = "connection_lost"


class RequestTimedOut(Unavailable):
    """No reply came within ``timeout_s``: the result is unknown. Made by the client.
    Resend with the same message id and due time.
    """

    error = "timed_out"


def _leaves(base: type[DelayServerError]) -> list[type[DelayServerError]]:
    children = base.__subclasses__()
    return [base] if not children else [leaf for child in children for leaf in _leaves(child)]


ERRORS: dict[str, type[DelayServerError]] = {leaf.error: leaf for leaf in _leaves(DelayServerError)}
"""Every concrete error by its name on the wire."""


def error_to_map(error: DelayServerError) -> dict[str, Any]:
    """Draw an error as the map of the wire: ``error``, ``message`` and, where known, ``retry_after_ms``."""
    fields: dict[str, Any] = {"error": error.name, "message": error.message}
    if error.retry_after_ms is not None:
        fields["retry_after_ms"] = error.retry_after_ms
    return fields


def make_error(
    name: object, message: object = "", retry_after_ms: object = None, *, request_id: int = 0
) -> DelayServerError:
    """Build the exception for an error name of the wire; any name is accepted,
    an unfamiliar one gives `UnknownError`.
    """
    known = ERRORS.get(name) if isinstance(name, str) else None
    return (known or UnknownError)(
        str(message),
        retry_after_ms=retry_after_ms if type(retry_after_ms) is int else None,
        request_id=request_id,
        name=str(name),
    )


def error_from_map(fields: dict[str, Any], *, request_id: int = 0) -> DelayServerError:
    """Read the map of the wire back into an exception; never raises itself."""
    return make_error(
        fields.get("error", UnknownError.error),
        fields.get("message", ""),
        fields.get("retry_after_ms"),
        request_id=request_id,
    )
