"""`metrics`."""

from __future__ import annotations

from typing import Final

from msgspec import to_builtins
from msgspec.structs import asdict

from delayserver.front.connection import Connection
from delayserver.operations.figures.metrics import Metrics
from delayserver.protocol.figure_fields import as_map
from delayserver.protocol.frames import FieldsReply, RequestFrame, encode_row
from delayserver.runtime.fair_turns import SLICE_ITEMS

ROWS_AT_ONCE: Final = 256
"""Rows of a reply encoded between two slices: some 300 µs. A row is an eighth of an item."""


class MetricsHandlers:
    """Requests of monitors."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self, connection: Connection, request: RequestFrame) -> None:
        """All figures. Of consumer groups and subjects those that are open to the client."""
        work = connection.work()
        figures = await self._metrics.read(work, connection.access)
        reply = FieldsReply(request.id)
        groups, subjects = list[list[bytes]](), list[list[bytes]]()
        for rows, parts in ((figures.consumer_groups, groups), (figures.subjects, subjects)):
            for start in range(0, len(rows), ROWS_AT_ONCE):
                await work.items(ROWS_AT_ONCE // 8)
                parts.append([encode_row(asdict(row)) for row in rows[start : start + ROWS_AT_ONCE]])
        await work.items(SLICE_ITEMS)  # some 500 µs
        reply.add(as_map(figures.status))
        for name in ("lateness", "stages", "queues"):
            reply.add({name: to_builtins(getattr(figures, name))})
        reply.add_rows("consumer_groups", groups)
        reply.add({"consumer_groups_all": figures.consumer_groups_all})
        reply.add_rows("subjects", subjects)
        reply.add({"subjects_counted": figures.subjects_counted})
        connection.when_room(lambda: connection.reply(reply.frame()))
