"""Alerts, recording rules and the dashboard, as promtool and the texts themselves see them."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from ops.deploy import dashboard

ROOT = Path(__file__).parents[3]
FILES = ROOT / "ops" / "deploy" / "prometheus"
RUNBOOK = ROOT / "ops" / "RUNBOOK.md"

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="needs promtool (Debian package prometheus)"
)


def promtool(*arguments: str) -> None:
    """Run it in the folder of the rules; it must find nothing wrong."""
    done = subprocess.run(["promtool", *arguments], cwd=FILES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def rules(name: str) -> list[dict[str, Any]]:
    """The rules of a file."""
    return [rule for group in yaml.safe_load((FILES / name).read_text())["groups"] for rule in group["rules"]]


@needs_promtool
def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    promtool("check", "rules", "alerts.yml", "records.yml")
    promtool("check", "config", "prometheus.yml")


@needs_promtool
def test_each_alert_fires_when_it_must_and_only_then() -> None:
    promtool("test", "rules", "tests.yml")


def of_shard(rule: dict[str, Any]) -> bool:
    """Whether an alert is about a shard of a cluster, whichever of its members has told it."""
    return "$labels.instance" not in str(rule["annotations"])


def test_each_alert_has_a_unit_test_in_which_it_fires_for_the_one_instance_or_shard_that_is_in_trouble() -> None:
    fired = {}
    for case in yaml.safe_load((FILES / "tests.yml").read_text())["tests"]:
        (check,) = case["alert_rule_test"]
        (alert,) = check["exp_alerts"]
        labels = alert["exp_labels"]
        fired[check["alertname"]] = labels.get("instance") or f"shard {labels['shard']}"
        series = str(case["input_series"])
        assert set(re.findall(r'instance="([^"]+)"', series)) >= {"a:1", "b:1"}, check["alertname"]
        if "instance" not in labels:
            assert set(re.findall(r'shard="([^"]+)"', series)) == {"0", "1"}, check["alertname"]
    assert fired == {rule["alert"]: "shard 0" if of_shard(rule) else "a:1" for rule in rules("alerts.yml")}


@pytest.mark.parametrize("rule", rules("alerts.yml"), ids=lambda rule: str(rule["alert"]))
def test_each_alert_says_what_is_wrong_and_has_its_section_in_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    notes = rule["annotations"]
    assert ("{{ $labels.shard }}" if of_shard(rule) else "{{ $labels.instance }}") in notes["summary"] + notes[
        "description"
    ]
    path, _, anchor = notes["runbook_url"].partition("#")
    assert path == "ops/RUNBOOK.md" and anchor == rule["alert"].lower()
    assert f"### {rule['alert']}\n" in RUNBOOK.read_text()


def test_the_runbook_has_no_section_of_an_alert_that_is_gone() -> None:
    sections = re.findall(r"^### (Delayserver\w+)$", RUNBOOK.read_text(), re.M)
    assert sorted(sections) == sorted(rule["alert"] for rule in rules("alerts.yml"))


def test_each_panel_that_a_figure_names_is_in_the_dashboard_and_draws_it() -> None:
    exprs = {
        f"{row}/{panel.title}": {each.expr for each in dashboard.filled(row, panel).queries}
        for row, panels in dashboard.ROWS.items()
        for panel in panels
    }
    for _, figure, _ in dashboard.FIGURES.values():
        if figure.panel:
            assert any(f"{figure.metric}{{" in expr for expr in exprs[figure.panel]), figure


def test_panels_do_not_overlap_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    panels = dashboard.dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and all(0 <= x < dashboard.WIDTH for x, _ in cells), panel["title"]
        taken |= cells
        assert panel["type"] == "row" or panel["description"].endswith("."), panel["title"]


def test_the_dashboard_has_a_row_for_each_part() -> None:
    rows = [panel["title"] for panel in dashboard.dashboard()["panels"] if panel["type"] == "row"]
    assert rows == [
        "Overview",
        "Lateness",
        "Balance",
        "Stages",
        "Queues and memory",
        "Disk",
        "Broker groups",
        "Consumer groups and subjects",
        "Cluster",
        "HTTP and processes",
    ]


def unit_of(expr: str) -> str | None:
    """The unit of an expression, where the name of its metric tells it."""
    if "histogram_quantile(" in expr or re.search(r"_seconds\{", expr):
        return "s"
    if re.search(r"_bytes\{", expr):
        return "bytes"
    return "s" if re.search(r"rate\(\w+_seconds_sum\b", expr) else None


def test_each_query_has_the_unit_of_its_metric() -> None:
    wrong = []
    for panel in dashboard.dashboard()["panels"]:
        if panel["type"] == "row":
            continue
        config = panel["fieldConfig"]
        own = {each["matcher"]["options"]: each["properties"][0]["value"] for each in config["overrides"]}
        for target in panel["targets"]:
            unit = unit_of(target["expr"])
            if unit not in (None, own.get(target["refId"], config["defaults"]["unit"])):
                wrong.append((panel["title"], target["expr"]))
    assert wrong == []
