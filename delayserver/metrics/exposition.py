"""One scrape as bytes, in the format that the client accepts. It takes some milliseconds: call it in a worker thread."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import prometheus_client.openmetrics.exposition as openmetrics
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from delayserver.metrics.server_families import Reply, server_families

OPENMETRICS: Final = "application/openmetrics-text"


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
        return openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST
    return generate_latest(registry), CONTENT_TYPE_PLAIN_0_0_4
