"""Every example of README and docs/ runs as it stands, in a terminal of its own, against real servers."""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.docs.documents import DOCUMENTS, ROOT, Reader
from tests.docs.shapes import match
from tests.docs.terminal import StepFailed, Terminal

if os.environ.get("CI", "").lower() not in ("1", "true", "yes"):
    for package in ("sybil", "fastapi", "django", "celery"):
        pytest.importorskip(package, reason="install the extra docs-test")


def as_parameter(path: Path) -> Any:
    """A document with its name, and with the marker of what its examples need."""
    text = path.read_text()
    marks = [pytest.mark.spark] if "pyspark" in text else []
    if "$ delayserver report" in text and importlib.util.find_spec("pyspark") is None:
        marks.append(pytest.mark.skip("install the extra audit"))
    return pytest.param(path, id=path.relative_to(ROOT).as_posix(), marks=marks)


# Modules of the core install and of this project, and files that the documents themselves save.
_THERE = {"delayserver", "ops", "trio", "numpy", "anyio"} | {"app", "later", "orders", "shop", "tasks"}
_EXTRAS = {"pyspark": "audit"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=[path.relative_to(ROOT).as_posix() for path in DOCUMENTS])
def test_a_document_installs_what_its_programs_import(path: Path) -> None:
    text = path.read_text()
    imported = {found[1] for found in re.finditer(r"^(?:from|import) (\w+)", text, re.MULTILINE)}
    installed = " ".join(re.findall(r"pip install [^`\n]*", text))
    for module in sorted(imported - _THERE - sys.stdlib_module_names):
        assert re.search(rf"\b{_EXTRAS.get(module, module)}\b", installed), f"no `pip install` of {module}"


@pytest.mark.parametrize("path", [as_parameter(path) for path in DOCUMENTS])
def test_the_examples_run(path: Path, tmp_path: Path) -> None:
    with Terminal(tmp_path) as terminal:
        Reader(terminal).read(path)


@pytest.mark.parametrize(
    "document",
    [
        "```sh\nfalse\n```",
        "```sh\necho a\n```\n\n```output\nb\n```",
        "```console\n$ echo a\nb\n```",
        "```python\nassert 1 == 2\n```",
        '```python title="a.py"\nraise SystemExit(3)\n```\n\n```sh\npython a.py\n```',
        "<!--- hidden: python\nassert False\n-->",
        "```toml\na = \n```",
        "```cobol\nSTOP RUN.\n```",
        "```sh\ndelayserver send orders hello\n```",
    ],
)
def test_an_example_that_does_not_do_what_it_says_is_found(
    document: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.docs.documents.STEP_SECONDS_MAX", 1)
    path = tmp_path / "document.md"
    path.write_text(document)
    monkeypatch.setattr("tests.docs.documents.ROOT", tmp_path)
    with Terminal(tmp_path) as terminal, pytest.raises((StepFailed, ValueError)):
        Reader(terminal).read(path)


def test_a_line_of_a_program_goes_out_whole(tmp_path: Path) -> None:
    # Each write is a datagram of its own.
    (tmp_path / "writes.py").write_text(
        "import socket, subprocess, sys\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
        'code = \'print("orders", "order 7", 1); print(2, 3)\'\n'
        "subprocess.run([sys.executable, '-c', code], stdout=theirs)\n"
        "print(ours.recv(100), ours.recv(100))\n"
    )
    with Terminal(tmp_path) as terminal:
        assert terminal.run("python writes.py").strip() == r"b'orders order 7 1\n' b'2 3\n'"


def test_ids_of_the_run_stand_for_those_of_the_document() -> None:
    shown = "receipt  c5761dc4cc26-01a1fd976b11-000000000001\n..."
    actual = "a log line\nreceipt  f5761dc4cc26-02a1fd976b11-000000000009\n"
    assert match(shown, actual) == {"c5761dc4cc26-01a1fd976b11-000000000001": "f5761dc4cc26-02a1fd976b11-000000000009"}


@pytest.mark.parametrize(
    ("shown", "actual"),
    [("accepted 3", "accepted 4"), ("outcome delivered", "outcome cancelled"), ("a\nb", "b\na"), ("id 1", "id 1 2")],
)
def test_counts_and_words_must_be_equal(shown: str, actual: str) -> None:
    assert isinstance(match(shown, actual), str)


@pytest.mark.parametrize("actual", ["late by 3 ms", "late by 0.127 ms", "late by 4.3 s", "late by 1 m 2 s"])
def test_measured_durations_may_come_in_other_units(actual: str) -> None:
    assert match("late by 3.874 ms", actual) == {}
    assert isinstance(match("late by 100 ms", actual), str)


def test_what_is_counted_a_moment_later_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "document.md"
    path.write_text("```console\n$ delayserver status\ndelivered 2\n```")
    looks = tmp_path / "looks"
    with Terminal(tmp_path) as terminal:
        (tmp_path / ".bin" / "delayserver").write_text(
            f"#!/bin/sh\necho x >>{looks}\necho delivered $(wc -l <{looks})\n"
        )
        Reader(terminal).read(path)
    assert looks.read_text() == "x\nx\n"
