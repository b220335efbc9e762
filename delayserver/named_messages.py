"""Which messages a `cancel`, `lookup` or `reschedule` is about: named by receipts, or by subject, message_id and due time.

What a name stands for is a matter of the moment: a reschedule to the same time puts another message in its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.cancellation import Cancellation
from delayserver.intake import Intake
from delayserver.protocol.errors import (
    BatchTooLarge,
    DelayServerError,
    ForeignReceipt,
    InvalidArgument,
    MessageDamaged,
    ReceiptInvalid,
)
from delayserver.protocol.receipts import parse_derived_message_id, parse_receipts
from delayserver.turns import between_items
from store.batches import I64
from store.id_hash import hash_id
from store.message_name import MessageName
from store.names import SUBJECT, Names

Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class NamedMessages:
    """The n items of a request: `sequence` i64[n] and `due_ms` i64[n] of their messages, 0 where there is none we have. By
    place the `errors` of items that name nothing, and the `names` of those that have an id of their own."""

    receipts: list[str] | None
    sequence: I64
    due_ms: I64
    errors: dict[int, DelayServerError]
    names: dict[int, MessageName]


class Naming:
    """Names → messages."""

    def __init__(
        self, server_id: str, items_max: int, intake: Intake, cancellation: Cancellation, subjects: Names
    ) -> None:
        self._server = server_id
        self._items_max = items_max
        self._intake = intake
        self._cancellation = cancellation
        self._subjects = subjects

    async def messages(self, arguments: dict[str, Any]) -> NamedMessages:
        """The messages of a whole request. Raises InvalidArgument, BatchTooLarge."""
        receipts, messages = arguments.get("receipts"), arguments.get("messages")
        items = receipts if receipts is not None else messages
        if type(items) is not list or not items:
            raise InvalidArgument("give receipts, or messages with subject, message_id and due_ms")
        if len(items) > self._items_max:
            raise BatchTooLarge(f"{len(items)} items; at most {self._items_max} in one request")
        return self._of_receipts(items) if receipts is not None else await self._of_names(items)

    async def message(self, item: object) -> tuple[int, int]:
        """Sequence and due time of one message that is named by a map, 0 where there is none. Raises named errors."""
        named = await self._of_names([item])
        for error in named.errors.values():
            raise error
        return int(named.sequence[0]), int(named.due_ms[0])

    async def replaced(self, named: NamedMessages, places: Places) -> Places:
        """At which of these places the name stands for another message by now, which then takes its place there: a
        reschedule to the same time, which was under way when the name was looked up."""
        places = places[[place in named.names for place in places.tolist()]]
        if not len(places):
            return places
        before = named.sequence[places]
        await self._locate(named, places.tolist())
        places = places[named.sequence[places] != before]
        return places

    def _of_receipts(self, receipts: list[str]) -> NamedMessages:
        columns = parse_receipts(receipts, self._server)
        errors: dict[int, DelayServerError] = {}
        for place in np.flatnonzero(~columns.own).tolist():
            errors[place] = (
                ForeignReceipt(f"{receipts[place]} is another server's; this one is {self._server}")
                if columns.valid[place]
                else ReceiptInvalid(f"{receipts[place]!r:.64} is no receipt")
            )
        sequence, due_ms = (np.where(columns.own, column, 0) for column in (columns.sequence, columns.due_ms))
        return NamedMessages(receipts, sequence, due_ms, errors, {})

    async def _of_names(self, items: list[Any]) -> NamedMessages:
        count = len(items)
        named = NamedMessages(None, np.zeros(count, np.int64), np.zeros(count, np.int64), {}, {})
        derived: dict[int, int] = {}
        for place, item in enumerate(items):
            await between_items(place)
            try:
                name = self._name(item)
            except DelayServerError as error:
                named.errors[place] = error
                continue
            named.due_ms[place] = name.due_ms
            own = parse_derived_message_id(name.message_id.decode())
            if own is not None and own[0] == self._server:
                named.sequence[place], derived[place] = own[1], name.subject
            elif name.subject:
                named.names[place] = name
        if derived:
            await self._keep_own(named, derived)
        if named.names:
            await self._locate(named, list(named.names))
        return named

    def _name(self, item: object) -> MessageName:
        # Without an id nobody can know whether there is such a message: that is no answer `unknown`.
        if type(item) is not dict or type(item.get("due_ms")) is not int or item.get("message_id") is None:
            raise InvalidArgument(
                "name a message by a map of subject, message_id and due_ms (message_due_ms to reschedule it)"
            )
        due_ms = item["due_ms"] if 0 <= item["due_ms"] < 1 << 48 else 0
        message_id = self._intake.message_id(item["message_id"])
        subject = self._subjects.code(SUBJECT, self._intake.check_subject(item.get("subject")))
        return MessageName(subject, due_ms, message_id, hash_id(message_id))

    async def _keep_own(self, named: NamedMessages, subjects: dict[int, int]) -> None:
        """A derived id names its message below its own subject only."""
        places = np.fromiter(subjects, np.intp, len(subjects))
        located = await self._cancellation.locate(named.sequence[places], named.due_ms[places])
        subject = np.fromiter(subjects.values(), np.uint32, len(subjects))
        named.sequence[places[located.found & (located.subject != subject)]] = 0

    async def _locate(self, named: NamedMessages, places: list[int]) -> None:
        """Look for the ids at these places. One that is not there any more keeps its sequence."""
        located = await self._cancellation.locate_names([named.names[place] for place in places])
        for place in places:
            name = named.names[place]
            named.sequence[place] = located.sequence.get(name, named.sequence[place])
            if name in located.hidden and not named.sequence[place]:
                named.errors[place] = MessageDamaged(str(located.hidden[name]))
