"""Reads arguments that several operations share: messages by receipts, names or numbers, and columns of due times."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from delayserver.operations.messages.named_messages import Given, GivenItems, GivenName, GivenReceipts
from delayserver.protocol.arguments import integer, invalid, shown
from delayserver.protocol.columns import I64, U32, Ragged, unpack_column, unpack_ragged
from delayserver.protocol.errors import BatchTooLarge, DelayServerError, ForeignReceipt, InvalidArgument
from delayserver.protocol.message_columns import DueColumn
from delayserver.runtime.fair_turns import Work

_NAME = (
    "name a message by a map of subject and message_id, and due_ms (message_due_ms to reschedule it) where it is known"
)


class Numbers(NamedTuple):
    """Messages by their sequences and due times, i64[n] each."""

    sequence: NDArray[np.int64]
    due_ms: NDArray[np.int64]


class GivenMessages:
    """Reads the messages that a request names, at most `items_max`."""

    def __init__(self, server_id: str, items_max: int) -> None:
        self._server_id = server_id
        self._items_max = items_max

    def count(self, arguments: Mapping[str, Any]) -> int:
        """The number of rows of a request in columns. Raises InvalidArgument, BatchTooLarge."""
        count = integer(arguments, "count", 1, 1 << 31)
        self._bound(count)
        return count

    def numbers(self, arguments: Mapping[str, Any], due_name: str) -> Numbers:
        """Messages of this server in columns. Raises InvalidArgument, BatchTooLarge, ForeignReceipt."""
        count = self.count(arguments)
        server = arguments.get("server_id")
        if server is not None and server != self._server_id:
            if type(server) is not str:
                raise invalid("server_id", "the text that hello gives", server)
            raise ForeignReceipt(f"these are messages of server {shown(server)}; this one is {self._server_id}")
        sequence = unpack_column(arguments.get("sequence"), count, I64, "sequence")
        return Numbers(sequence, _sane(unpack_column(arguments.get(due_name), count, I64, due_name)))

    def items(self, arguments: Mapping[str, Any], form: str) -> list[Any]:
        """The list of items of a request in this form. Raises InvalidArgument, BatchTooLarge."""
        items = arguments[form]
        if type(items) is not list or not items:
            raise invalid(form, "a list of at least one item", items)
        return self.bounded(items)

    def bounded(self, items: list[Any]) -> list[Any]:
        """The items of a request. Raises BatchTooLarge."""
        self._bound(len(items))
        return items

    async def given(self, arguments: Mapping[str, Any], form: str, work: Work) -> Given:
        """The messages of a request by `receipts` or by `messages`. Raises InvalidArgument, BatchTooLarge."""
        items = self.items(arguments, form)
        if form == "receipts":
            return GivenReceipts(items)
        given = GivenItems(len(items))
        for place, item in enumerate(items):
            await work.items()
            if type(item) is dict:
                put_name(given, place, item, "due_ms")
            else:
                given.errors[place] = InvalidArgument(_NAME)
        return given

    def _bound(self, count: int) -> None:
        if count > self._items_max:
            raise BatchTooLarge(f"{count} items; at most {self._items_max} in one request")


def put_name(given: GivenItems, place: int, item: dict[str, Any], due_name: str) -> None:
    """Stores the name of an item, or an error if it has no id. The server cannot look for a message without an id, so
    `unknown` would be a wrong answer."""
    due_ms, message_id = item.get(due_name), item.get("message_id")
    if (due_ms is None or type(due_ms) is int) and message_id is not None:
        given.names[place] = GivenName(item.get("subject"), message_id, due_ms)
    else:
        given.errors[place] = InvalidArgument(_NAME)


def read_due(arguments: Mapping[str, Any], count: int) -> DueColumn:
    """The due times of a request in columns. Raises InvalidArgument."""
    due, delay, level = arguments.get("due_ms"), arguments.get("delay_ms"), arguments.get("delay_level")
    if level is not None:
        if due is not None or delay is not None:
            raise InvalidArgument("give only one of due_ms, delay_ms and delay_level")
        return DueColumn(unpack_column(level, count, I64, "delay_level"), are_delays=True, are_levels=True)
    if due is not None:
        if delay is not None:
            raise InvalidArgument("give either due_ms or delay_ms, not both")
        return DueColumn(unpack_column(due, count, I64, "due_ms"), are_delays=False)
    if delay is None:
        raise InvalidArgument("due_ms and delay_ms are missing; give one of them")
    return DueColumn(unpack_column(delay, count, I64, "delay_ms"), are_delays=True)


def optional_ragged(arguments: Mapping[str, Any], count: int, name: str, lengths_name: str) -> Ragged | None:
    """Ragged bytes, or None if the request gives neither argument. Raises InvalidArgument."""
    blob, lengths = arguments.get(name), arguments.get(lengths_name)
    if blob is None and lengths is None:
        return None
    return unpack_ragged(blob, lengths, count, name, lengths_name)


def read_tags(arguments: Mapping[str, Any], count: int) -> tuple[list[Any], NDArray[np.uint32] | None]:
    """The tags, and the index of each message's tag, u32[n], that counts from 1 (0: none). Without an index all messages
    have the first tag, if there is one. Raises InvalidArgument."""
    tag, tags = arguments.get("tag"), arguments.get("tags")
    if tag is not None and tags is not None:
        raise InvalidArgument("tag and tags are both given; give one of them")
    if tag is not None:
        return [tag], None
    if tags is None:
        return [], None
    if type(tags) is not list:
        raise invalid("tags", "a list of texts, beside tag_index (or give tag)", tags)
    index = unpack_column(arguments.get("tag_index"), count, U32, "tag_index")
    if int(index.max()) > len(tags):
        raise InvalidArgument(f"tag_index goes up to {int(index.max())}, but there are {len(tags)} tags")
    return tags, index


def rejected_rows(errors: Iterable[tuple[int, DelayServerError]]) -> list[list[Any]]:
    """The refused rows of a request in columns: place, error name, error message and retry pause in ms."""
    return [[place, error.name, error.message, error.retry_after_ms] for place, error in errors]


def _sane(due_ms: NDArray[np.int64]) -> NDArray[np.int64]:
    """Replaces impossible due times by 0, so that the search stays within the calendar."""
    return np.where((due_ms >= 0) & (due_ms < 1 << 47), due_ms, 0)
