"""The messages of a page, as a reply has them: ids are read, and bodies if they are asked for."""

from __future__ import annotations

from functools import partial

import msgpack

from delayserver.operations.listing.list_page import ListPage, Rows
from delayserver.operations.listing.list_place import ListPlace
from delayserver.operations.listing.list_scan import ListScanner, Scanned
from delayserver.operations.listing.list_selecting import sum_of
from delayserver.operations.messages.contents import CONTENTS_BYTES_MAX
from delayserver.operations.messages.locator import Locator
from delayserver.protocol.receipts import derived_message_id, format_receipt
from delayserver.protocol.schema.pending import ListMessages, PendingMessage
from delayserver.runtime.fair_turns import Work
from delayserver.runtime.runtime import Runtime
from store.records.column_batch import ragged_rows
from store.tables.names import Names


class ShownMessages:
    """Reads the rest of messages whose rows were chosen."""

    def __init__(self, scanner: ListScanner, locator: Locator, names: Names, server_id: str, runtime: Runtime) -> None:
        self.scanner = scanner
        self._locator = locator
        self._names = names
        self._server_id = server_id
        self._workers = runtime.workers

    async def messages(
        self, page: ListPage, asked: ListMessages, work: Work
    ) -> tuple[list[PendingMessage], ListPlace | None]:
        """The messages of a page. If bodies need more room than a reply has, only the first ones, and where the others
        begin."""
        messages: list[PendingMessage] = []
        sum_, room = sum_of(asked), CONTENTS_BYTES_MAX
        for scanned, rows in page.taken:
            ids = await self._workers.run(partial(self.scanner.ids, scanned, rows))
            contents: dict[int, tuple[bytes, bytes]] = {}
            tried = len(rows)
            if asked.bodies:
                tried, contents = await self._contents(scanned, rows, room)
                room -= sum([len(properties) + len(body) for properties, body in contents.values()])
            for row, own in zip(rows[:tried].tolist(), ids, strict=False):
                await work.items()
                page.note_damages(int(own is None))
                place = scanned.place_behind(row).text(sum_) if asked.places else ""
                messages.append(self._shown(scanned, row, own, contents, place))
            if tried < len(rows) or room <= 0:
                return messages, scanned.place_behind(int(rows[tried - 1]))
        return messages, None

    async def _contents(self, scanned: Scanned, rows: Rows, room: int) -> tuple[int, dict[int, tuple[bytes, bytes]]]:
        """How many of some rows there is room for, and the properties and bodies of those that can be read, by sequence."""
        sequence, due_ms = scanned.rows.index.sequence[rows], scanned.rows.index.due_ms[rows]
        tried, batch = await self._workers.run(partial(self._locator.read_first, sequence, due_ms, room))
        properties = ragged_rows(batch.properties, batch.properties_length)
        bodies = ragged_rows(batch.bodies, batch.bodies_length)
        return min(tried, len(rows)), dict(
            zip(batch.sequence.tolist(), zip(properties, bodies, strict=True), strict=True)
        )

    def _shown(
        self, scanned: Scanned, row: int, own: str | None, contents: dict[int, tuple[bytes, bytes]], place: str
    ) -> PendingMessage:
        index = scanned.rows.index
        sequence, due_ms = int(index.sequence[row]), int(index.due_ms[row])
        tag = int(index.tag[row])
        content = contents.get(sequence)
        return PendingMessage(
            receipt=format_receipt(self._server_id, due_ms, sequence),
            message_id=derived_message_id(self._server_id, sequence) if own == "" else own or "",
            subject=self._names.name(int(index.subject[row])),
            due_ms=due_ms,
            accepted_us=int(index.accepted_us[row]),
            body_bytes=int(index.bodies_length[row]),
            tag=self._names.name(tag) if tag else "",
            expires_ms=int(index.expires_ms[row]),
            properties=None if content is None else msgpack.unpackb(content[0]) if content[0] else {},
            body=None if content is None else content[1],
            place=place,
        )
