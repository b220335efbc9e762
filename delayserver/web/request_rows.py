"""Many messages of one request: rows in, a result or a problem for each row out, in order. They travel as columns."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec
from anyio.lowlevel import checkpoint

from delayserver.client.calls.send_calls import new_message_ids
from delayserver.client.values.messages import ColumnsSent, Message, SendResult
from delayserver.protocol.errors import BatchTooLarge, DelayServerError, Refused
from delayserver.web.answers import NO_JSON, no_json, read_json
from delayserver.web.bodies import message_body
from delayserver.web.clients import TokenClient
from delayserver.web.due_times import due_ms_of
from delayserver.web.problems import Problem, ended_before, invalid, problem_of
from delayserver.web.schemas import RowProblem, SendRequest, Sent
from delayserver.web.trace_context import with_trace

Row: TypeAlias = SendRequest | Problem
"""One row as it was read: a message, or why it is none."""
Result: TypeAlias = Sent | RowProblem

NAME_MAX: Final = 255
"""Bytes, and so characters, of an id, a tag or an order key. The server refuses longer ones too, but reads columns of long
ones slowly."""
ROWS_AT_ONCE: Final = 1024
"""Rows of a list after which other requests get their turn."""
COMMAS_PER_ROW: Final = 16
"""A list with more commas than so many a row, and a row that is no object, is refused as a whole."""
_NO_TRACE: Final[Mapping[str, str]] = {}
_row_decoder = msgspec.json.Decoder(SendRequest)
_list_decoder = msgspec.json.Decoder(list[SendRequest])
_raw_list_decoder = msgspec.json.Decoder(list[msgspec.Raw])


def read_row(data: bytes | msgspec.Raw) -> Row:
    """One row of JSON."""
    try:
        return _row_decoder.decode(data)
    except NO_JSON as error:
        return no_json(error)


def read_list(body: bytes, rows_max: int) -> list[Row]:
    """The rows of a JSON list. Raises `Problem` if the body is no list, and for more rows than `rows_max`."""
    require_few_rows(body, rows_max)
    try:
        rows: list[Row] = [*_list_decoder.decode(body)]
    except NO_JSON:
        # Some row is not valid, or there is no list at all.
        rows = [read_row(each) for each in read_json(body, _raw_list_decoder)]
    if len(rows) > rows_max:
        raise _too_many(rows_max)
    return rows


def require_few_rows(body: bytes, rows_max: int) -> None:
    """Raises `Problem` for a list with far more rows than `rows_max`, before objects are made of them: a list of 16 MiB may
    have eight million rows."""
    commas = body.count(b",")
    if commas < rows_max:
        return
    count = itertools.count(1)

    class _AnyObject(msgspec.Struct):
        def __post_init__(self) -> None:
            if next(count) > rows_max:
                raise _too_many(rows_max)

    try:
        msgspec.json.Decoder(list[_AnyObject]).decode(body)
    except NO_JSON as error:
        # A row that is no object ends the count.
        if commas > COMMAS_PER_ROW * rows_max:
            raise no_json(error) from None


def _too_many(rows_max: int) -> Problem:
    return problem_of(BatchTooLarge(f"a list has at most {rows_max} messages: send more as lines"))


def read_lines(data: bytes) -> list[Row]:
    """The rows of whole lines. Empty lines are no rows."""
    try:
        return [*_row_decoder.decode_lines(data)]
    except NO_JSON:
        return [read_row(line) for line in data.split(b"\n") if line.strip()]


class RequestRows:
    """Rows on their way: those that are messages, and the problems of the others. Row numbers count from ``first_row``.
    ``trace``: the trace context of messages that have none, as properties."""

    def __init__(self, first_row: int, trace: Mapping[str, str] = _NO_TRACE) -> None:
        self._first_row = first_row
        self._trace = trace
        self._places: list[int] = []
        self._messages: list[Message] = []
        self._problems: dict[int, RowProblem] = {}

    async def prepare(self, client: TokenClient, rows: Sequence[Row]) -> None:
        """Take the rows. A delay counts from this call."""
        now_ms: int | None = None
        for place, row in enumerate(rows):
            if place % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
                await checkpoint()
            if isinstance(row, Problem):
                self._problems[place] = _problem(row, self._first_row + place)
                continue
            try:
                if row.delay_ms is not None and _only_delay_ms(row):
                    if now_ms is None:  # one reading of the clock is enough for rows that came together
                        now_ms = await client.calls.resolve_due_ms(None, 0, None, None)
                    due_ms = now_ms + row.delay_ms
                else:
                    due_ms = await due_ms_of(row, client.calls)
                self._messages.append(_message(row, due_ms, self._trace))
                self._places.append(place)
            except Problem as problem:
                self._problems[place] = _problem(problem, self._first_row + place)
            except DelayServerError as error:
                self._problems[place] = _problem(problem_of(error), self._first_row + place)

    async def send(self, client: TokenClient) -> list[Result]:
        """Send the messages: a result for each row, in order. An error of a whole request is the problem of its rows."""
        results: dict[int, Result] = dict(self._problems)
        for place, result in zip(self._places, await _send(client, self._messages), strict=True):
            results[place] = result if isinstance(result, Sent) else _problem(result, self._first_row + place)
        return [result for _, result in sorted(results.items(), key=_place)]


def _only_delay_ms(row: SendRequest) -> bool:
    return row.due_ms is None and row.delay is None and row.at is None and row.delay_level is None


def _place(item: tuple[int, object]) -> int:
    return item[0]


def _message(row: SendRequest, due_ms: int, trace: Mapping[str, str]) -> Message:
    if not -(2**63) <= due_ms < 2**63:
        raise invalid("the due time is beyond 63 bits")
    # In columns an empty text means that there is none.
    for name, value in (("message_id", row.message_id), ("tag", row.tag), ("order_key", row.order_key)):
        if value is not None and not 0 < len(value) <= NAME_MAX:
            error = "message_id_invalid" if name == "message_id" else "invalid_argument"
            raise Problem(400, error, f"{name} is empty" if not value else f"{name} has more than {NAME_MAX} bytes")
    body = message_body(row.body, row.body_base64)
    return Message(
        row.subject,
        body.encode() if isinstance(body, str) else body,
        due_ms,
        message_id=row.message_id,
        properties=with_trace(trace, row.properties),
        expires_ms=row.expires_ms,
        tag=row.tag,
        order_key=row.order_key,
    )


async def _send(client: TokenClient, messages: list[Message]) -> list[Sent | Problem]:
    """A result for each message. Ids are made where there are none, so that a lost reply can be asked for again."""
    results: list[Sent | Problem] = []
    limits = client.calls.limits
    rows_max, bytes_max = limits.batch_messages_max, limits.frame_bytes_max // 2
    begin = size = 0
    for end, message in enumerate(messages):
        size += _size(message)
        if end > begin and (size > bytes_max or end - begin == rows_max):
            results += await _send_frame(client, messages[begin:end])
            begin, size = end, _size(message)
    if begin < len(messages):
        results += await _send_frame(client, messages[begin:])
    return results


def _size(message: Message) -> int:
    """About the bytes of a message in a frame."""
    texts = 3 * (len(message.subject) + len(message.message_id or "") + len(message.order_key or ""))
    properties = message.properties or {}
    return len(message.body) + texts + sum([3 * (len(key) + len(value)) + 10 for key, value in properties.items()])


async def _send_frame(client: TokenClient, messages: Sequence[Message]) -> list[Sent | Problem]:
    try:
        return await _send_columns(client, messages)
    except Refused as refused:
        if len(messages) == 1:
            return [problem_of(refused)]
        # One row can make its whole request fail, such as one with a property that cannot be encoded.
        return [result for message in messages for result in await _send_frame(client, [message])]
    except DelayServerError as error:
        return [problem_of(error)] * len(messages)


async def _send_columns(client: TokenClient, messages: Sequence[Message]) -> list[Sent | Problem]:
    index: dict[str, int] = {}
    made = iter(new_message_ids(len(messages)))
    ids = [message.message_id or next(made) for message in messages]
    subject_index = [index.setdefault(message.subject, len(index)) for message in messages]
    optional: dict[str, Any] = {}
    if any(message.properties for message in messages):
        optional["properties"] = [message.properties for message in messages]
    if any(message.expires_ms for message in messages):
        optional["expires_ms"] = [message.expires_ms or 0 for message in messages]
    if any(message.tag for message in messages):
        optional["tags"] = [message.tag for message in messages]
    if any(message.order_key for message in messages):
        optional["order_keys"] = [message.order_key for message in messages]
    sent = await client.calls.send_columns(
        list(index),
        [message.due_ms for message in messages],  # type: ignore[arg-type]
        [message.body for message in messages],  # type: ignore[misc]
        subject_index=subject_index,
        message_ids=ids,
        tell_duplicates=any(message.message_id for message in messages),
        **optional,
    )
    return _results(messages, ids, sent)


def sent_document(sent: SendResult) -> Sent | Problem:
    """The document of an accepted message; a problem for a copy of one that has ended, which nobody will get."""
    if sent.outcome is not None and sent.never_comes:
        fields = {"duplicate": True, "original_receipt": sent.original_receipt, "message_id": sent.message_id}
        return ended_before("a copy of it is not delivered", sent.outcome, sent.receipt, **fields)
    return Sent(*sent[:7], None if sent.outcome is None else sent.outcome.label)


def _results(messages: Sequence[Message], ids: Sequence[str], sent: ColumnsSent) -> list[Sent | Problem]:
    refused = {row.index: problem_of(row.error) for row in sent.rejected}
    accepted = zip(sent.receipts(), sent.due_ms.tolist(), sent.sequence.tolist(), sent.told(), strict=True)
    results: list[Sent | Problem] = []
    for place, message in enumerate(messages):
        problem = refused.get(place)
        if problem is not None:
            results.append(problem)
        else:
            receipt, due_ms, sequence, told = next(accepted)
            results.append(sent_document(SendResult(receipt, ids[place], message.subject, due_ms, sequence, *told)))
    return results


def row_problem(error: Problem | DelayServerError, row: int) -> RowProblem:
    """Why a row was refused."""
    return _problem(error if isinstance(error, Problem) else problem_of(error), row)


def _problem(problem: Problem, row: int) -> RowProblem:
    return msgspec.convert({**problem.document(), "row": row}, RowProblem)
