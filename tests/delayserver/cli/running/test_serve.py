"""`serve` and `broker` as processes: one line when ready, one line when they cannot be, a clean end."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from delayserver import __version__
from delayserver.client import Client
from delayserver.protocol.errors import DiskFull
from tests.forked import without_stalls

FREE = ("--port", "0", "--http-port", "0")


@pytest.mark.parametrize(("command", "name"), [("serve", "delayserver"), ("broker", "delayserver broker")])
def test_exactly_one_line_says_that_requests_are_accepted(
    begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, command: str, name: str
) -> None:
    process = begin(command, "--data-dir", str(tmp_path / "data"), *FREE)
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    pattern = rf"{name} {re.escape(__version__)} ready on 127\.0\.0\.1:(\d+), data in (\S+), server id [0-9a-f]{{12}}\n"
    match = re.fullmatch(pattern, line)
    assert match is not None, line
    assert match[2] == str(tmp_path / "data")
    socket.create_connection(("127.0.0.1", int(match[1])), timeout=60).close()
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, without_stalls(err.decode())) == (0, b"", "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_server_cleanly_and_nothing_is_lost(
    start_server: Callable[..., Any], tmp_path: Path, number: int
) -> None:
    first = start_server(tmp_path / "data")
    sent = first.run("send", "kept", "over the restart", "--delay", "2s", "--json").row
    done = first.stop(number)
    assert (done.code, done.out, done.err) == (0, "", "")
    second = start_server(tmp_path / "data")
    assert second.server_id == first.server_id
    row = second.run("pull", "kept", "--group", "g", "--wait", "20s", "--ack", "--json").row
    assert (row["message_id"], row["body"]) == (sent["message_id"], "over the restart")


def test_a_killed_server_loses_nothing_that_it_acknowledged(start_server: Callable[..., Any], tmp_path: Path) -> None:
    first = start_server(tmp_path / "data")
    sent = first.run("send", "kept", "over the crash", "--delay", "1s", "--json").row
    first.stop(signal.SIGKILL)
    second = start_server(tmp_path / "data")
    row = second.run("pull", "kept", "--group", "g", "--wait", "20s", "--ack", "--json").row
    assert (row["message_id"], row["body"]) == (sent["message_id"], "over the crash")


def refused(done: Any, *words: str) -> None:
    assert (done.code in (1, 2), done.out) == (True, ""), done
    assert without_stalls(done.err).count("\n") == 1, done.err
    for word in words:
        assert word in done.err


def test_a_second_process_on_the_same_data_is_refused(
    start_server: Callable[..., Any], delayserver: Callable[..., Any], tmp_path: Path
) -> None:
    start_server(tmp_path / "data")
    done = delayserver("serve", "--data-dir", str(tmp_path / "data"), *FREE)
    refused(done, str(tmp_path / "data"), "in use by", "choose another directory")


def test_a_port_in_use_is_one_line(
    start_server: Callable[..., Any], delayserver: Callable[..., Any], tmp_path: Path
) -> None:
    port = start_server(tmp_path / "one").address.rpartition(":")[2]
    done = delayserver("serve", "--data-dir", str(tmp_path / "two"), "--port", port, "--http-port", "0")
    refused(done, f"cannot listen on 127.0.0.1:{port}: another process", "--port")


def test_a_directory_of_somebody_else_is_refused(delayserver: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("not ours")
    done = delayserver("serve", "--data-dir", str(tmp_path), *FREE)
    refused(done, str(tmp_path), "letters.txt")


def test_a_broker_does_not_take_the_directory_of_a_server(
    start_server: Callable[..., Any], delayserver: Callable[..., Any], tmp_path: Path
) -> None:
    assert start_server(tmp_path / "data").stop().code == 0
    done = delayserver("broker", "--data-dir", str(tmp_path / "data"), *FREE)
    refused(done, f"{tmp_path / 'data'}: the data of a server, and this is a broker", "choose another directory")


def test_a_data_directory_that_cannot_be_made_is_refused(delayserver: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    refused(
        delayserver("serve", "--data-dir", str(tmp_path / "file" / "data"), *FREE),
        str(tmp_path / "file"),
    )


@pytest.mark.parametrize("role", ["serve", "broker"])
def test_a_server_whose_data_directory_goes_away_says_so_in_one_line(
    begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, role: str
) -> None:
    process = begin(role, "--data-dir", str(tmp_path / "data"), *FREE)
    assert process.stdout is not None
    assert process.stdout.readline()
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert without_stalls(err.decode()).count("\n") == 1, err
    assert f"{tmp_path / 'data'}: the data directory was removed or moved" in err.decode()


def test_a_host_that_is_not_of_this_machine_is_one_line(delayserver: Callable[..., Any], tmp_path: Path) -> None:
    refused(
        delayserver("serve", "--data-dir", str(tmp_path / "data"), *FREE, "--host", "192.0.2.1"),
        "--host",
    )


def test_a_host_that_no_resolver_knows_is_one_line(delayserver: Callable[..., Any], tmp_path: Path) -> None:
    done = delayserver("serve", "--data-dir", str(tmp_path / "data"), *FREE, "--host", "nowhere.invalid")
    refused(done, "cannot listen on nowhere.invalid:0", "--host")


def test_a_file_and_flags_are_obeyed(start_server: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "server.toml").write_text('[message]\nbody_bytes_max = "1KiB"\n')
    server = start_server(
        tmp_path / "data", "--config", str(tmp_path / "server.toml"), "--set", "message.delay_ms_max=1h"
    )
    assert "message_too_large" in server.run("send", "s", "x" * 2000).err
    assert "too_far" in server.run("send", "s", "x", "--delay", "2h").err


def test_a_server_routes_messages_to_a_broker_node(
    begin: Callable[..., subprocess.Popen[bytes]],
    start_server: Callable[..., Any],
    delayserver: Callable[..., Any],
    tmp_path: Path,
) -> None:
    node = begin("broker", "--data-dir", str(tmp_path / "node"), *FREE, "--json")
    assert node.stdout is not None
    ready = json.loads(node.stdout.readline())
    address = f"{ready['host']}:{ready['port']}"
    (tmp_path / "server.toml").write_text(
        f'[[groups]]\nname = "far"\nnodes = ["{address}"]\n[[routes]]\ngroups = ["far"]\n'
    )
    server = start_server(tmp_path / "data", "--config", str(tmp_path / "server.toml"))
    server.run("send", "routed", "hello", "--delay", "1s")
    done = delayserver("pull", "routed", "--group", "g", "--wait", "20s", "--ack", "--json", "--server", address)
    assert done.row["body"] == "hello"
    # The server itself holds none of it, and says where to ask.
    here = server.run("pull", "routed", "--group", "g")
    assert (here.code, here.out) == (1, "")
    assert f"goes to {address}; pull there" in here.err


def test_a_server_in_memory_makes_no_file_and_serves(start_server: Callable[..., Any], tmp_path: Path) -> None:
    server = start_server(None, "--memory", cwd=tmp_path)
    assert server.run("send", "a", "in memory", "--delay", "100ms", "--json").row["subject"] == "a"
    assert server.run("pull", "a", "--group", "g", "--wait", "20s", "--ack", "--json").row["body"] == "in memory"
    assert list(tmp_path.iterdir()) == []
    done = server.stop()
    assert (done.code, done.out, done.err) == (0, "", "")


def test_memory_and_a_data_directory_exclude_each_other(delayserver: Callable[..., Any], tmp_path: Path) -> None:
    done = delayserver("serve", "--memory", "--data-dir", str(tmp_path / "data"))
    assert done.code == 2 and "--memory has no data directory: leave --data-dir out" in done.err


def test_a_server_in_memory_says_so_and_keeps_its_bound(
    begin: Callable[..., subprocess.Popen[bytes]],
) -> None:
    process = begin("serve", "--memory", *FREE, "--set", "storage.memory_bytes_max=16MiB")
    assert process.stdout is not None
    line = process.stdout.readline().decode()
    match = re.fullmatch(r"delayserver \S+ ready on (\S+), data in memory, server id [0-9a-f]{12}\n", line)
    assert match is not None, line
    with Client(match[1], retries=0) as client, pytest.raises(DiskFull):
        for _ in range(100):
            client.send("a", bytes(512 * 1024), delay_ms=3_600_000)
