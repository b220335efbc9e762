"""A real Prometheus scrapes a real server: every query of the dashboard and every rule finds data there."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from delayserver.client import Client
from ops.deploy import dashboard
from tests.delayserver.web.web_server import Web, serve
from tests.ports import free_port

FILES = Path(__file__).parents[3] / "ops" / "deploy" / "prometheus"
SECONDS_MAX = 90

pytestmark = pytest.mark.skipif(
    shutil.which("prometheus") is None, reason="needs prometheus (Debian package of this name)"
)

# Metrics and panels without data on a server that is well, with the reason.
MAY_BE_EMPTY = {
    "delayserver_oldest_incomplete_window_timestamp_seconds": "all messages have their outcome",
    "delayserver_next_due_timestamp_seconds": "no message in memory is due later",
    "ALERTS": "no alert fires",
    **{
        figure.metric: "it is no member of a cluster"
        for _, figure, labels in dashboard.FIGURES.values()
        if "shard" in labels
    },
}
# Metrics without a sample when nothing is wrong or nothing waits; the panels that show only them are empty then.
EMPTY_PANELS = {
    "Refused requests": "nothing was refused",
}


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A running Prometheus."""

    address: str

    def ask(self, path: str, **parameters: str) -> Any:
        """The data of an answer of its API."""
        url = f"http://{self.address}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            document = json.load(answer)
        assert document["status"] == "success", document
        return document["data"]

    def query(self, expr: str) -> list[dict[str, Any]]:
        """The series of an expression, as of now."""
        found: list[dict[str, Any]] = self.ask("query", query=expr)["result"]
        return found


def until(what: str, found: Callable[[], bool]) -> None:
    """Asks again and again until it is found."""
    deadline_s = time.monotonic() + SECONDS_MAX
    while time.monotonic() < deadline_s:
        try:
            if found():
                return
        except OSError:
            pass
        time.sleep(0.2)
    pytest.fail(f"after {SECONDS_MAX} s still waiting for {what}")


def ends(process: subprocess.Popen[bytes], log: Path) -> bool:
    """False while the process runs; fails the test when it has ended."""
    assert process.poll() is None, log.read_text()
    return False


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    running = serve("--data-dir", str(tmp_path_factory.mktemp("server") / "data"))
    try:
        yield running
    finally:
        running.process.send_signal(signal.SIGTERM)
        running.process.communicate(timeout=SECONDS_MAX)


def send_and_pull(web: Web, names: range, backups: Path) -> None:
    """Some of everything: sends, deliveries, pulls, acks, a cancel, a copy, requests of HTTP, a backup."""
    with Client(web.address) as client:
        for number in names:
            client.send(f"orders.{number % 3}", b"x", delay_ms=0, message_id=f"m-{number}")
            later = client.send("later", b"x", delay_ms=3_600_000)
            if number % 2:
                client.cancel(later.receipt)
            deliveries = client.pull(f"orders.{number % 3}", "shop", wait_s=1)
            if deliveries and number < names.stop - 3:  # some stay with their consumer
                client.ack(f"orders.{number % 3}", "shop", deliveries)
    assert web.ask("GET", "/v1/status").status == 200
    backup = ["-m", "delayserver", "backup", "--server", web.address, "--to", str(backups)]
    subprocess.run([sys.executable, *backup], check=True, capture_output=True, timeout=SECONDS_MAX)


@pytest.fixture(scope="module")
def prometheus(server: Web, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Scrapes the server every 500 ms, with our rules. It is handed out when the rules had data twice."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((FILES / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "500ms", "evaluation_interval": "500ms", "scrape_timeout": "500ms"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"{server.host}:{server.port}"]}]
    for name in config["rule_files"]:
        shutil.copy(FILES / name, folder / name)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    address = f"127.0.0.1:{free_port()}"
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address={address}", "--log.level=warn",
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
    found = Prometheus(address)
    try:
        until("the first scrape", lambda: ends(process, folder / "log") or bool(found.query("delayserver_up == 1")))
        send_and_pull(server, range(30), folder / "backups")
        late = "instance_group:delayserver_lateness_seconds:p99_5m >= 0"
        until("the rules", lambda: bool(found.query(late)))
        yield found
    finally:
        process.terminate()
        process.wait(timeout=SECONDS_MAX)


def test_the_server_is_scraped_as_the_example_says(prometheus: Prometheus) -> None:
    def is_up() -> bool:  # a scrape that a busy machine delays fails, and takes all series away until the next one
        (target,) = prometheus.ask("targets")["activeTargets"]
        return (target["health"], target["lastError"], target["labels"]["job"]) == ("up", "", "delayserver")

    until("a scrape without a fault", is_up)


def test_the_balance_adds_up_in_prometheus(prometheus: Prometheus) -> None:
    until(
        "the balance of 60 messages",
        lambda: (
            [each["value"][1] for each in prometheus.query("delayserver_messages_accepted_total")] == ["60"]
            and [
                each["value"][1]
                for each in prometheus.query(
                    "sum(delayserver_messages_ended_total) + sum(delayserver_messages_pending)"
                )
            ]
            == ["60"]
        ),
    )
    until(
        "no message that was early",
        lambda: [each["value"][1] for each in prometheus.query("delayserver_early_total")] == ["0"],
    )


@pytest.mark.parametrize("name", ["alerts.yml", "records.yml"])
def test_each_rule_is_evaluated_and_each_metric_in_it_exists(prometheus: Prometheus, name: str) -> None:
    def health(rule: dict[str, str]) -> tuple[str, str] | None:
        for found in [each for group in prometheus.ask("rules")["groups"] for each in group["rules"]]:
            if found["name"] == rule.get("alert", rule.get("record")):
                return found["health"], found.get("lastError", "")
        return None

    for rule in [rule for group in yaml.safe_load((FILES / name).read_text())["groups"] for rule in group["rules"]]:
        until(f"an evaluation of {rule}", lambda rule=rule: health(rule) == ("ok", ""))  # type: ignore[misc]
        assert_metrics_exist(prometheus, rule["expr"])
        if "record" in rule:
            until(f"data of {rule}", lambda rule=rule: bool(prometheus.query(rule["expr"])))  # type: ignore[misc]


def assert_metrics_exist(prometheus: Prometheus, expr: str) -> None:
    """Each metric of an expression has series, or a reason to have none."""
    names = set(re.findall(r"\b(?:instance\w*:)?delayserver_\w+(?::\w+)?|\bALERTS\b", re.sub(r'"[^"]*"', "", expr)))
    assert names or expr.startswith("up"), expr
    for each in names - set(MAY_BE_EMPTY):  # a recording rule has a series from its first evaluation on
        until(f"{each} of {expr}", lambda each=each: bool(prometheus.query(f"count({each})")))  # type: ignore[misc]


def shown(expr: str) -> str:
    """The expression as Grafana sends it."""
    for name, value in {
        "$job": ".*",
        "$instance": ".*",
        "$broker_group": ".*",
        "$__rate_interval": "1m",
        "$__range": "5m",
    }.items():
        expr = expr.replace(name, value)
    assert "$" not in expr
    return expr


PANELS = [panel for panel in dashboard.dashboard()["panels"] if panel["type"] != "row"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: str(panel["title"]))
def test_each_query_of_each_panel_finds_data(prometheus: Prometheus, panel: dict[str, Any]) -> None:
    for target in panel["targets"]:
        expr = shown(target["expr"])
        assert_metrics_exist(prometheus, expr)
        if panel["title"] not in EMPTY_PANELS and not any(name in expr for name in MAY_BE_EMPTY):
            until(f"data of {expr}", lambda expr=expr: bool(prometheus.query(expr)))  # type: ignore[misc]


def test_the_queries_of_variables_and_annotations_are_valid(prometheus: Prometheus) -> None:
    made = dashboard.dashboard()
    for variable in made["templating"]["list"][1:]:
        (expr,) = re.findall(r"label_values\((.+), \w+\)", variable["definition"])
        until(variable["name"], lambda expr=expr: bool(prometheus.query(shown(expr))))  # type: ignore[misc]
    for annotation in made["annotations"]["list"]:
        prometheus.query(shown(annotation["expr"]))


def test_prometheus_is_answered_in_openmetrics(server: Web, prometheus: Prometheus) -> None:
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    answer = server.ask("GET", "/metrics", headers={"accept": accept})
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.endswith(b"# EOF\n")
    plain = server.ask("GET", "/metrics")
    assert plain.headers["content-type"].startswith("text/plain; version=0.0.4")
