"""The bench end to end on real servers, as small as it goes: the rows' names, the fields of a figure, and that a run
whose result is wrong counts for nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ops.bench import server_process, with_tokens
from ops.bench.command import bench
from ops.bench.consuming import Received, verify
from ops.bench.figures import Options, Run, WrongResult, median_details
from ops.bench.peer import HarnessMissing, load_harness
from ops.bench.pushing import Handled, latencies
from ops.bench.report import markdown, table_line
from ops.bench.rows import ROWS, Row
from tests.forked import forking

ROOT = Path(__file__).parents[3]

NAMES = [
    "ingest-c8b1000",
    "ingest-sustained",
    "backup-beside-ingest",
    "ingest-c1b100",
    "ingest-c1b1",
    "ingest-c8b1",
    "publish-c8b1000",
    "publish-c1b1",
    "ingest-spread",
    "steady-1000",
    "steady-10000",
    "thunder-100k",
    "thunder-1m",
    "pending-10m",
    "restart-10m",
    "cancel",
    "cancel-beside-expiries",
    "isolation",
    "isolation-backlog",
    "fairness",
    "push-10000",
    "subjects-100k",
    "backlog-fairness",
    "idle-pulls",
    "http-c8b1",
    "http-ndjson",
    "http-beside-steady",
    "console-idle",
    "consume-1m",
    "filter-1in100",
    "ordered",
    "metrics-1000",
    "tokens",
    "target-kafka",
    "cluster-c8b1000",
    "cluster-c8b1",
    "cluster-c1b1",
    "cluster-takeover",
    "cluster-switch",
    "cluster-steady-2000",
    "cluster-follow",
    "cluster-bootstrap",
]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ops.bench", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


Records = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Records:
    """Runs the command in this process; what it prints. Its servers are forked."""
    forking(monkeypatch, server_process)
    at_the_end: list[tuple[Any, ...]] = []
    monkeypatch.setattr(server_process, "atexit", SimpleNamespace(register=lambda *call, **_: at_the_end.append(call)))

    def run(*arguments: str) -> list[dict[str, Any]]:
        options = ("--json", "--runs", "1", "--data-dir", str(tmp_path))
        assert bench.main([*arguments, *options], standalone_mode=False) == 0
        for function, *given in at_the_end:
            function(*given)
        return [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return run


def received(numbers: list[int], *, late_us: int = 700) -> Received:
    due_ms = np.full(len(numbers), 1_000_000, np.int64)
    moment_us = due_ms * 1000 + late_us
    return Received(np.array(numbers, np.int64), due_ms, moment_us, moment_us)


def test_the_rows_have_the_names_that_were_agreed() -> None:
    assert [row.name for row in ROWS] == NAMES


def test_two_rows_measure_a_real_server_and_print_one_object_each(records: Records, tmp_path: Path) -> None:
    first, second = records("ingest-c1b1", "cancel", "--seconds", "0.1", "--messages", "800")
    assert (first["row"], first["unit"]) == ("ingest-c1b1", "msg/s")
    assert first["value"] > 0 and first["messages"] > 0 and first["call_p99_ms"] >= first["call_p50_ms"]
    assert (second["row"], second["unit"], second["messages"]) == ("cancel", "msg/s", 800)
    assert second["columns_rate"] > 0
    for record in (first, second):
        assert record["values"] == [record["value"]] and record["runs"] == 1 and type(record["reached"]) is bool
    assert list(tmp_path.iterdir()) == [], "the data directories are removed"


def test_messages_due_in_one_second_all_arrive_and_none_early(records: Records) -> None:
    (record,) = records("thunder-100k", "--messages", "500")
    assert (record["delivered"], record["early"], record["unit"]) == (500, 0, "s")
    assert (
        0 < record["p50_ms"] <= record["p99_ms"] <= record["max_ms"] == pytest.approx(record["value"] * 1000, rel=0.01)
    )


def test_an_unknown_row_is_a_usage_error_that_names_the_rows() -> None:
    done = command("ingest-c9b9")
    assert done.returncode == 2 and "ingest-c8b1000" in done.stderr


@pytest.mark.parametrize(
    ("numbers", "late_us", "said"),
    [
        ([0, 1], 700, "1 of 3 never came"),
        ([0, 1, 2, 2], 700, "1 came twice"),
        ([0, 1, 2, 3], 700, "never sent"),
        ([0, 1, 2], -1, "early"),
    ],
)
def test_a_run_with_a_wrong_result_counts_for_nothing(numbers: list[int], late_us: int, said: str) -> None:
    with pytest.raises(WrongResult, match=said):
        verify(received(numbers, late_us=late_us), 3)


def test_every_message_once_and_on_time_is_right_in_any_order() -> None:
    verify(received([2, 0, 1], late_us=0), 3)


def test_a_figure_is_the_median_of_its_runs_and_so_are_its_details() -> None:
    values = iter([30.0, 10.0, 20.0])

    def measure(_: Options) -> Run:
        value = next(values)
        return Run(value, {"p50_ms": value / 10, "note": f"run {value:g}"})

    figure = Row("steady-1000", "", "ms", 15.0, measure, lower=True).figure(Options())
    assert (figure.value, figure.values) == (20.0, (30.0, 10.0, 20.0))
    assert figure.details == {"p50_ms": 2.0, "note": "run 20"}
    assert not figure.reached
    assert "below" in table_line(figure)
    page = markdown([figure], "a machine", "python -m ops.bench")
    assert "| `steady-1000` |" in page and "**20 ms**" in page and "**no**" in page and "a machine" in page


def test_a_floor_of_a_detail_counts_as_well() -> None:
    row = Row("steady-1000", "", "ms", 6.0, lambda _: Run(5.0, {"p50_ms": 2.0}), True, (("p50_ms", 1.5),))
    assert not row.figure(Options(runs=1)).reached


def test_a_detail_that_one_run_lacks_is_the_median_of_the_others() -> None:
    assert median_details([Run(1, {}), Run(1, {"x": 1.0}), Run(1, {"x": 3.0})]) == {"x": 2.0}


def test_a_missing_harness_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PEERS_HARNESS", raising=False)
    with pytest.raises(HarnessMissing, match="PEERS_HARNESS"):
        load_harness(None)
    with pytest.raises(HarnessMissing, match="no harness"):
        load_harness(str(tmp_path))


def test_comparing_says_where_the_harness_is_to_come_from_or_what_to_install(tmp_path: Path) -> None:
    done = command("compare", "--harness", str(tmp_path), "--peers", "beanstalkd", "--data-dir", str(tmp_path))
    assert done.returncode == 1
    assert "common.py" in done.stderr or "apt-get install beanstalkd" in done.stderr


def test_messages_are_pushed_to_a_handler_each_once(records: Records) -> None:
    (record,) = records("push-10000", "--seconds", "0.05")
    assert (record["row"], record["unit"], record["handled"]) == ("push-10000", "ms", 500)
    assert 0 < record["p50_ms"] <= record["p99_ms"] <= record["max_ms"]
    assert record["value"] == record["p99_ms"] and record["dispatched_p99_ms"] > 0


@pytest.mark.parametrize("numbers", [[0, 1], [0, 1, 1, 2], [0, 1, 2, 3]])
def test_a_push_that_loses_or_repeats_a_message_counts_for_nothing(numbers: list[int]) -> None:
    column = np.array(numbers, np.int64)
    with pytest.raises(WrongResult):
        latencies(Handled(column, column, column + 5, column + 2, 0.1), 3)


def test_a_backlog_on_a_slow_disk_is_read_beside_a_client_of_fresh_messages(records: Records) -> None:
    (record,) = records("backlog-fairness", "--seconds", "1", "--messages", "20000")
    assert (record["row"], record["unit"]) == ("backlog-fairness", "ratio")
    assert record["backlog_pulls"] > 0


def test_a_warm_backlog_is_consumed_whole(records: Records) -> None:
    (record,) = records("consume-1m", "--messages", "3000")
    assert (record["row"], record["messages"]) == ("consume-1m", 3000)


def test_tokens_are_measured_against_a_server_without(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(with_tokens, "PAIRS", 2)  # each server comes first once
    (record,) = records("tokens", "--seconds", "0.02", "--messages", "1000")
    assert record["row"] == "tokens"
    assert min(record[f"{shape}_ratio"] for shape in ("c1b1", "c8b1", "c8b1000", "deliver")) == record["value"] > 0
