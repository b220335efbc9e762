"""`metrics`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from delayserver.front.connection import Connection
from delayserver.front.handlers.status_map import status_map
from delayserver.operations.figures.metrics import Histogram, Metrics
from delayserver.operations.figures.queues import QueueUse
from delayserver.protocol.frames import Request


class MetricsHandlers:
    """Requests of monitors."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def metrics(self, connection: Connection, _request: Request) -> dict[str, Any]:
        """All figures. Of consumer groups those whose subjects are open to the client."""
        work = connection.work()
        figures = await self._metrics.read(work)
        groups = []
        for group in figures.consumer_groups:
            await work.items()
            if not connection.access.may(group.subject):
                continue
            groups.append({name: getattr(group, name) for name in group.__slots__})
        subjects = []
        for subject in figures.subjects:
            await work.items()
            if connection.access.may(subject.subject):
                subjects.append({"subject": subject.subject, "pending": subject.pending})
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
