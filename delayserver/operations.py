"""The operations of the delay server: what each request of a client does. The protocol's forms in, its forms out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import trio
from numpy.typing import NDArray

from delayserver import __version__
from delayserver.cancellation import Cancellation
from delayserver.clock import Clock
from delayserver.connection import Connection
from delayserver.group_commit import Committed, GroupCommit
from delayserver.intake import Intake, Rejection
from delayserver.lookup import Found, Lookup
from delayserver.named_messages import NamedMessages, Naming
from delayserver.protocol.cancel_reply import encode_cancel_reply
from delayserver.protocol.columns import I64, pack_column, unpack_column, unpack_count
from delayserver.protocol.errors import (
    BatchTooLarge,
    DelayServerError,
    ForeignReceipt,
    InvalidArgument,
    MessageTooLarge,
    UnsupportedVersion,
    error_to_map,
)
from delayserver.protocol.frames import Request, encode_error, encode_reply
from delayserver.protocol.limits import Limits
from delayserver.protocol.operations import PROTOCOL_VERSION, SUPPORTED_VERSIONS
from delayserver.protocol.outcomes import OUTCOME_LABELS, Outcome
from delayserver.protocol.receipts import (
    derived_message_id,
    format_receipt,
    parse_receipt,
    receipt_and_id,
)
from delayserver.turns import between_items
from store.batches import MessageBatch
from store.message_rows import Row
from store.names import Names


class Operations:
    """Handlers of the delay side; `Handlers` maps the names to them."""

    def __init__(
        self,
        server_id: int,
        role: str,
        limits: Limits,
        intake: Intake,
        commit: GroupCommit,
        cancellation: Cancellation,
        lookup: Lookup,
        names: Names,
        status: Callable[[], dict[str, Any]],
        route: Callable[[dict[str, Any]], dict[str, Any]],
        admit: Callable[[], None],
        clock: Clock,
    ) -> None:
        self._server = f"{server_id:012x}"
        self._role = role
        self._limits = limits
        self._intake = intake
        intake.server_id = self._server
        self._commit = commit
        self._cancellation = cancellation
        self._lookup = lookup
        self._names = names
        self._naming = Naming(self._server, limits.batch_messages_max, intake, cancellation, names)
        self._status = status
        self._route = route
        self._admit = admit
        self._clock = clock

    # -- small ones

    def hello(self, connection: Connection, request: Request) -> None:
        """Agree on a version; say who, when and within which limits."""
        versions = request.arguments.get("versions")
        if type(versions) is not list or not set(SUPPORTED_VERSIONS) & {v for v in versions if type(v) is int}:
            raise UnsupportedVersion(f"this server speaks {list(SUPPORTED_VERSIONS)}, the client {versions!r:.64}")
        connection.reply(
            encode_reply(
                request.id,
                {
                    "version": PROTOCOL_VERSION,
                    "server_id": self._server,
                    "server_us": self._clock.now_us(),
                    "role": self._role,
                    "software": f"delayserver {__version__}",
                    "limits": self._limits.to_map(),
                },
            )
        )

    def ping(self, connection: Connection, request: Request) -> None:
        """The server's clock."""
        connection.reply(encode_reply(request.id, {"server_us": self._clock.now_us()}))

    def status(self, connection: Connection, request: Request) -> None:
        """Counts and health."""
        connection.reply(encode_reply(request.id, self._status()))

    def route(self, connection: Connection, request: Request) -> None:
        """The nodes of a group."""
        connection.reply(encode_reply(request.id, self._route(request.arguments)))

    # -- send

    def send(self, connection: Connection, request: Request) -> None:
        """Rows or columns; answered after the sync."""
        self._admit()
        if "messages" in request.arguments:
            self._send_rows(connection, request)
        else:
            self._send_columns(connection, request)

    def _send_rows(self, connection: Connection, request: Request) -> None:
        rows, rejections = self._intake.rows(request.arguments["messages"])
        request_id = request.id

        def done(first: int | DelayServerError) -> None:
            if isinstance(first, DelayServerError):
                connection.fail(request_id, first)
                return
            results = self._row_results(rows, first)
            for rejection in rejections:
                results.insert(rejection.index, error_to_map(rejection.error))
            connection.reply(encode_reply(request_id, {"results": results}))

        if rows:
            self._commit.submit_rows(rows, done)
        else:
            done(0)

    def _row_results(self, rows: list[Row], sequence: int) -> list[dict[str, Any]]:
        server = self._server
        results = []
        for due_ms, subject, _, message_id, _, _ in rows:
            receipt, derived_id = receipt_and_id(server, due_ms, sequence)
            results.append(
                {
                    "receipt": receipt,
                    "message_id": message_id.decode() if message_id else derived_id,
                    "subject": self._names.name(subject),
                    "due_ms": due_ms,
                    "sequence": sequence,
                }
            )
            sequence += 1
        return results

    def _send_columns(self, connection: Connection, request: Request) -> None:
        batch, rejections = self._intake.columns(request.arguments)
        rejected = [_rejected(rejection) for rejection in rejections]
        request_id = request.id
        if batch is None:
            reply = {"accepted": 0, "first_sequence": 0, "due_ms": b"", "rejected": rejected}
            connection.reply(encode_reply(request_id, reply))
            return
        due_ms = pack_column(batch.due_ms)

        def done(result: Committed | DelayServerError) -> None:
            if isinstance(result, DelayServerError):
                connection.reply(encode_error(request_id, result))
                return
            reply = {
                "accepted": len(batch),
                "first_sequence": result.first_sequence,
                "due_ms": due_ms,
                "rejected": rejected,
            }
            connection.reply(encode_reply(request_id, reply))

        self._commit.submit(batch, done)

    # -- cancel and lookup

    async def cancel(self, connection: Connection, request: Request) -> dict[str, Any] | None:
        """By receipts, by ids or in columns."""
        arguments = request.arguments
        if "count" in arguments:
            count = self._count(arguments)
            sequence = unpack_column(arguments.get("sequence"), count, I64, "sequence")
            due_ms = unpack_column(arguments.get("due_ms"), count, I64, "due_ms")
            return {"outcome": pack_column(await self._cancellation.cancel(sequence, _sane(due_ms)))}
        named = await self._naming.messages(arguments)
        outcome = await self._cancellation.cancel(named.sequence, named.due_ms)
        again = np.flatnonzero(outcome == int(Outcome.ALREADY_CANCELLED))
        while len(again := await self._naming.replaced(named, again)):
            outcome[again] = await self._cancellation.cancel(named.sequence[again], named.due_ms[again])
            again = again[outcome[again] == int(Outcome.ALREADY_CANCELLED)]
        if not named.errors and named.receipts is not None:
            connection.reply(encode_cancel_reply(request.id, named.receipts, outcome))
            return None
        fields = [{"outcome": OUTCOME_LABELS[code]} for code in outcome.tolist()]
        return {"results": await self._results(named, fields)}

    async def lookup(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """By receipts or by ids."""
        named = await self._naming.messages(request.arguments)
        found = await self._lookup.find(named.sequence, named.due_ms)
        again = _cancelled(found, np.arange(len(found)))
        while len(again := await self._naming.replaced(named, again)):
            others = await self._lookup.find(named.sequence[again], named.due_ms[again])
            for place, other in zip(again.tolist(), others, strict=True):
                found[place] = other
            again = _cancelled(found, again)
        found = await self._lookup.with_rows(found, named.due_ms.tolist())
        fields = []
        for place, each in enumerate(found):
            await between_items(place)
            fields.append(self._fields(each, int(named.sequence[place]), int(named.due_ms[place])))
        return {"results": await self._results(named, fields)}

    def _fields(self, found: Found, sequence: int, due_ms: int) -> dict[str, Any]:
        if found.error is not None:
            return error_to_map(found.error)
        known: dict[str, Any] = {"due_ms": due_ms} if found.outcome != Outcome.UNKNOWN else {}
        if found.message and found.message != sequence:
            known["original_receipt"] = format_receipt(self._server, due_ms, found.message)
        return found.to_map() | known

    async def _results(self, named: NamedMessages, fields: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Answers in the order of the request: the receipt, then what is known, or the item's error."""
        results: list[dict[str, Any]] = []
        for place, (sequence, due_ms) in enumerate(zip(named.sequence.tolist(), named.due_ms.tolist(), strict=True)):
            await between_items(place)
            if place in named.errors:
                results.append(error_to_map(named.errors[place]))
            else:
                given = named.receipts
                receipt = given[place] if given is not None else format_receipt(self._server, due_ms, sequence)
                results.append({"receipt": receipt} | fields[place])
        return results

    def _count(self, arguments: dict[str, Any]) -> int:
        count = unpack_count(arguments.get("count"), 1 << 31)
        if count == 0:
            raise InvalidArgument("count must be at least 1")
        if count > self._limits.batch_messages_max:
            raise BatchTooLarge(f"{count} items; at most {self._limits.batch_messages_max} in one request")
        return count

    # -- reschedule

    async def reschedule(self, _connection: Connection, request: Request) -> dict[str, Any]:
        """Cancel and send in one atomic step, item by item."""
        self._admit()
        items = request.arguments.get("items")
        if type(items) is not list or not items:
            raise InvalidArgument("items must be a non-empty list of maps")
        if len(items) > self._limits.batch_messages_max:
            raise BatchTooLarge(f"{len(items)} items; at most {self._limits.batch_messages_max} in one request")
        results = []
        for item in items:
            await trio.lowlevel.checkpoint()  # what cannot be cancelled may not pause anywhere
            try:
                results.append(await self._reschedule(item))
            except DelayServerError as error:
                results.append(error_to_map(error))
        return {"results": results}

    async def _reschedule(self, item: object) -> dict[str, Any]:
        if type(item) is not dict:
            raise InvalidArgument("an item must be a map")
        if "receipt" in item:
            receipt = parse_receipt(item["receipt"])
            if receipt.server_id != self._server:
                raise ForeignReceipt(f"{receipt} is another server's; this one is {self._server}")
            sequence, old_due_ms = receipt.sequence, receipt.due_ms
        else:
            named = {key: item.get(key) for key in ("subject", "message_id")} | {"due_ms": item.get("message_due_ms")}
            sequence, old_due_ms = await self._naming.message(named)
        due_ms = self._intake.due(item.get("due_ms"), item.get("delay_ms"))
        changes = self._changes(item)

        def build(old: MessageBatch) -> MessageBatch:
            self._intake.due(due_ms, None)  # once more: it may have waited, and the window been closed meanwhile
            columns = {
                "ids": old.ids,
                "ids_length": old.ids_length,
                "id_hash": old.id_hash,
                "subject": old.subject,
                "expires_ms": old.expires_ms,
                "properties": old.properties,
                "properties_length": old.properties_length,
                "bodies": old.bodies,
                "bodies_length": old.bodies_length,
            }
            return MessageBatch.filled(1, **(columns | changes), due_ms=due_ms)

        outcome, committed, batch = await self._cancellation.reschedule(sequence, old_due_ms, build)
        answer: dict[str, Any] = {
            "receipt": format_receipt(self._server, old_due_ms, sequence),
            "outcome": OUTCOME_LABELS[outcome],
        }
        if committed is not None and batch is not None:
            new = committed.first_sequence
            answer |= {
                "new_receipt": format_receipt(self._server, due_ms, new),
                "message_id": bytes(batch.ids).decode() or derived_message_id(self._server, new),
                "due_ms": due_ms,
                "sequence": new,
            }
        return answer

    def _changes(self, item: dict[str, Any]) -> dict[str, Any]:
        changes: dict[str, Any] = {}
        body = item.get("body")
        if body is not None:
            data = body.encode() if type(body) is str else body
            if type(data) is not bytes:
                raise InvalidArgument("body must be bytes or text")
            if len(data) > self._limits.body_bytes_max:
                raise MessageTooLarge(f"body has {len(data)} bytes; at most {self._limits.body_bytes_max}")
            changes |= {"bodies": data, "bodies_length": len(data)}
        if item.get("properties") is not None:
            data = self._intake.properties(item["properties"])
            changes |= {"properties": data, "properties_length": len(data)}
        if item.get("expires_ms") is not None:
            expires_ms = item["expires_ms"]
            if type(expires_ms) is not int or not 0 <= expires_ms < 1 << 62:
                raise InvalidArgument("expires_ms must be a time in milliseconds since 1970, or 0 for never")
            changes["expires_ms"] = expires_ms
        return changes


def _cancelled(found: list[Found], places: NDArray[np.intp]) -> NDArray[np.intp]:
    """Those of some places where a cancelled message was found."""
    return places[[found[place].outcome == Outcome.CANCELLED for place in places.tolist()]]


def _sane(due_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Due times no message can have become 0, so that no window is looked for beyond the calendar."""
    return np.where((due_ms >= 0) & (due_ms < 1 << 47), due_ms, 0)


def _rejected(rejection: Rejection) -> list[Any]:
    error = rejection.error
    return [rejection.index, error.name, error.message, error.retry_after_ms]
