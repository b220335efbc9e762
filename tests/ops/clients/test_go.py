"""The Go client: its own tests, on the vectors and against servers of the environment that runs this."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[3] / "ops" / "clients" / "go"
COMMAND = Path(sys.executable).parent / "delayserver"
TIMEOUT_S = 600


@pytest.fixture(scope="module")
def go() -> str:
    """The path of `go`, with the modules of the client at hand."""
    program = shutil.which("go")
    if program is None:
        if os.environ.get("CI", "").lower() in ("1", "true", "yes"):
            pytest.fail("go is missing: install Debian's golang-go, as .ci/run does")
        pytest.skip("go is missing: the tests of the Go client need Go 1.19 or newer")
    run(program, "mod", "download")
    return program


def done(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=CLIENT,
        env={**os.environ, "DELAYSERVER": str(COMMAND)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


def run(*command: str) -> str:
    ended = done(*command)
    assert ended.returncode == 0, f"{command} ended with {ended.returncode}\n{ended.stdout}"
    return ended.stdout


def race_detector(program: str) -> list[str]:
    """Its flag, where a small test runs with it: it needs a C compiler, and a runtime that fits the kernel."""
    return (
        ["-race"] if done(program, "test", "-race", "-run", "^TestReceiptsAndDerivedIDs$", ".").returncode == 0 else []
    )


def test_go_vet_finds_nothing(go: str) -> None:
    run(go, "vet", "./...")


def test_the_go_client_passes_its_tests_and_leaves_none_out(go: str) -> None:
    output = run(go, "test", *race_detector(go), "-count=1", "-v", "./...")
    assert "--- SKIP" not in output
    assert re.search(r"^--- PASS: TestAgainstAServer\b", output, re.MULTILINE)
