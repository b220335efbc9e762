"""Messages in replies, in columns or rows. Many rows are made in slices, so that a reply does not hold the event loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from delayserver.front.connection import Connection
from delayserver.operations.groups.consuming import Pulled
from delayserver.protocol.columns import U32, pack_column
from delayserver.protocol.frames import FieldsReply, encode_bulk_reply, encode_row
from delayserver.protocol.receipts import derived_message_id
from store.records.batches import StoredBatch
from store.records.column_batch import constant_column, has_any, ragged_rows

# A reply with at most so many rows and bytes of properties is made in one step of a millisecond or two.
ROWS_AT_ONCE: Final = 128
PROPERTIES_AT_ONCE: Final = 64 << 10
# Rows made between two looks at the clock, and how many small items each costs.
_PART_ROWS: Final = 32
_ROW_ITEMS: Final = 2
# About the bytes of a row beside its id, properties and body.
_ROW_BYTES: Final = 320

_LEASED: Final = ("delivery", "attempt")


class MessagesReply:
    """The reply to one request for messages. `leased`: each row has its delivery and its attempt."""

    def __init__(
        self,
        connection: Connection,
        request_id: int,
        subject: str,
        columns: bool,
        name: Callable[[int], str],
        *,
        leased: bool = True,
    ) -> None:
        """`name` gives the text of a tag's code."""
        self._connection = connection
        self._request_id = request_id
        self._subject = subject
        self._columns = columns
        self._name = name
        self._leased = leased
        # Leased messages whose reply is made later, and what to call if it is never sent.
        self._later: tuple[Pulled, Callable[[], None]] | None = None

    def nothing(self) -> dict[str, Any]:
        """The result without messages."""
        return self._result(None)

    def give(self, pulled: Pulled, lost: Callable[[], None]) -> None:
        """Replies with leased messages in this step, or has `finish` do so if they are many rows. There is room for them.

        Calls `lost` if the client never gets them all."""
        if self._is_small(pulled):
            self._connection.reply(encode_bulk_reply(self._request_id, self._result(pulled)), lost)
        else:
            self._later = pulled, lost
            self._connection.begin_making(_size_of(pulled))

    async def finish(self) -> None:
        """Makes the reply that `give` has left."""
        if self._later is not None:
            pulled, lost = self._later
            try:
                frame = await self._made(pulled, {})
            except BaseException:
                self.give_up()
                raise
            self._later = None
            self._connection.reply(frame, lost)
            self._connection.end_making()

    def give_up(self) -> None:
        """The reply that `give` has left will not be made."""
        if self._later is not None:
            (_, lost), self._later = self._later, None
            self._connection.end_making()
            lost()

    async def send(self, pulled: Pulled | None, fields: Mapping[str, Any]) -> None:
        """Replies with `fields` and messages that were read. To be called in the step in which there was room for them."""
        connection = self._connection
        if pulled is None or self._is_small(pulled):
            # The room of before may have gone to other replies.
            connection.when_room(
                lambda: connection.reply(encode_bulk_reply(self._request_id, {**fields, **self._result(pulled)}))
            )
            return
        connection.begin_making(_size_of(pulled))
        try:
            connection.reply(await self._made(pulled, fields))
        finally:
            connection.end_making()

    def _is_small(self, pulled: Pulled) -> bool:
        return self._columns or (len(pulled) <= ROWS_AT_ONCE and len(pulled.batch.properties) <= PROPERTIES_AT_ONCE)

    def _result(self, pulled: Pulled | None) -> dict[str, Any]:
        if self._columns:
            return self._without_leases(_as_columns(self._subject, pulled, self._name))
        return {"messages": [] if pulled is None else self._rows(pulled)}

    def _rows(self, pulled: Pulled) -> list[dict[str, Any]]:
        return [self._without_leases(row) for row in _as_rows(self._subject, pulled, self._name)]

    def _without_leases(self, row: dict[str, Any]) -> dict[str, Any]:
        if not self._leased:
            for name in _LEASED:
                del row[name]
        return row

    async def _made(self, pulled: Pulled, fields: Mapping[str, Any]) -> bytes:
        """The frame with these messages in rows, made in slices."""
        work, parts = self._connection.work(), list[list[bytes]]()
        for start in range(0, len(pulled), _PART_ROWS):
            await work.items(_ROW_ITEMS * _PART_ROWS)
            parts.append([encode_row(row) for row in self._rows(_part(pulled, start, start + _PART_ROWS))])
        reply = FieldsReply(self._request_id)
        reply.add(dict(fields))
        reply.add_rows("messages", parts)
        return reply.frame()


def _size_of(pulled: Pulled) -> int:
    """About the bytes of a reply in rows."""
    batch = pulled.batch
    blobs = len(batch.ids) + len(batch.properties) + len(batch.bodies) + len(batch.order_keys)
    return blobs + _ROW_BYTES * len(pulled)


def _part(pulled: Pulled, start: int, stop: int) -> Pulled:
    stop = min(stop, len(pulled))
    return Pulled(pulled.batch.slice(start, stop), pulled.delivery[start:stop], pulled.attempt[start:stop])


def _as_columns(subject: str, pulled: Pulled | None, name: Callable[[int], str]) -> dict[str, Any]:
    if pulled is None:
        pulled = Pulled(StoredBatch.filled(0), np.empty(0, np.int64), np.empty(0, np.uint32))
    batch = pulled.batch
    servers, index = _server_ids(batch)
    return {
        "count": len(batch),
        "subject": subject,
        "server_ids": servers,
        "server_index": pack_column(index, U32),
        "sequence": pack_column(batch.sequence),
        "due_ms": pack_column(batch.due_ms),
        "accepted_us": pack_column(batch.accepted_us),
        "dispatched_us": pack_column(batch.dispatched_us),
        "expires_ms": pack_column(batch.expires_ms),
        "attempt": pack_column(pulled.attempt, U32),
        "message_ids": batch.ids,
        "message_id_length": pack_column(batch.ids_length),
        "properties": batch.properties,
        "properties_length": pack_column(batch.properties_length),
        "bodies": batch.bodies,
        "body_length": pack_column(batch.bodies_length),
        "delivery": pack_column(pulled.delivery),
        "position": pack_column(positions_of(batch)),
        **_rare_columns(batch, name),
    }


def _rare_columns(batch: StoredBatch, name: Callable[[int], str]) -> dict[str, Any]:
    """Tags and order keys, if a message has one."""
    fields: dict[str, Any] = {}
    if has_any(batch.tag):
        codes, index = np.unique(batch.tag, return_inverse=True)
        fields["tags"] = [name(code) for code in codes.tolist() if code]
        fields["tag_index"] = pack_column((index + (codes[0] != 0)).astype(np.uint32), U32)
    if len(batch.order_keys):
        fields |= {"order_keys": batch.order_keys, "order_key_length": pack_column(batch.order_keys_length)}
    return fields


def _put_rare(rows: list[dict[str, Any]], batch: StoredBatch, name: Callable[[int], str]) -> None:
    """Enters tags and order keys into the rows of those messages that have one."""
    if has_any(batch.tag):
        for row, code in zip(rows, batch.tag.tolist(), strict=True):
            if code:
                row["tag"] = name(code)
    if len(batch.order_keys):
        for row, key in zip(rows, ragged_rows(batch.order_keys, batch.order_keys_length), strict=True):
            if key:
                row["order_key"] = key.decode()


def _as_rows(subject: str, pulled: Pulled, name: Callable[[int], str]) -> list[dict[str, Any]]:
    batch = pulled.batch
    servers, index = _server_ids(batch)
    ids = ragged_rows(batch.ids, batch.ids_length)
    properties = ragged_rows(batch.properties, batch.properties_length)
    bodies = ragged_rows(batch.bodies, batch.bodies_length)
    origin = np.where(batch.origin_sequence != 0, batch.origin_sequence, batch.sequence).tolist()
    columns = [
        column.tolist()
        for column in (
            batch.sequence,
            batch.due_ms,
            batch.accepted_us,
            batch.dispatched_us,
            batch.expires_ms,
            pulled.attempt,
            index,
            positions_of(batch),
        )
    ]
    rows = [
        {
            "message_id": ids[row].decode() if ids[row] else derived_message_id(servers[server], origin[row]),
            "subject": subject,
            "sequence": sequence,
            "server_id": servers[server],
            "due_ms": due_ms,
            "accepted_us": accepted_us,
            "dispatched_us": dispatched_us,
            "expires_ms": expires_ms,
            "attempt": attempt,
            "body": bodies[row],
            "properties": msgpack.unpackb(properties[row]) if properties[row] else {},
            "delivery": delivery,
            "position": position,
        }
        for row, (
            sequence,
            due_ms,
            accepted_us,
            dispatched_us,
            expires_ms,
            attempt,
            server,
            position,
            delivery,
        ) in enumerate(zip(*columns, pulled.delivery.tolist(), strict=True))
    ]
    _put_rare(rows, batch, name)
    return rows


def stored_rows(batch: StoredBatch, name: Callable[[int], str]) -> list[dict[str, Any]]:
    """Stored messages of several subjects. `name` gives the text of a subject's or a tag's code."""
    rows = _as_rows("", Pulled(batch, np.zeros(len(batch), np.int64), np.zeros(len(batch), np.uint32)), name)
    for row, subject, position in zip(rows, batch.subject.tolist(), batch.position.tolist(), strict=True):
        row |= {"subject": name(subject), "position": position}
        del row["delivery"], row["attempt"]
    return rows


def positions_of(batch: StoredBatch) -> NDArray[np.int64]:
    """The position of each message in its subject, i64[n]; -1 for a redelivery, which lies in a queue of its group."""
    target_group = batch.target_group
    if len(target_group) and target_group.strides == (0,) and not target_group[0]:
        return batch.position
    return np.where(target_group != 0, np.int64(-1), batch.position)


def _server_ids(batch: StoredBatch) -> tuple[list[str], NDArray[np.uint32]]:
    server_id = batch.server_id
    # The usual case, ten times faster than np.unique.
    if len(server_id) and (server_id.strides == (0,) or bool((server_id == server_id[0]).all())):
        return [f"{int(server_id[0]):012x}"], constant_column(0, len(server_id), U32)
    numbers, index = np.unique(server_id, return_inverse=True)
    return [f"{number:012x}" for number in numbers.tolist()], index.astype(np.uint32)
