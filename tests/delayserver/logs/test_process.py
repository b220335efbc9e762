"""The log of a real server process: JSON lines in a pipe, text on a terminal, no body and no secret in either."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import Unauthenticated
from tests.forked import without_stalls

ROOT = Path(__file__).parents[3]
SECONDS_MAX = 60


def begin(tmp_path: Path, *arguments: str, **options: Any) -> tuple[subprocess.Popen[bytes], str]:
    """A server on a free port: its process and address."""
    command = [
        sys.executable,
        "-m",
        "delayserver",
        "serve",
        "--data-dir",
        str(tmp_path / "data"),
        "--port",
        "0",
        "--http-port",
        "0",
        "--json",
    ]
    process = subprocess.Popen(
        [*command, *arguments], cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, **options
    )
    assert process.stdout is not None
    with process.stdout:
        ready = json.loads(process.stdout.readline())
    return process, f"{ready['host']}:{ready['port']}"


def end(process: subprocess.Popen[bytes]) -> str:
    """Stops it; what it wrote to stderr."""
    process.send_signal(signal.SIGTERM)
    assert process.stderr is not None
    with process.stderr:
        err = process.stderr.read()
    assert process.wait(timeout=SECONDS_MAX) == 0
    return err.decode()


def test_a_pipe_gets_one_json_object_a_line_without_bodies_and_secrets(tmp_path: Path) -> None:
    secret, body = "a-secret-of-servers", b"the body of a message"
    config = tmp_path / "server.toml"
    config.write_text(f'[listen]\nserver_secret = "{secret}"\n')
    process, address = begin(
        tmp_path, "--config", str(config), "--log-level", "debug", "--set", "stall_log_ms=1", stderr=subprocess.PIPE
    )
    with Client(address) as client:
        client.send("orders", body, delay_ms=0)
        config.write_text("[[groups]\n")
        process.send_signal(signal.SIGHUP)
        deadline_s = time.monotonic() + SECONDS_MAX
        while not client.pull("orders", "g", wait_s=1) and time.monotonic() < deadline_s:
            pass
    assert process.stderr is not None
    text = ""
    while "reload_refused" not in text:  # a stop would end a reload that has only begun
        line = process.stderr.readline().decode()
        assert line, text
        text += line
    text += end(process)
    events = [json.loads(line)["event"] for line in without_stalls(text).splitlines()]
    assert {"ready", "reload_refused", "stopping", "stopped"} <= set(events)
    assert events[-1] == "stopped"
    assert secret not in text and body.decode() not in text


def test_a_terminal_gets_text(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    try:
        process, _ = begin(tmp_path, "--log-level", "info", stderr=theirs)
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=SECONDS_MAX) == 0
        shown = ""
        while "stopped" not in shown:  # a terminal gives what it has, piece by piece
            assert select.select([ours], [], [], SECONDS_MAX)[0], shown
            shown += os.read(ours, 65_536).decode()
    finally:
        os.close(ours)
        os.close(theirs)
    assert "ready on 127.0.0.1 port" in shown and "[ready role=server]" in shown
    assert "INFO    stopped" in shown


@pytest.mark.parametrize(("format", "first"), [("text", "20"), ("json", "{")])
def test_the_format_may_be_chosen(tmp_path: Path, format: str, first: str) -> None:
    process, _ = begin(tmp_path, "--log-format", format, "--log-level", "info", stderr=subprocess.PIPE)
    assert {line[: len(first)] for line in end(process).splitlines()} == {first}


def test_a_start_that_works_logs_nothing_by_default(tmp_path: Path) -> None:
    process, _ = begin(tmp_path, stderr=subprocess.PIPE)
    assert without_stalls(end(process)) == ""


def test_an_error_that_nothing_catches_is_a_json_line() -> None:
    program = "from delayserver.logs.setup import set_up; set_up(); raise KeyError('nowhere')"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert json.loads(line)["event"] == "crashed" and "KeyError" in json.loads(line)["traceback"]


def test_the_audit_file_has_each_act_and_each_refused_token_at_any_level(tmp_path: Path) -> None:
    path, moved = tmp_path / "audit.log", tmp_path / "audit.log.1"
    process, address = begin(tmp_path, "--set", f"log.audit_file={path}", stderr=subprocess.PIPE)
    with Client(address) as client:
        client.set_policy("orders", "g", attempts=3)
        made = client.token(["admin"])
    process.send_signal(signal.SIGHUP)
    with pytest.raises(Unauthenticated), Client(address, token=made.text[:-4] + "aaaa") as client:
        client.status()
    deadline_s = time.monotonic() + SECONDS_MAX
    while path.read_text().count("\n") < 4 and time.monotonic() < deadline_s:
        time.sleep(0.01)
    path.rename(moved)
    with Client(address, token=made.text) as client:
        client.set_policy("orders", "g", reset=True)
    assert "administrative_act" not in end(process)
    assert stat.S_IMODE(moved.stat().st_mode) == 0o600
    lines = [json.loads(line) for file in (moved, path) for line in file.read_text().splitlines()]
    acts = [(line["operation"], line["who"], line["result"]) for line in lines if line["event"] == "administrative_act"]
    assert sorted(acts[:3]) == [
        ("policy", "no token", "done"),
        ("reload", "the operator of the process", "done"),
        ("token", "no token", "done"),
    ]
    assert acts[3:] == [("policy", f"token {made.token.id}", "done")]
    assert [line["event"] for line in lines].count("token_refused") == 1
    assert made.text not in moved.read_text()


def test_an_audit_file_that_cannot_be_written_stops_the_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "delayserver", "serve", "--data-dir", str(tmp_path / "data")]
    command += ["--set", f"log.audit_file={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"cannot write log.audit_file {tmp_path}: Is a directory" in done.stderr
