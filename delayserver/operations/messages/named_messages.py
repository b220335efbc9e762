"""Finds the messages of a `cancel`, `lookup` or `reschedule` by receipts, or by subject, message_id and due time.

A name can change its message at any time: a reschedule to the same due time gives it to the new message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.names.name_desk import NameDesk
from delayserver.operations.access.access import EVERYTHING, Access
from delayserver.operations.messages.cancellation import Cancellation
from delayserver.operations.messages.id_search import IdSearch
from delayserver.operations.messages.locator import LocatedNames
from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import (
    DelayServerError,
    ForeignReceipt,
    InvalidArgument,
    KeysIncomplete,
    MessageDamaged,
    ReceiptInvalid,
    kept,
)
from delayserver.protocol.receipts import parse_derived_message_id, parse_receipts
from delayserver.receive.intake import Intake
from delayserver.runtime.fair_turns import SLICE_ITEMS, Work
from store.records.batches import I64
from store.records.id_hash import hash_id
from store.records.message_name import MessageId, MessageName

Places = NDArray[np.intp]

# Receipts that are parsed in one step, which takes 0.5 ms.
RECEIPTS_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class GivenName:
    """A message as its sender names it. Subject and id are not checked yet. Without a due time it is the message with this
    id that waits, or the last one."""

    subject: object
    message_id: object
    due_ms: int | None


@dataclass(frozen=True, slots=True)
class GivenReceipts:
    """The items of a request, each an unchecked receipt."""

    receipts: list[Any]


@dataclass(frozen=True, slots=True)
class GivenItems:
    """The `count` items of a request. Each place is in `receipts`, in `names`, or in `errors` if it names nothing."""

    count: int
    receipts: dict[int, Any] = field(default_factory=dict)
    names: dict[int, GivenName] = field(default_factory=dict)
    errors: dict[int, DelayServerError] = field(default_factory=dict)


Given = GivenReceipts | GivenItems


@dataclass(frozen=True, slots=True)
class NamedMessages:
    """The n items of a request: `sequence` i64[n] and `due_ms` i64[n] of their messages, 0 for an unknown message. By
    place: the `errors` of items that name nothing, the `names` of items with an id of the client, and the `ids` of those
    without a due time. `closed` are the
    sequences of messages that are unknown to this client because their subject is closed to it."""

    receipts: list[str] | None
    sequence: I64
    due_ms: I64
    errors: dict[int, DelayServerError]
    names: dict[int, MessageName]
    ids: dict[int, MessageId] = field(default_factory=dict)
    closed: dict[int, int] = field(default_factory=dict)


class Naming:
    """Names → messages."""

    def __init__(
        self, server_id: str, intake: Intake, names: NameDesk, cancellation: Cancellation, search: IdSearch
    ) -> None:
        self._server = server_id
        self._search = search
        self._intake = intake
        self._cancellation = cancellation
        self._names = names

    async def find(self, given: Given, work: Work, access: Access = EVERYTHING) -> NamedMessages:
        """Finds the messages that the client names. A name with a closed subject is refused. A receipt of a message whose
        subject is closed is unknown: another answer to a guess would tell that there is such a message."""
        named = await self._find(given, work, access)
        if not access.everything:
            for place in (await self._closed(named.sequence, named.due_ms, access)).tolist():
                named.closed[place] = int(named.sequence[place])
                named.sequence[place] = 0
                named.names.pop(place, None)
                named.ids.pop(place, None)
        return named

    async def without_closed(self, sequence: I64, due_ms: I64, access: Access) -> I64:
        """The sequences of messages, i64[n] each, with 0 for those whose subject is closed to the client."""
        if access.everything:
            return sequence
        closed = await self._closed(sequence, due_ms, access)
        if not len(closed):
            return sequence
        sequence = sequence.copy()
        sequence[closed] = 0
        return sequence

    async def _closed(self, sequence: I64, due_ms: I64, access: Access) -> Places:
        """The places of messages whose subject is closed to the client."""
        located = await self._cancellation.locate(sequence, due_ms)
        codes, index = np.unique(located.subject, return_inverse=True)
        closed = np.array([bool(code) and not access.may(self._names.name(code)) for code in codes.tolist()], bool)
        return np.flatnonzero(closed[index])

    async def _find(self, given: Given, work: Work, access: Access) -> NamedMessages:
        if isinstance(given, GivenReceipts):
            return await self._of_receipts(given.receipts, work)
        count = given.count
        named = NamedMessages(None, np.zeros(count, np.int64), np.zeros(count, np.int64), dict(given.errors), {})
        if given.receipts:
            places = np.fromiter(given.receipts, np.intp, len(given.receipts))
            found = await self._of_receipts(list(given.receipts.values()), work)
            named.sequence[places], named.due_ms[places] = found.sequence, found.due_ms
            named.errors.update({int(places[place]): error for place, error in found.errors.items()})
        if given.names:
            await self._put_names(named, given.names, work, access)
        return named

    async def look_up_again(self, named: NamedMessages, places: Places, work: Work) -> Places:
        """Looks the names of cancelled messages at these places up again. Returns the places whose message has changed, and
        updates `named`. This happens if a reschedule was in progress at the first look. A place gets an error where damage
        may hide the message that has the name now."""
        by_id = places[[place in named.ids for place in places.tolist()]]
        changed = [await self._look_up_names(named, places)]
        if len(by_id):
            before = named.sequence[by_id]
            await self._find_ids(named, by_id.tolist(), work)
            changed.append(by_id[named.sequence[by_id] != before])
        return np.concatenate(changed)

    async def _look_up_names(self, named: NamedMessages, places: Places) -> Places:
        places = places[[place in named.names for place in places.tolist()]]
        if not len(places):
            return places
        before = named.sequence[places]
        located = await self._locate(named, places.tolist())
        same = named.sequence[places] == before
        for place in places[same].tolist():
            _refuse_hidden(named, place, located)
        places = places[~same]
        return places

    async def _of_receipts(self, receipts: list[str], work: Work) -> NamedMessages:
        count = len(receipts)
        named = NamedMessages(receipts, np.zeros(count, np.int64), np.zeros(count, np.int64), {}, {})
        for start in range(0, count, RECEIPTS_AT_ONCE):
            some = slice(start, start + RECEIPTS_AT_ONCE)
            columns = parse_receipts(receipts[some], self._server)
            named.sequence[some] = np.where(columns.own, columns.sequence, 0)
            named.due_ms[some] = np.where(columns.own, columns.due_ms, 0)
            for place in np.flatnonzero(~columns.own).tolist():
                await work.items()
                receipt = receipts[start + place]
                named.errors[start + place] = (
                    ForeignReceipt(f"{receipt} is another server's; this one is {self._server}")
                    if columns.valid[place]
                    else ReceiptInvalid(f"{shown(receipt)} is no receipt")
                )
            if start + RECEIPTS_AT_ONCE < count:
                await work.items(SLICE_ITEMS)
        return named

    async def _put_names(self, named: NamedMessages, names: dict[int, GivenName], work: Work, access: Access) -> None:
        """Finds the messages of some places by their names. A closed subject is refused before anything is looked for."""
        derived: dict[int, int] = {}
        for place, given in names.items():
            await work.items()
            try:
                if type(given.subject) is str:
                    access.require(given.subject)
                if given.due_ms is None:
                    named.ids[place] = self._id(given)
                    continue
                name = self._name(given, given.due_ms)
            except DelayServerError as error:
                named.errors[place] = kept(error)
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
        if named.ids:
            await self._find_ids(named, list(named.ids), work)

    def _name(self, given: GivenName, due_ms: int) -> MessageName:
        due_ms = due_ms if 0 <= due_ms < 1 << 48 else 0
        named = self._id(given)
        return MessageName(named.subject, due_ms, named.message_id, named.id_hash)

    def _id(self, given: GivenName) -> MessageId:
        message_id = self._intake.message_id(given.message_id)
        own = parse_derived_message_id(message_id.decode())
        if given.due_ms is None and own is not None and own[0] == self._server:
            raise InvalidArgument("the server made this id: give the receipt of the message, or its due time too")
        return MessageId(self._names.known_subject(given.subject), message_id, hash_id(message_id))

    async def _find_ids(self, named: NamedMessages, places: list[int], work: Work) -> None:
        """Finds the messages of the ids at these places. A place whose message is gone keeps its sequence."""
        known = [place for place in places if named.ids[place].subject]
        if not known:
            return
        try:
            found = await self._search.find([named.ids[place] for place in known], work)
        except KeysIncomplete as error:
            named.errors.update(dict.fromkeys(known, error))
            return
        for at, bearer in found.bearers.items():
            named.sequence[known[at]], named.due_ms[known[at]] = bearer.sequence, bearer.due_ms
        named.errors.update({known[at]: error for at, error in found.errors.items()})

    async def _keep_own(self, named: NamedMessages, subjects: dict[int, int]) -> None:
        """Sets the sequence to 0 where a derived id comes with a subject that is not its message's."""
        places = np.fromiter(subjects, np.intp, len(subjects))
        located = await self._cancellation.locate(named.sequence[places], named.due_ms[places])
        subject = np.fromiter(subjects.values(), np.uint32, len(subjects))
        named.sequence[places[located.found & (located.subject != subject)]] = 0

    async def _locate(self, named: NamedMessages, places: list[int]) -> LocatedNames:
        """Finds the messages of the ids at these places. A place whose id is gone keeps its sequence."""
        located = await self._cancellation.locate_names([named.names[place] for place in places])
        for place in places:
            name = named.names[place]
            named.sequence[place] = located.sequence.get(name, named.sequence[place])
            if not named.sequence[place]:
                _refuse_hidden(named, place, located)
        return located


def _refuse_hidden(named: NamedMessages, place: int, located: LocatedNames) -> None:
    error = located.hidden.get(named.names[place])
    if error is not None:
        named.errors[place] = MessageDamaged(str(error))
