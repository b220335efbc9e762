"""The gateway's own figures: its requests, and its process."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

# From a lookup in memory to a pull that waits a minute.
SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER: Final = "other"
"""The label of a method or a path that the gateway does not know, so that no client makes new label values."""

PREFIX: Final = "delayserver_http_"

# The library's time of creation for each series: nobody asks for it, and it doubles their number.
disable_created_metrics()


class HttpFigures:
    """Counts requests by method, route and status. A route is the template of a path, such as `/v1/messages/{receipt}`."""

    def __init__(self, server_pid: int | None = None) -> None:
        """`server_pid`: the process of the server, if it runs on this machine."""
        self.registry = registry = CollectorRegistry(auto_describe=False)
        labels = ("method", "route", "status")
        self._requests = Counter(f"{PREFIX}requests", "Requests answered.", labels, registry=registry)
        self._seconds = Histogram(
            f"{PREFIX}request_duration_seconds", "Time from the head of a request to the end of its answer.",
            labels[:2], buckets=SECONDS, registry=registry,
        )  # fmt: skip
        self._in_flight = Gauge(f"{PREFIX}requests_in_flight", "Requests under way, streams too.", registry=registry)
        # A look-up of labels costs as much as counting; there are as many entries as series.
        self._known: dict[tuple[str, str, int], Callable[[float], None]] = {}
        ProcessCollector(namespace="delayserver_http", registry=registry)
        for python in (GCCollector, PlatformCollector):
            registry.register(_Prefixed(python(registry=CollectorRegistry())))
        if server_pid is not None:
            pid = server_pid
            ProcessCollector(namespace="delayserver_server", pid=lambda: pid, registry=registry)

    def begin(self) -> None:
        """A request begins."""
        self._in_flight.inc()

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request has ended."""
        self._in_flight.dec()
        key = method, route, status
        count = self._known.get(key)
        if count is None:
            count = self._known[key] = self._counting(method if method in METHODS else OTHER, route, status)
        count(seconds)

    def _counting(self, method: str, route: str, status: int) -> Callable[[float], None]:
        requests, seconds = self._requests.labels(method, route, str(status)), self._seconds.labels(method, route)

        def count(took_s: float) -> None:
            requests.inc()
            seconds.observe(took_s)

        return count


class _Prefixed(Collector):
    """The metrics of a collector, with the prefix of this program before their names."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        for metric in self._collector.collect():
            renamed = Metric(PREFIX + metric.name, metric.documentation, metric.type)
            for sample in metric.samples:
                renamed.add_sample(PREFIX + sample.name, sample.labels, sample.value)
            yield renamed
