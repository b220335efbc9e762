"""The contents of accepted messages: their bodies and properties, read from schedule_log for a `lookup`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import numpy as np

from delayserver.operations.messages.locator import Locator
from delayserver.operations.messages.message_states import FoundState
from delayserver.protocol.receipts import derived_message_id
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from store.records.batches import MessageBatch
from store.records.column_batch import ragged_rows
from store.tables.names import Names

CONTENTS_BYTES_MAX: Final = 4 << 20
"""Bytes of one reply, and one message more: it fits into a frame. Messages beyond it come without their bodies."""


@dataclass(frozen=True, slots=True)
class Content:
    """The contents of one message. `properties` is a msgpack map, or empty. `tag` and `order_key` are empty for none."""

    message_id: str
    expires_ms: int
    tag: str
    order_key: bytes
    properties: bytes
    body: bytes
    accepted_us: int


@dataclass(frozen=True, slots=True)
class ContentsPart:
    """The contents of some items by their places, and the places for which the reply has no room."""

    contents: dict[int, Content]
    left_out: frozenset[int]


class Contents:
    """Reads messages from schedule_log."""

    def __init__(self, server_id: str, locator: Locator, names: Names, runtime: Runtime) -> None:
        self._server_id = server_id
        self._locator = locator
        self._names = names
        self._workers = runtime.workers

    async def read(self, found: Sequence[FoundState], due_ms: Sequence[int], work: Work) -> ContentsPart:
        """The contents of the messages that were found, as far as their files have them and there is room.

        A message without a content is retired, or its file is damaged."""
        places = [place for place, each in enumerate(found) if each.message and each.error is None]
        contents: dict[int, Content] = {}
        room = CONTENTS_BYTES_MAX
        while places and room > 0:
            await work.items()
            sequence = np.array([found[place].message for place in places], np.int64)
            due = np.array([due_ms[place] for place in places], np.int64)
            count, batch = await self._workers.run(partial(self._locator.read_first, sequence, due, room))
            read = dict(zip(batch.sequence.tolist(), self._contents(batch), strict=True))
            for place in places[:count]:
                content = read.get(found[place].message)
                if content is not None:
                    contents[place] = content
                    room -= len(content.body) + len(content.properties)
            places = places[count:]
        return ContentsPart(contents, frozenset(places))

    def _contents(self, batch: MessageBatch) -> list[Content]:
        tags = [self._names.name(code) if code else "" for code in batch.tag.tolist()]
        ids, order_keys, properties, bodies = (
            ragged_rows(blob, lengths)
            for blob, lengths in (
                (batch.ids, batch.ids_length),
                (batch.order_keys, batch.order_keys_length),
                (batch.properties, batch.properties_length),
                (batch.bodies, batch.bodies_length),
            )
        )
        columns = zip(
            ids,
            batch.sequence.tolist(),
            batch.expires_ms.tolist(),
            tags,
            order_keys,
            properties,
            bodies,
            batch.accepted_us.tolist(),
            strict=True,
        )
        return [
            Content(own.decode() if own else derived_message_id(self._server_id, sequence), *rest)
            for own, sequence, *rest in columns
        ]
