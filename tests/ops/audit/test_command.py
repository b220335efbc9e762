"""`delayserver report` before Spark: one line names what is missing, and nothing is begun that cannot end."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from ops.audit.bench_data import write_directory
from ops.audit.boundaries import cut_points
from ops.audit.command import report
from ops.audit.failures import reason_of
from store.disk.filesystem import RealFileSystem

ROOT = Path(__file__).parents[3]


def _run(*arguments: str) -> tuple[int, list[str]]:
    result = CliRunner().invoke(report, arguments)
    return result.exit_code, result.output.strip().splitlines()


def test_the_help_says_what_each_report_is_in_a_whole_line() -> None:
    _, lines = _run("--help")
    summaries = [line for line in lines if line.startswith(("  completeness ", "  latency "))]
    assert len(summaries) == 2 and all(line.endswith(".") and not line.endswith("...") for line in summaries)


def test_without_java_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    code, lines = _run("completeness", str(tmp_path), "--master", "local[1]")
    assert code == 1
    assert len(lines) == 1 and "Java 17 or newer" in lines[0] and "apt install openjdk-17" in lines[0]


def test_reports_over_small_logs_need_no_java(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written = write_directory(RealFileSystem(), str(tmp_path / "data"), 1000, bodies=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    out = tmp_path / "report.json"
    code, lines = _run("latency", written.path, "--out", str(out))
    assert code == 0, lines
    figures = json.loads(out.read_text())
    assert sum(figures["outcomes"].values()) == 1000
    assert [row["subject"] for row in figures["by"]] == sorted(written.subjects)
    assert not [line for line in lines if "Spark" in line]
    table = tmp_path / "report.parquet"
    assert _run("latency", written.path, "--out", str(table))[0] == 0
    rows = pq.read_table(table).to_pylist()
    assert [(row["subject"], row["count"]) for row in rows] == [(row["subject"], row["count"]) for row in figures["by"]]
    assert _run("completeness", written.path, "--json")[0] == 1, "only dispatch_log is there"
    code, lines = _run("latency", written.path, "--master", "local[1]")
    assert (code, "Java 17 or newer" in lines[-1]) == (1, True)


def test_on_a_terminal_a_small_report_has_one_bar_and_no_other_lines(tmp_path: Path) -> None:
    written = write_directory(RealFileSystem(), str(tmp_path / "data"), 1000, bodies=False)
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "delayserver", "report", "latency", written.path]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=theirs)
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # the end of a terminal
        while data := os.read(ours, 65_536):
            shown += data
    os.close(ours)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0, shown
    assert out.startswith(b"delivered ")
    lines = [line for line in shown.replace(b"\r", b"\n").split(b"\n") if re.search(rb"[A-Za-z]{3}", line)]
    assert lines and all(b"\xe2\x94\x81" in line for line in lines), lines


def test_an_old_java_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_402\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    code, lines = _run("completeness", str(tmp_path), "--master", "local[1]")
    assert code == 1
    assert len(lines) == 1 and f"{java} is Java 8" in lines[0]


def test_without_the_extra_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text("#!/bin/sh\necho 'openjdk version \"21.0.2\"' >&2\n")
    java.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, lines = _run("latency", str(tmp_path))
    assert code == 1
    assert lines[-1].endswith("not installed: pip install --use-pep517 '.[audit]'")


@pytest.mark.parametrize(
    ("arguments", "code", "reason"),
    [
        (["--out", "/nowhere/report.html"], 1, "there is no directory /nowhere"),
        (["--out", "report.pdf"], 2, "must end in .html, .json or .parquet"),
        (["--by", "colour"], 2, "it takes subject, broker_group"),
        (["--slo", "fast"], 2, "is no duration"),
        (["--from", "2026-01-02T00:00Z", "--to", "2026-01-01T00:00Z"], 2, "--from must lie before --to"),
    ],
)
def test_bad_arguments_are_refused_before_spark_starts(arguments: list[str], code: int, reason: str) -> None:
    found, lines = _run("latency", "data", *arguments)
    assert found == code
    assert reason in lines[-1]


def test_the_reason_is_found_among_the_traces_of_spark() -> None:
    text = "Job aborted\n  File x\nstore.errors.FormatError: /d/x.log: version 9; upgrade\n\tat org.apache.spark"
    assert reason_of(text) == "/d/x.log: version 9; upgrade"
    assert "SPARK_DRIVER_MEMORY" in str(reason_of("java.lang.OutOfMemoryError: Java heap space"))
    assert reason_of("something else") is None


def test_a_body_that_looks_like_a_record_is_no_boundary(tmp_path: Path) -> None:
    path = tmp_path / "data.log"
    path.write_bytes(bytes(64) + b"DREC" * 100)
    file = RealFileSystem().open(str(path), write=False)
    assert cut_points(file, 64, 464, 8).offsets == ()
    file.close()


def test_executors_find_the_packages_in_a_zip_that_lists_its_directories(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    for name in ("delayserver", "store", "wheel", "ops"):
        shutil.copytree(ROOT / name, packages / name, ignore=shutil.ignore_patterns("__pycache__"))
    archive = shutil.make_archive(str(tmp_path / "delayserver"), "zip", packages)
    code = "import ops.audit.part_reader, ops.audit.capture; print(ops.audit.part_reader.__file__)"
    environment = {**os.environ, "PYTHONPATH": archive}
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.stdout.startswith(archive), found.stderr
