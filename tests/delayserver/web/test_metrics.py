"""`GET /metrics` of a real gateway: of a server that serves, and of one that is not there."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from prometheus_client.parser import text_string_to_metric_families

from delayserver.client import Client
from tests.delayserver.web.web_server import ROOT, SECONDS_MAX, Web
from tests.forked import Program


def scraped(web: Web) -> dict[str, float]:
    """The samples without labels, and those of HTTP requests as `method route status`."""
    found = {}
    for family in text_string_to_metric_families(web.ask("GET", "/metrics").body.decode()):
        for sample in family.samples:
            if not sample.labels:
                found[sample.name] = sample.value
            elif sample.name == "delayserver_http_requests_total":
                found[" ".join(sample.labels[name] for name in ("method", "route", "status"))] = sample.value
    return found


def test_the_figures_of_the_server_and_of_the_gateway_come_in_one_answer(web: Web) -> None:
    before = scraped(web).get("delayserver_messages_accepted_total", 0)
    with Client(web.address) as client:
        client.send("metrics", b"x", delay_ms=3_600_000)
    found: dict[str, float] = {}
    while found.get("delayserver_messages_accepted_total", 0) == before:  # the same bytes for a quarter of a second
        found = scraped(web)
    assert found["delayserver_up"] == found["delayserver_ready"] == 1
    assert found["delayserver_http_requests_in_flight"] == 1, "the scrape itself"
    assert found["delayserver_http_process_resident_memory_bytes"] > 1 << 20
    assert found["delayserver_server_process_resident_memory_bytes"] > 1 << 20


def test_requests_are_counted_by_their_route_and_no_client_makes_new_labels(web: Web) -> None:
    web.ask("POST", "/v1/messages", {"subject": "a", "body": "b", "delay_ms": 3_600_000})
    web.ask("GET", "/v1/messages/nonsense")
    for number in range(20):
        web.ask("GET", f"/no/such/path/{number}")
        web.ask(f"BREW{number}", "/v1/status")
    found: dict[str, float] = {}
    while found.get("GET other 404", 0) < 20:
        found = scraped(web)
    assert found["POST /v1/messages 201"] >= 1
    assert any(name.startswith("GET /v1/messages/{receipt} 4") for name in found)
    assert not any("nonsense" in name or "BREW" in name for name in found)


def test_many_scrapes_at_once_cost_a_few(web: Web) -> None:
    with ThreadPoolExecutor(16) as threads:
        bodies = list(threads.map(lambda _: web.ask("GET", "/metrics").body, range(64)))
    assert len(set(bodies)) < 64


@pytest.mark.parametrize(
    "accept",
    ["application/openmetrics-text; version=abc", "*/*", "text/html;q=nonsense", "application/openmetrics-text"],
)
def test_any_accept_header_gets_a_format(web: Web, accept: str) -> None:
    answer = web.ask("GET", "/metrics", headers={"accept": accept})
    openmetrics = "openmetrics" in accept
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("application/openmetrics-text" if openmetrics else "text/plain")
    assert answer.body.endswith(b"# EOF\n") == openmetrics


@pytest.mark.skipif(shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)")
def test_promtool_finds_nothing_to_say(web: Web) -> None:
    body = web.ask("GET", "/metrics").body
    done = subprocess.run(["promtool", "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout.decode() + done.stderr.decode()) == (0, "")


@pytest.fixture
def alone() -> Iterator[Web]:
    """A gateway whose server is not there."""
    command = ["http", "--server", "127.0.0.1:1", "--port", "0", "--json"]
    process = Program(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    ready = json.loads(process.stdout.readline())
    try:
        yield Web(process, ready["host"], ready["http_port"], "127.0.0.1:1")
    finally:
        process.terminate()
        process.communicate(timeout=SECONDS_MAX)


def test_a_gateway_reports_that_its_server_does_not_answer(alone: Web) -> None:
    found = scraped(alone)
    assert found == {"delayserver_up": 0}
