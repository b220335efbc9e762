"""The gateway's own figures: its requests, and its process."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from typing import Final

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.gc_collector import GCCollector
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

# From a lookup in memory to a pull that waits a minute.
SECONDS: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER: Final = "other"
"""The label of a method or a path that the gateway does not know, so that no client makes new label values."""

_BOUNDS: Final = (*map(floatToGoString, SECONDS), "+Inf")

PREFIX: Final = "delayserver_http_"

# The library's time of creation for each series: no query uses it, and it doubles their number.
disable_created_metrics()


class HttpFigures:
    """Counts requests by method, route and status. A route is the template of a path, such as `/v1/messages/{receipt}`."""

    def __init__(self, server_pid: int | None = None) -> None:
        """`server_pid`: the process of the server, if it runs on this machine."""
        self.registry = registry = CollectorRegistry(auto_describe=False)
        self._requests = _Requests()
        registry.register(self._requests)
        ProcessCollector(namespace="delayserver_http", registry=registry)
        for python in (GCCollector, PlatformCollector):
            registry.register(_Prefixed(python(registry=CollectorRegistry())))
        if server_pid is not None:
            pid = server_pid
            ProcessCollector(namespace="delayserver_server", pid=lambda: pid, registry=registry)

    def begin(self) -> None:
        """A request begins."""
        self._requests.begin()

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request has ended."""
        self._requests.end(method if method in METHODS else OTHER, route, status, seconds)


class _Times:
    """How many requests took how long."""

    __slots__ = ("buckets", "sum_s")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        """Count one request."""
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.sum_s += seconds


class _Requests(Collector):
    """Counts requests on the event loop, without the locks of the library's counters; a scrape reads them in a thread. There
    are as many entries as series."""

    def __init__(self) -> None:
        self._in_flight = 0
        self._counts: dict[tuple[str, str, int], int] = {}
        self._times: dict[tuple[str, str], _Times] = {}

    def begin(self) -> None:
        """See `HttpFigures`."""
        self._in_flight += 1

    def end(self, method: str, route: str, status: int, seconds: float) -> None:
        """See `HttpFigures`."""
        self._in_flight -= 1
        key, pair = (method, route, status), (method, route)
        self._counts[key] = self._counts.get(key, 0) + 1
        times = self._times.get(pair)
        if times is None:
            times = self._times[pair] = _Times()
        times.add(seconds)

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        labels = ("method", "route", "status")
        requests = CounterMetricFamily(f"{PREFIX}requests", "Requests answered.", labels=labels)
        for (method, route, status), count in self._counts.copy().items():
            requests.add_metric((method, route, str(status)), count)
        yield requests
        seconds = HistogramMetricFamily(
            f"{PREFIX}request_duration_seconds",
            "Time from the head of a request to the end of its answer.",
            labels=labels[:2],
        )
        for pair, times in self._times.copy().items():
            sums = [float(number) for number in accumulate(times.buckets)]
            seconds.add_metric(pair, [*zip(_BOUNDS, sums, strict=True)], times.sum_s)
        yield seconds
        yield GaugeMetricFamily(f"{PREFIX}requests_in_flight", "Requests under way, streams too.", self._in_flight)


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
