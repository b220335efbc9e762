"""The gateway's count of requests, beside the library's own counters."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Histogram

from delayserver.metrics.http_figures import OTHER, PREFIX, SECONDS, HttpFigures

REQUESTS = [
    ("POST", "/v1/messages", 201, 0.0005),
    ("POST", "/v1/messages", 201, 0.001),
    ("POST", "/v1/messages", 400, 0.0011),
    ("GET", "/v1/live", 200, 3600.0),
    ("POST", "/v1/messages", 201, 60.0),
]


def samples(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The values of requests by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name.startswith(f"{PREFIX}request")
    }


def test_requests_are_counted_as_the_library_counts() -> None:
    figures, registry = HttpFigures(), CollectorRegistry()
    requests = Counter(f"{PREFIX}requests", ".", ("method", "route", "status"), registry=registry)
    seconds = Histogram(
        f"{PREFIX}request_duration_seconds", ".", ("method", "route"), buckets=SECONDS, registry=registry
    )
    for method, route, status, took_s in REQUESTS:
        figures.begin()
        figures.end(method, route, status, took_s)
        requests.labels(method, route, str(status)).inc()
        seconds.labels(method, route).observe(took_s)
    figures.begin()
    expected = samples(registry)
    expected[f"{PREFIX}requests_in_flight", frozenset()] = 1
    assert samples(figures.registry) == expected


def test_unknown_methods_share_one_label() -> None:
    figures = HttpFigures()
    for number in range(3):
        figures.begin()
        figures.end(f"BREW{number}", OTHER, 405, 0.0)
    labels = frozenset({("method", OTHER), ("route", OTHER), ("status", "405")})
    assert samples(figures.registry)[f"{PREFIX}requests_total", labels] == 3
