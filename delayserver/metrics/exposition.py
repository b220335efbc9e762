"""One scrape as bytes, in the format that the client accepts. It takes some milliseconds: call it in a worker thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from delayserver.metrics.metric_lines import openmetrics_lines, text_lines
from delayserver.metrics.server_families import Reply, server_families

OPENMETRICS: Final = "application/openmetrics-text"
CONTENT_TYPE_OPENMETRICS: Final = f"{OPENMETRICS}; version=1.0.0; charset=utf-8"
CONTENT_TYPE_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"


class Scraped(Collector):
    """The families of one reply of the server. None: it did not answer."""

    def __init__(self, reply: Reply | None) -> None:
        self._reply = reply

    def collect(self) -> Iterable[Metric]:
        """See `Collector`."""
        up = 0 if self._reply is None else 1
        yield GaugeMetricFamily("delayserver_up", "1 if the server answered the gateway at this scrape.", up)
        if self._reply is not None:
            yield from server_families(self._reply)


def exposition(reply: Reply | None, own: CollectorRegistry, accept: str) -> tuple[bytes, str]:
    """The server's figures and the gateway's own: bytes, and their content type. `accept` is the header of the request:
    OpenMetrics if it asks for that, otherwise the text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scraped(reply))
    registry.register(own)
    # The library's `choose_encoder` raises ValueError for some headers that a client may send.
    if OPENMETRICS in accept:
        return openmetrics_lines(registry.collect()), CONTENT_TYPE_OPENMETRICS
    return text_lines(registry.collect()), CONTENT_TYPE_TEXT
