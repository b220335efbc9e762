"""The operation `find`: messages that are stored on this node, by their id, by a key, or by subject and time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from delayserver.broker.actions.find_plan import Place, StoredQuery
from delayserver.broker.service.local_broker import LocalBroker
from delayserver.names.name_desk import NameDesk
from delayserver.operations.groups.queue_reads import QueueReads
from delayserver.protocol.receipts import parse_derived_message_id
from delayserver.protocol.schema.stored import FindMessages, ReadMessages
from store.records.batches import StoredBatch

FOUND_BYTES_MAX: Final = 4 << 20
"""Bytes of bodies of one reply, and one more message: it fits into a frame."""

START: Final[Place] = (-1, 0)
"""Where a search begins."""


@dataclass(frozen=True, slots=True)
class FoundPage:
    """Found messages in the order in which they were stored. The search goes on behind `next`; None if it is complete."""

    messages: StoredBatch
    name_of: Callable[[int], str]
    next: Place | None


class StoreSearch:
    """Searches the store of the broker of this process."""

    def __init__(self, broker: LocalBroker, reads: QueueReads, names: NameDesk) -> None:
        self._broker = broker
        self._reads = reads
        self._names = names

    async def find(self, search: FindMessages) -> FoundPage:
        """The first messages behind `after`. Raises SubjectInvalid, StoreError."""
        subject, after = 0, START if search.after is None else search.after
        if search.subject is not None:
            subject = self._names.known_subject(search.subject)
            if not subject:
                return self._page(StoredBatch.filled(0), None)
        if search.message_id is None and search.key is None:
            return await self._by_time(search, subject, after)
        derived = None if search.message_id is None else parse_derived_message_id(search.message_id)
        found = await self._broker.finding.find(
            StoredQuery(
                None if search.message_id is None else search.message_id.encode(),
                None if derived is None else (int(derived[0], 16), derived[1]),
                None if search.key is None else search.key.encode(),
                subject,
                search.from_ms * 1000,
                search.to_ms * 1000,
                after,
                search.max,
                FOUND_BYTES_MAX,
            )
        )
        return self._page(found.messages(), found.next)

    async def _by_time(self, search: FindMessages, subject: int, after: Place) -> FoundPage:
        """The messages of a subject that were dispatched in a time. They stand together in its queue."""
        assert search.subject is not None
        if after == START:
            position = await self._broker.positions.at_time(subject, search.from_ms * 1000)
        else:
            position = after[0]
        asked = ReadMessages(
            subject=search.subject, position=position, max_messages=search.max, max_bytes=FOUND_BYTES_MAX
        )
        looked = await self._reads.read(asked)
        if looked.found is None:
            return self._page(StoredBatch.filled(0), (looked.next, 0) if looked.next > position else None)
        batch = looked.found.batch
        in_time = int(np.count_nonzero(np.logical_and.accumulate(batch.dispatched_us < search.to_ms * 1000)))
        return self._page(batch.slice(0, in_time), (looked.next, 0) if in_time == len(batch) else None)

    def _page(self, messages: StoredBatch, following: Place | None) -> FoundPage:
        return FoundPage(messages, self._names.name, following)
