"""What somebody meets who does not know the commands yet."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import InvalidArgument
from tests.delayserver.cli.conftest import ROOT, Server, run, serving
from tests.delayserver.recover.damaging import append_torn


def test_the_content_of_a_message_does_not_steer_the_terminal(server: Server) -> None:
    with Client(server.address) as client:
        client.send(
            "bin", b"\x1b[31mred\nnext line\x07", delay_ms=0, message_id="i\nd", properties={"a\x1b": "b\x9b\n"}
        )
    done = run("pull", "bin", "--group", "g", "--wait", "20s", "--ack", "--server", server.address)
    assert done.code == 0
    assert "  i\\x0ad\n    a\\x1b=b\\x9b\\x0a\n    \\x1b[31mred\n    next line\\x07\n" in done.out
    assert "\x1b" not in done.out


def run_with_closed(descriptor: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = (
        f"import os, sys; os.close({descriptor}); "
        "os.execv(sys.executable, [sys.executable, '-m', 'delayserver', *sys.argv[1:]])"
    )
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [("send", "s", "-"), ("lookup", "-")])
def test_a_command_that_reads_a_closed_stdin_ends_as_wrong_usage(server: Server, arguments: tuple[str, ...]) -> None:
    done = run_with_closed(0, *arguments, "--server", server.address)
    assert done.returncode == 2
    assert "stdin is closed" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_command_asks_on_a_closed_stdin(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        with Client(running.address) as client:
            client.send("s", b"", delay_ms=60_000)
        running.stop()
    append_torn(running.data_dir / "names.log")
    done = run_with_closed(0, "recover", "repair", str(running.data_dir))
    assert (done.returncode, "say --yes" in done.stderr) == (2, True), done.stderr


def test_a_check_needs_no_stderr(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as running:
        running.stop()
    done = run_with_closed(2, "recover", "check", str(running.data_dir))
    assert done.returncode == 0
    assert "clean" in done.stdout


def test_an_error_names_the_type_of_a_value_that_names_no_message(server: Server) -> None:
    with Client(server.address) as client:
        sent = client.send("s", b"", delay_ms=60_000)
        for wrong in (sent, [sent.receipt]):
            with pytest.raises(InvalidArgument, match=rf"sent\.receipt.*not by {type(wrong).__name__}"):
                client.cancel(wrong)  # type: ignore[arg-type]


def test_a_route_says_since_when_and_where_in_words(server: Server) -> None:
    done = run("route", "s", "--server", server.address)
    group, node = done.out.splitlines()
    assert group == "group default"
    assert re.fullmatch(rf"    {re.escape(server.address)}  weight 1  (unknown|up since 20\S+)  this server", node)


def test_a_wrong_receipt_is_shown_on_one_line(server: Server) -> None:
    for command in ("cancel", "lookup"):
        done = run(command, "x\ncancelled", "--server", server.address)
        assert (done.code, done.err.count("\n")) == (1, 1), done.err


def test_a_data_directory_that_cannot_be_made_was_never_there(tmp_path: Path) -> None:
    done = run("serve", "--data-dir", "/proc/none/data", "--port", "0", "--http-port", "0")
    assert done.code == 1
    assert "cannot make directory" in done.err
    assert "was removed" not in done.err


def test_status_names_a_node_that_does_not_answer(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text(
        '[[groups]]\nname = "east"\n[[groups.nodes]]\naddress = "127.0.0.1:9"\n[[routes]]\ngroups = ["east"]\n'
    )
    with serving(tmp_path / "data", "--config", str(config)) as running:
        with Client(running.address) as client:
            client.send("s", b"", delay_ms=0)
            for _ in range(600):
                client.pull("other", "g", wait_s=0.1)
                if client.status()["groups"]["east"]["nodes"][0]["circuit"] == "open":
                    break
        assert "of group east fails: " in run("status", "--server", running.address).out
