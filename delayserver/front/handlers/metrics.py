"""`metrics`."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from delayserver.front.connection import Connection
from delayserver.front.handlers.status_map import status_map
from delayserver.operations.figures.metrics import Histogram, Metrics
from delayserver.operations.figures.queues import QueueUse
from delayserver.protocol.frames import Request

ROWS_AT_ONCE: Final = 256
"""Rows of a reply made between two slices: some 150 µs. A row is an eighth of an item."""


class MetricsHandlers:
    """Requests of monitors."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self, connection: Connection, _request: Request) -> dict[str, Any]:
        """All figures. Of consumer groups those whose subjects are open to the client."""
        work = connection.work()
        figures = await self._metrics.read(work)
        groups, subjects = list[dict[str, Any]](), list[dict[str, Any]]()
        may = connection.access.may
        for start in range(0, len(figures.consumer_groups), ROWS_AT_ONCE):
            part = figures.consumer_groups[start : start + ROWS_AT_ONCE]
            await work.items(ROWS_AT_ONCE // 8)
            groups += [group._asdict() for group in part if may(group.subject)]
        rows = iter(figures.subjects.items())
        while some := list(islice(rows, ROWS_AT_ONCE)):
            await work.items(ROWS_AT_ONCE // 8)
            subjects += [{"subject": subject, "pending": pending} for subject, pending in some if may(subject)]
        return {
            **status_map(figures.status),
            "lateness": {
                name: _histogram(each.histogram) | {"early": each.early} for name, each in figures.lateness.items()
            },
            "stages": {name: _histogram(each) for name, each in figures.stages.items()},
            "queues": [_queue(each) for each in figures.queues],
            "consumer_groups": groups,
            "consumer_groups_all": figures.consumer_groups_all,
            "subjects": subjects,
            "subjects_counted": figures.subjects_counted,
        }


def _histogram(histogram: Histogram) -> dict[str, Any]:
    return {"bounds_us": list(histogram.bounds_us), "counts": histogram.counts, "sum_us": histogram.sum_us}


def _queue(queue: QueueUse) -> dict[str, Any]:
    fields = asdict(queue)
    return fields if queue.group else {name: value for name, value in fields.items() if name != "group"}
