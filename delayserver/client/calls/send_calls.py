"""Calls that send: one message as a row, or many messages or arrays as columns. No I/O."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar, cast

import msgpack
import numpy as np
from numpy.typing import ArrayLike, NDArray

from delayserver.client.calls.core import Call, in_doubt
from delayserver.client.values.messages import ColumnsSent, DuplicateRow, Message, RejectedRow, SendResult
from delayserver.client.values.timing import Instant, ServerClock, datetime_to_ms, instant_ms, resolve_due_ms
from delayserver.protocol.columns import I64, U32, pack_column, pack_ragged, unpack_column, unpack_count
from delayserver.protocol.errors import (
    DelayServerError,
    InvalidArgument,
    MalformedFrame,
    MessageIdInvalid,
    PropertiesInvalid,
    SubjectInvalid,
    error_from_map,
    make_error,
)
from delayserver.protocol.limits import LIST_ITEMS_MAX
from delayserver.protocol.operation_names import SEND
from delayserver.protocol.outcomes import OUTCOMES_BY_LABEL, Outcome
from delayserver.protocol.schema.greetings import ServerInfo

T = TypeVar("T")

Integers: TypeAlias = int | ArrayLike
"""One integer for all rows, or an array with one integer for each."""

Instants: TypeAlias = Integers | datetime
"""One `Instant` for all rows, or an array of milliseconds since 1970."""

Spans: TypeAlias = Integers | timedelta
"""One `Span` for all rows, or an array of milliseconds."""

Bodies: TypeAlias = bytes | Sequence[bytes]
"""One blob, or one body for each row."""

ROWS_MAX: Final = 16
"""Up to so many messages travel as rows. Columns cost less for each message, and more for each request."""

_pack = msgpack.Packer(use_bin_type=True).pack


def new_message_id(prefix: str = "") -> str:
    """A random id (UUID 4, 32 hex digits), by which the server recognises a retry of the message. With a ``prefix`` it names
    a shard."""
    return prefix + uuid.uuid4().hex


def new_message_ids(count: int, prefix: str = "") -> list[str]:
    """``count`` random ids as `new_message_id`, drawn at once."""
    digits = secrets.token_bytes(16 * count).hex()
    return [prefix + digits[start : start + 32] for start in range(0, 32 * count, 32)]


def send_call(
    subject: str,
    body: bytes | str,
    due_ms: int,
    *,
    message_id: str | None,
    properties: Mapping[str, str] | None,
    expires_ms: Instant | None,
    tag: str | None = None,
    order_key: str | None = None,
    tell_duplicates: bool = False,
) -> Call[SendResult]:
    """Send one message. Repeatable only with a ``message_id``. ``tell_duplicates``: the result says whether it is a copy.
    Raises the named error of an invalid message. For some of
    them, such as a property key that is not text, the server would end the connection with all its requests.
    """
    row = message_row(subject, body, message_id, properties, expires_ms, tag, order_key)
    row["due_ms"] = due_ms
    return Call(SEND, _telling({"messages": [row]}, tell_duplicates), _read_sent_row, message_id is not None)


def message_row(
    subject: str,
    body: bytes | str,
    message_id: str | None,
    properties: Mapping[str, str] | None,
    expires_ms: Instant | None,
    tag: str | None,
    order_key: str | None,
) -> dict[str, Any]:
    """One message of a request in rows, but for its due time. Raises the named error of an invalid message."""
    _check_types(subject, body, message_id, expires_ms, tag, order_key)
    row: dict[str, Any] = {"subject": subject, "body": body}
    if message_id is not None:
        row["message_id"] = message_id
    if properties:
        row["properties"] = text_map(properties)
    if expires_ms is not None:
        row["expires_ms"] = instant_ms(expires_ms)
    if tag is not None:
        row["tag"] = tag
    if order_key is not None:
        row["order_key"] = order_key
    return row


def _read_sent_row(result: dict[str, Any], _: ServerInfo) -> SendResult:
    sent = _sent_row(result["results"][0])
    if isinstance(sent, DelayServerError):
        raise sent
    return sent


def _sent_row(row: dict[str, Any]) -> SendResult | DelayServerError:
    if "error" in row:
        return error_from_map(row)
    sent = row["receipt"], row["message_id"], row["subject"], row["due_ms"], row["sequence"]
    if "duplicate" not in row:
        return SendResult(*sent)
    if not row["duplicate"]:
        return SendResult(*sent, False)
    return SendResult(*sent, True, row["original_receipt"], outcome_of(row["outcome"]))


def outcome_of(label: str) -> Outcome:
    """An outcome by its name in a reply; unknown for one that this version does not know."""
    return OUTCOMES_BY_LABEL.get(label, Outcome.UNKNOWN)


def _telling(arguments: dict[str, Any], tell_duplicates: bool) -> dict[str, Any]:
    """The arguments of a send whose reply says which messages are copies, if it should."""
    return arguments | {"tell_duplicates": True} if tell_duplicates else arguments


@dataclass(frozen=True, slots=True)
class SendColumns:
    """The arguments of a columnar send, as the caller gave them."""

    subjects: str | Sequence[str]
    due_ms: Integers
    bodies: bytes | Sequence[bytes]
    body_length: Integers | None = None
    subject_index: Integers | None = None
    message_ids: Sequence[str] | None = None
    properties: Sequence[Mapping[str, str] | None] | None = None
    expires_ms: Instants | None = None
    count: int | None = None
    tags: str | Sequence[str | None] | None = None
    tag_index: Integers | None = None
    order_keys: Sequence[str | None] | None = None
    tell_duplicates: bool = False


def send_columns_call(columns: SendColumns) -> Call[ColumnsSent]:
    """Send many messages as columns. Repeatable only with a message id on every row. Raises `InvalidArgument` if lengths
    disagree.
    """
    count, arguments = column_arguments(columns)
    arguments["due_ms"] = _column(columns.due_ms, count, I64, "due_ms")
    arguments = _telling(arguments, columns.tell_duplicates)
    message_ids = None if columns.message_ids is None else list(columns.message_ids)

    def read(result: dict[str, Any], server: ServerInfo) -> ColumnsSent:
        accepted, rejected = read_accepted(result, count)
        due_ms = unpack_column(result["due_ms"], accepted, I64, "due_ms")
        duplicates = result.get("duplicates")
        return ColumnsSent(
            server.server_id,
            accepted,
            int(result["first_sequence"]),
            due_ms,
            rejected,
            message_ids,
            None if duplicates is None else [DuplicateRow(a, b, outcome_of(c)) for a, b, c in duplicates],
            result.get("placed"),
        )

    def doubt(sent: ColumnsSent, unknown: DelayServerError) -> ColumnsSent:
        return replace(sent, rejected=rows_in_doubt(sent.rejected, unknown))

    return Call(SEND, arguments, read, message_ids is not None and all(message_ids), doubt=doubt)


def read_accepted(result: dict[str, Any], count: int) -> tuple[int, list[RejectedRow]]:
    """The number of accepted rows and the refused ones, of the reply to a columnar request of ``count`` rows."""
    accepted = unpack_count(result["accepted"], count, "accepted")
    rejected = [
        RejectedRow(index, make_error(name, message, retry_after_ms))
        for index, name, message, retry_after_ms in result["rejected"]
    ]
    if accepted + len(rejected) != count:
        raise MalformedFrame(f"the server answered {accepted} + {len(rejected)} of {count} rows")
    return accepted, rejected


def rows_in_doubt(rejected: list[RejectedRow], unknown: DelayServerError) -> list[RejectedRow]:
    """Refused rows of an attempt that followed an ``unknown`` one."""
    return [RejectedRow(row.index, in_doubt(row.error, unknown)) for row in rejected]


def column_arguments(columns: SendColumns) -> tuple[int, dict[str, Any]]:
    """The number of rows, and the arguments of a request in columns but for the due times."""
    count, blob, length_column = _body_columns(columns)
    if count < 1:
        raise InvalidArgument("a columnar request has at least one row")
    arguments: dict[str, Any] = {"count": count, "bodies": blob, "body_length": length_column}
    if isinstance(columns.subjects, str):
        arguments["subject"] = columns.subjects
    else:
        if columns.subject_index is None:
            raise InvalidArgument("several subjects need a subject_index with one index for each row")
        arguments["subjects"] = list(columns.subjects)
        arguments["subject_index"] = _column(columns.subject_index, count, U32, "subject_index")
    if columns.message_ids is not None:
        encoded = [message_id.encode() for message_id in columns.message_ids]
        arguments["message_ids"], arguments["message_id_length"] = _ragged(encoded, count, "message_ids")
    if columns.properties is not None and any(columns.properties):
        packed = [_packed_properties(row) for row in columns.properties]
        arguments["properties"], arguments["properties_length"] = _ragged(packed, count, "properties")
    if columns.expires_ms is not None:
        expires = columns.expires_ms
        expires_ms = datetime_to_ms(expires) if isinstance(expires, datetime) else expires
        arguments["expires_ms"] = _column(expires_ms, count, I64, "expires_ms")
    arguments |= _tag_arguments(columns, count)
    if columns.order_keys is not None and any(columns.order_keys):
        keys = [(key or "").encode() for key in columns.order_keys]
        arguments["order_keys"], arguments["order_key_length"] = _ragged(keys, count, "order_keys")
    return count, arguments


def check_message(message: Message) -> None:
    """Raises the named error of a message that cannot be encoded. Without this check its whole batch would fail."""
    _check_types(message.subject, message.body, message.message_id, message.expires_ms, message.tag, message.order_key)
    due_ms = None if message.due_ms is None else instant_ms(message.due_ms)
    if due_ms is not None and (type(due_ms) is not int or not -(2**63) <= due_ms < 2**63):
        raise InvalidArgument("due_ms is a number of milliseconds since 1970, or a datetime")
    _packed_properties(message.properties)
    try:
        # Python allows lone surrogates in text; UTF-8 does not.
        names = (message.subject, message.message_id or "", message.tag or "", message.order_key or "")
        "".join([*names, message.body if isinstance(message.body, str) else ""]).encode()
    except UnicodeEncodeError as exc:
        raise InvalidArgument(f"the message holds text that is not valid Unicode: {exc.reason}") from exc


def _check_types(
    subject: str,
    body: bytes | str,
    message_id: str | None,
    expires_ms: Instant | None,
    tag: str | None,
    order_key: str | None,
) -> None:
    if not isinstance(body, bytes | str):
        raise InvalidArgument(f"a body is bytes or text, not {type(body).__name__}")
    if not isinstance(subject, str):
        raise SubjectInvalid("a subject is text")
    if message_id is not None and (not isinstance(message_id, str) or not message_id):
        raise MessageIdInvalid("a message_id is text that is not empty")
    if isinstance(expires_ms, datetime):
        expires_ms = datetime_to_ms(expires_ms)
    if expires_ms is not None and (type(expires_ms) is not int or not 0 <= expires_ms < 2**63):
        raise InvalidArgument("expires_ms is a number of milliseconds since 1970, or a datetime")
    for name, value in (("a tag", tag), ("an order_key", order_key)):
        if value is not None and (not isinstance(value, str) or not value):
            raise InvalidArgument(f"{name} is text that is not empty")


def send_many_call(
    messages: Sequence[Message],
    clock: ServerClock,
    *,
    make_ids: bool,
    prefix: str = "",
    tell_duplicates: bool = False,
) -> Call[list[SendResult | DelayServerError]]:
    """Send messages in one request: a few as rows, more as columns. The result has one result or error for each message,
    in order.

    With ``make_ids`` a message without an id gets a random one, with ``prefix``, and the call is repeatable.
    ``tell_duplicates``: the results say which messages are copies. Raises the errors of `check_message` before anything is
    sent.
    """
    for message in messages:
        check_message(message)
    due_ms = [
        resolve_due_ms(clock, message.due_ms, message.delay_ms, message.at, message.delay) for message in messages
    ]
    message_ids = [message.message_id or "" for message in messages]
    if make_ids:
        spare = new_message_ids(len(messages), prefix)
        message_ids = [given or made for given, made in zip(message_ids, spare, strict=True)]
    if len(messages) <= ROWS_MAX:
        return _send_rows_call(messages, due_ms, message_ids, tell_duplicates)
    columns = replace(columns_of(messages, due_ms, message_ids), tell_duplicates=tell_duplicates)
    call = send_columns_call(columns)

    def read(result: dict[str, Any], server: ServerInfo) -> list[SendResult | DelayServerError]:
        return _rows_of(call.read(result, server), messages, message_ids)

    return Call(SEND, call.arguments, read, call.repeatable, doubt=doubt_rows)


def _send_rows_call(
    messages: Sequence[Message], due_ms: Sequence[int], message_ids: Sequence[str], tell_duplicates: bool
) -> Call[list[SendResult | DelayServerError]]:
    rows = []
    for message, due, message_id in zip(messages, due_ms, message_ids, strict=True):
        row = message_row(
            message.subject,
            message.body,
            message_id or None,
            message.properties,
            message.expires_ms,
            message.tag,
            message.order_key,
        )
        row["due_ms"] = due
        rows.append(row)

    def read(result: dict[str, Any], _: ServerInfo) -> list[SendResult | DelayServerError]:
        sent = result["results"]
        if len(sent) != len(rows):
            raise MalformedFrame(f"the server answered {len(sent)} of {len(rows)} rows")
        return [_sent_row(row) for row in sent]

    return Call(SEND, _telling({"messages": rows}, tell_duplicates), read, all(message_ids), doubt=doubt_rows)


def columns_of(messages: Sequence[Message], due_ms: Integers, message_ids: list[str]) -> SendColumns:
    """Checked messages as columns. ``message_ids`` has an empty text for a message without one."""
    codes: dict[str, int] = {}
    subject_index = np.fromiter(
        (codes.setdefault(message.subject, len(codes)) for message in messages), U32, len(messages)
    )
    return SendColumns(
        subjects=list(codes),
        subject_index=subject_index,
        due_ms=due_ms,
        bodies=[message.body.encode() if isinstance(message.body, str) else message.body for message in messages],
        message_ids=message_ids if any(message_ids) else None,
        properties=[message.properties for message in messages],
        expires_ms=[instant_ms(message.expires_ms or 0) for message in messages]
        if any(message.expires_ms for message in messages)
        else None,
        tags=[message.tag for message in messages],
        order_keys=[message.order_key for message in messages],
    )


def doubt_rows(rows: list[T | DelayServerError], unknown: DelayServerError) -> list[T | DelayServerError]:
    """Rows of an attempt that followed an ``unknown`` one. The earlier attempt may have carried out a row that this one
    refused, so each refusal becomes an error `in_doubt`.
    """
    return [in_doubt(row, unknown) if isinstance(row, DelayServerError) else row for row in rows]


def delay_of_level(server: ServerInfo, level: int) -> int:
    """The delay in milliseconds of a delay level of this server. Raises `InvalidArgument`."""
    levels_ms = server.delay_levels_ms
    if type(level) is not int or not 1 <= level <= len(levels_ms):
        known = f"this server has the levels 1 to {len(levels_ms)}" if levels_ms else "this server has no delay levels"
        raise InvalidArgument(f"delay_level is {level!r}: {known}")
    return levels_ms[level - 1]


def columns_given(
    given: Bodies | Instants | None, then_bodies: Bodies | None, due_ms: Instants | None, bodies: Bodies | None
) -> tuple[Instants | None, Bodies]:
    """The due times and bodies of a columnar send, whose positional arguments are the bodies, or the due times and the
    bodies. Raises `InvalidArgument` if one of them is given twice.
    """
    if then_bodies is None and bodies is None:
        return due_ms, cast(Bodies, () if given is None else given)
    if (given is not None and due_ms is not None) or (then_bodies is not None and bodies is not None):
        raise InvalidArgument("give due_ms and bodies once each")
    found = bodies if then_bodies is None else then_bodies
    return due_ms if given is None else given, cast(Bodies, found)


def resolve_due_column(clock: ServerClock, due_ms: Instants | None, delay_ms: Spans | None) -> Integers:
    """The absolute due times. Raises `InvalidArgument` unless exactly one of the two is given."""
    if (due_ms is None) == (delay_ms is None):
        raise InvalidArgument("give one of due_ms and delay_ms")
    if due_ms is not None:
        return datetime_to_ms(due_ms) if isinstance(due_ms, datetime) else due_ms
    if type(delay_ms) is int or isinstance(delay_ms, timedelta):
        return resolve_due_ms(clock, None, delay_ms, None, None)
    delays = np.asarray(delay_ms)
    if delays.dtype.kind not in "iu" or (delays < 0).any() or (delays >= 1 << 62).any():
        raise InvalidArgument("delay_ms must be integers from 0 on, below 2^62")
    due: NDArray[np.int64] = delays.astype(I64) + clock.now_ms()
    return due


def _rows_of(
    sent: ColumnsSent, messages: Sequence[Message], message_ids: list[str]
) -> list[SendResult | DelayServerError]:
    errors = {rejected.index: rejected.error for rejected in sent.rejected}
    accepted = zip(
        sent.receipts(),
        sent.derived_ids(),
        sent.due_ms.tolist(),
        sent.sequence.tolist(),
        sent.told(),
        strict=True,
    )
    rows: list[SendResult | DelayServerError] = []
    for index, message in enumerate(messages):
        if index in errors:
            rows.append(errors[index])
            continue
        receipt, derived_id, due_ms, sequence, told = next(accepted)
        rows.append(SendResult(receipt, message_ids[index] or derived_id, message.subject, due_ms, sequence, *told))
    return rows


def _body_columns(columns: SendColumns) -> tuple[int, bytes, Any]:
    """Row count, body blob and column of body lengths."""
    bodies = columns.bodies
    if not isinstance(bodies, bytes):
        if columns.body_length is not None:
            raise InvalidArgument("body_length belongs to bodies given as one blob, not as a list")
        blob, lengths = pack_ragged(list(bodies))
        return len(bodies), blob, lengths
    if columns.body_length is None:
        raise InvalidArgument("bodies given as one blob need a body_length")
    columns_given = (columns.body_length, columns.due_ms, columns.subject_index)
    sizes = [len(values) for values in columns_given if isinstance(values, Sized)]
    count = columns.count if columns.count is not None else (sizes[0] if sizes else None)
    if count is None:
        raise InvalidArgument("give a count: no argument has one value for each row")
    return count, bodies, _column(columns.body_length, count, U32, "body_length")


def _column(values: Integers, count: int, dtype: np.dtype[Any], name: str) -> Any:
    if type(values) is int:
        return values
    array: NDArray[Any] = np.asarray(values)
    if array.ndim == 0:
        array = np.broadcast_to(array, count)
    if array.shape != (count,) or array.dtype.kind not in "iu":
        raise InvalidArgument(f"{name} must be integers, one for each of the {count} rows")
    bounds = np.iinfo(dtype)
    if array.dtype != dtype and (int(array.min()) < bounds.min or int(array.max()) > bounds.max):
        raise InvalidArgument(f"{name} must lie within {bounds.min} and {bounds.max}")
    return pack_column(array, dtype)


def _ragged(rows: list[bytes], count: int, name: str) -> tuple[bytes, Any]:
    if len(rows) != count:
        raise InvalidArgument(f"{name} must have one entry for each of the {count} rows, not {len(rows)}")
    return pack_ragged(rows)


def _tag_arguments(columns: SendColumns, count: int) -> dict[str, Any]:
    """One tag for all rows; or the different tags, and a column of indexes into them from 1 on, 0 for none."""
    tags = columns.tags
    if isinstance(tags, str):
        return {"tag": tags}
    if columns.tag_index is not None:
        return {"tags": list(tags or ()), "tag_index": _column(columns.tag_index, count, U32, "tag_index")}
    if tags is None or not any(tags):
        return {}
    if len(tags) != count:
        raise InvalidArgument(f"tags must have one entry for each of the {count} rows, not {len(tags)}")
    codes: dict[str | None, int] = {None: 0}
    index = np.fromiter((codes.setdefault(tag or None, len(codes)) for tag in tags), U32, count)
    return {"tags": [tag for tag in codes if tag is not None], "tag_index": pack_column(index, U32)}


def text_map(properties: Mapping[str, str]) -> dict[str, str]:
    """A copy of the properties. Raises `PropertiesInvalid` unless they map text to text and have at most `LIST_ITEMS_MAX`
    keys. For either fault the server would end the connection. The server itself checks the number of bytes.
    """
    if len(properties) > LIST_ITEMS_MAX:
        raise PropertiesInvalid(f"properties have at most {LIST_ITEMS_MAX} keys, not {len(properties)}")
    if not all(isinstance(key, str) and isinstance(value, str) for key, value in properties.items()):
        raise PropertiesInvalid("properties are a map of text to text")
    return dict(properties)


def _packed_properties(properties: Mapping[str, str] | None) -> bytes:
    if not properties:
        return b""
    try:
        packed: bytes = _pack(text_map(properties))
    except UnicodeEncodeError as exc:
        raise PropertiesInvalid(f"properties hold text that is not valid Unicode: {exc.reason}") from exc
    return packed
