"""What the recovery commands print of strange messages and of damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.cli.conftest import Server, run, serving
from tests.delayserver.recover.damaging import flip_in_columns


@pytest.fixture
def real_server(tmp_path: Path) -> Iterator[Server]:
    with serving(tmp_path / "data") as running:
        yield running


def test_subjects_that_look_like_markup_are_shown_as_they_are(real_server: Server) -> None:
    with Client(real_server.address) as client:
        for subject in ("[orders]", "a[/b]"):
            client.send(subject, b"", delay_ms=3_600_000)
    real_server.stop()
    done = run("recover", "check", str(real_server.data_dir))
    assert (done.code, done.err) == (0, "")
    assert "[orders]" in done.out
    assert "a[/b]" in done.out


def test_text_of_a_client_neither_controls_a_terminal_nor_looks_like_a_line_of_the_command(real_server: Server) -> None:
    with Client(real_server.address) as client:
        client.send("a", b"b\x1b[31m\nfake", delay_ms=3_600_000, message_id="i\x1b\nd\x9b", properties={"p\n": "q\x07"})
    real_server.stop()
    directory = str(real_server.data_dir)
    listed = run("recover", "pending", directory, "--list", "--bodies")
    assert (listed.code, listed.out.count("\n")) == (0, 1)
    assert "  i\\x1b\\x0ad\\x9b  b\\x1b[31m\\x0afake\n" in listed.out
    traced = run("recover", "trace", directory, "--sequence", "1")
    assert "message_id i\\x1b\\x0ad\\x9b" in traced.out
    assert not set(traced.out) & set("\x07\x1b\x9b")


def test_a_trace_shows_a_message_that_expires_beyond_the_calendar(real_server: Server) -> None:
    with Client(real_server.address) as client:
        receipt = client.send("a", b"", delay_ms=3_600_000, expires_ms=1 << 60).receipt
    real_server.stop()
    done = run("recover", "trace", str(real_server.data_dir), "--receipt", receipt)
    assert (done.code, done.err) == (0, "")
    assert "expires a time beyond the calendar" in done.out


def test_pending_and_export_say_that_damage_hides_messages(real_server: Server, tmp_path: Path) -> None:
    with Client(real_server.address) as client:
        for _ in range(2):
            client.send("a", b"x", delay_ms=3_600_000)
    real_server.stop()
    directory, folder = str(real_server.data_dir), str(tmp_path / "out")
    commands = (("pending", directory, "--json"), ("export", directory, "--to", folder))
    assert [run("recover", *command).code for command in commands] == [0, 0]
    for path in [*real_server.data_dir.glob("schedule_log/*/*.log"), *real_server.data_dir.glob("message_log/*.log")]:
        flip_in_columns(path)
    for command in commands:
        done = run("recover", *command)
        assert done.code == 1
        assert "do not verify" in done.err
