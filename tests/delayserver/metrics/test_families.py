"""The figures of the server in the formats of Prometheus: names, units, bounds, and what promtool says of them."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest as library_text
from prometheus_client.openmetrics.exposition import generate_latest as library_openmetrics
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from delayserver.metrics.exposition import OPENMETRICS, Scraped, exposition
from delayserver.metrics.http_figures import HttpFigures
from delayserver.metrics.server_families import ROWS_MAX
from tests.delayserver.metrics.replies import reply


def samples(of: dict[str, Any] | None) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """All samples of a scrape, by name and labels."""
    body, _ = exposition(of, CollectorRegistry(), "")
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(body.decode())
        for sample in family.samples
    }


def test_times_are_seconds_and_counts_are_counters() -> None:
    found = samples(reply())
    for name, value in {
        "delayserver_up": 1,
        "delayserver_ready": 1,
        "delayserver_messages_accepted_total": 105,
        "delayserver_messages_pending": 5,
        "delayserver_clock_timestamp_seconds": 1_795_562_512.164514,
        "delayserver_clock_step_last_seconds": -0.25,
        "delayserver_event_loop_longest_stall_seconds": 0.012,
        "delayserver_commit_longest_seconds": 0.011072,
        "delayserver_next_due_timestamp_seconds": 1_795_562_520.5,
        "delayserver_disk_low": 0,
        "delayserver_corruptions": 1,
    }.items():
        assert found[name, ()] == pytest.approx(value), name


def test_the_balance_adds_up() -> None:
    found = samples(reply())
    ended = sum(value for (name, _), value in found.items() if name == "delayserver_messages_ended_total")
    assert ended + found["delayserver_messages_pending", ()] == found["delayserver_messages_accepted_total", ()]


def test_the_lateness_of_a_broker_group_is_a_histogram_from_half_a_millisecond_to_an_hour() -> None:
    found = samples(reply())
    group = ("broker_group", "default")
    buckets = {
        float(dict(labels)["le"]): value
        for (name, labels), value in found.items()
        if name == "delayserver_lateness_seconds_bucket" and group in labels
    }
    assert sorted(buckets)[0] == 0.0005 and sorted(buckets)[-1] == math.inf
    assert [buckets[bound] for bound in sorted(buckets)] == [40, 70, 85, *[90] * 21]
    assert found["delayserver_lateness_seconds_count", (group,)] == 90
    assert found["delayserver_lateness_seconds_sum", (group,)] == pytest.approx(0.123456)
    assert found["delayserver_early_total", (group,)] == 0


def test_a_node_that_counts_as_down_has_an_open_circuit() -> None:
    found = samples(reply())
    labels = (("broker_group", "default"), ("node", "10.0.0.1:1"))
    assert found["delayserver_node_circuit_open", labels] == 1
    assert found["delayserver_node_failures_total", labels] == 9


def test_a_queue_stands_beside_its_bound() -> None:
    found = samples(reply())
    of_all, of_group = (
        (("broker_group", ""), ("queue", "gathered_bytes")),
        (("broker_group", "default"), ("queue", "group_rows")),
    )
    assert (found["delayserver_queue_used", of_all], found["delayserver_queue_bound", of_all]) == (3, 64)
    assert (found["delayserver_queue_used", of_group], found["delayserver_queue_bound", of_group]) == (0, 8)


def test_an_error_that_never_came_is_counted_as_zero() -> None:
    found = samples(reply())
    assert found["delayserver_errors_total", (("error", "queue_full"),)] == 2
    assert found["delayserver_errors_total", (("error", "internal_error"),)] == 0


def test_absent_values_have_no_sample() -> None:
    names = {name for name, _ in samples(reply())}
    assert "delayserver_oldest_incomplete_window_timestamp_seconds" not in names
    assert "delayserver_consumer_group_oldest_due_timestamp_seconds" not in names


def test_a_server_that_sends_only_its_status_can_be_scraped() -> None:
    whole = reply()
    for field in ("lateness", "stages", "subjects", "consumer_groups", "queues"):
        del whole[field]
    assert samples(whole)["delayserver_messages_accepted_total", ()] == 105


def test_the_pending_messages_of_no_subject_are_declared() -> None:
    body, _ = exposition(reply(subjects=0), CollectorRegistry(), "")
    lines = [line for line in body.decode().splitlines() if "delayserver_subject_pending" in line]
    assert lines == [
        "# HELP delayserver_subject_pending Pending messages of a subject.",
        "# TYPE delayserver_subject_pending gauge",
    ]


def test_a_server_that_does_not_answer_is_down() -> None:
    assert samples(None) == {("delayserver_up", ()): 0}


def test_labels_are_bounded_and_the_largest_are_shown() -> None:
    found = samples(reply(subjects=ROWS_MAX + 500))
    pending = {value for (name, _), value in found.items() if name == "delayserver_subject_pending"}
    assert pending == set(range(500, ROWS_MAX + 500))
    assert sum(name == "delayserver_consumer_group_lag" for name, _ in found) == ROWS_MAX
    assert found["delayserver_consumer_groups_not_shown", ()] == 500


@pytest.mark.parametrize("subject", ['quote"', "back\\slash", "line\nbreak", "ä ← 漢", "{}=,"])
def test_any_subject_is_a_label(subject: str) -> None:
    whole = reply() | {"subjects": [{"subject": subject, "pending": 1}]}
    assert samples(whole)["delayserver_subject_pending", (("subject", subject),)] == 1


@pytest.mark.parametrize("pending", [1, 999_999, 1_000_000, 12_345_678, -1_000_000])
@pytest.mark.parametrize(("subject", "group"), [("a", "b"), ("b", "a"), ('a",b="', "\\"), ("line\nbreak", "ä ← 漢")])
def test_each_of_many_scrapes_equals_the_text_of_the_library(subject: str, group: str, pending: int) -> None:
    """Texts are remembered from one scrape to the next: none may come back for other labels or for another number."""
    rows = reply()["consumer_groups"][:1]
    whole = reply() | {
        "subjects": [{"subject": subject, "pending": pending}],
        "consumer_groups": [rows[0] | {"subject": subject, "group": group, "lag": pending, "oldest_ms": pending}],
    }
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scraped(whole))
    assert exposition(whole, CollectorRegistry(), "")[0] == library_text(registry)
    assert exposition(whole, CollectorRegistry(), OPENMETRICS)[0] == library_openmetrics(registry)


@pytest.fixture(scope="module")
def figures() -> HttpFigures:
    made = HttpFigures()
    for method, route, status in (("GET", "/v1/status", 200), ("BREW", "/v1/messages", 405)):
        made.begin()
        made.end(method, route, status, 0.003)
    return made


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text; version=1.0.0; q=0.5, text/plain; q=0.2"])
def test_every_name_begins_with_that_of_the_program(figures: HttpFigures, accept: str) -> None:
    body, content_type = exposition(reply(), figures.registry, accept)
    parse = parse_openmetrics if accept else parse_text
    assert content_type.startswith("application/openmetrics-text" if accept else "text/plain")
    families = list(parse(body.decode()))
    assert len({family.name for family in families}) == len(families) > 80
    assert {family.name for family in families if not re.fullmatch(r"delayserver_[a-z0-9_]+", family.name)} == set()
    assert all(family.documentation for family in families)


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=abc", "text/plain; version=", "application/openmetrics-text;;=", "\xff"],
)
def test_a_strange_header_gets_a_format(accept: str) -> None:
    assert exposition(reply(), CollectorRegistry(), accept)[0]


def test_the_gateway_counts_its_requests_by_route(figures: HttpFigures) -> None:
    body, _ = exposition(None, figures.registry, "")
    assert 'delayserver_http_requests_total{method="other",route="/v1/messages",status="405"} 1.0' in body.decode()
    assert 'delayserver_http_request_duration_seconds_count{method="GET",route="/v1/status"} 1.0' in body.decode()
    assert "delayserver_http_requests_in_flight 0.0" in body.decode()
    assert "delayserver_http_process_resident_memory_bytes" in body.decode()


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")
def test_promtool_finds_nothing_to_say(figures: HttpFigures) -> None:
    body, _ = exposition(reply(), figures.registry, "")
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode() + done.stderr.decode()) == (0, "")
