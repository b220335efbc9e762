"""`metrics`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from delayserver.front.connection import Connection
from delayserver.front.handlers.status_map import status_map
from delayserver.operations.figures.metrics import Histogram, Metrics
from delayserver.operations.figures.queues import QueueUse
from delayserver.protocol.frames import FieldsReply, Request, encode_row
from delayserver.runtime.fair_turns import SLICE_ITEMS

ROWS_AT_ONCE: Final = 256
"""Rows of a reply encoded between two slices: some 300 µs. A row is an eighth of an item."""


class MetricsHandlers:
    """Requests of monitors."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self, connection: Connection, request: Request) -> None:
        """All figures. Of consumer groups and subjects those that are open to the client."""
        work = connection.work()
        figures = await self._metrics.read(work, connection.access)
        reply = FieldsReply(request.id)
        groups, subjects = list[list[bytes]](), list[list[bytes]]()
        for start in range(0, len(figures.consumer_groups), ROWS_AT_ONCE):
            part = figures.consumer_groups[start : start + ROWS_AT_ONCE]
            await work.items(ROWS_AT_ONCE // 8)
            groups.append([encode_row(group._asdict()) for group in part])
        rows = iter(figures.subjects.items())
        while some := list(islice(rows, ROWS_AT_ONCE)):
            await work.items(ROWS_AT_ONCE // 8)
            subjects.append([encode_row({"subject": name, "pending": count}) for name, count in some])
        await work.items(SLICE_ITEMS)  # some 500 µs
        reply.add(status_map(figures.status))
        lateness = figures.lateness.items()
        reply.add({"lateness": {name: _histogram(each.histogram) | {"early": each.early} for name, each in lateness}})
        reply.add({"stages": {name: _histogram(each) for name, each in figures.stages.items()}})
        reply.add({"queues": [_queue(each) for each in figures.queues]})
        reply.add_rows("consumer_groups", groups)
        reply.add({"consumer_groups_all": figures.consumer_groups_all})
        reply.add_rows("subjects", subjects)
        reply.add({"subjects_counted": figures.subjects_counted})
        connection.when_room(lambda: connection.reply(reply.frame()))


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"bounds_us": list(histogram.bounds_us), "counts": histogram.counts, "sum_us": histogram.sum_us}


def _queue(queue: QueueUse) -> dict[str, Any]:
    fields = asdict(queue)
    return fields if queue.group else {name: value for name, value in fields.items() if name != "group"}
