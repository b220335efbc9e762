"""sd_notify on a real datagram socket: what a service manager hears of a real process."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from delayserver.server.service_manager import BEAT_MS, BEATS, NotifySocket, status_line

ROOT = Path(__file__).parents[3]
WAIT_S = 60


class Heard:
    """A service manager's socket."""

    def __init__(self, path: Path) -> None:
        self.address = str(path)
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.address)
        self.socket.settimeout(WAIT_S)

    def next(self) -> dict[str, str]:
        """The next datagram."""
        lines = self.socket.recv(65_536).decode().splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}

    def until(self, name: str) -> list[dict[str, str]]:
        """All datagrams up to the first with this field."""
        heard = [self.next()]
        while name not in heard[-1]:
            heard.append(self.next())
        return heard


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Heard]:
    manager = Heard(tmp_path / "notify")
    yield manager
    manager.socket.close()


@pytest.fixture
def begin(heard: Heard, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts a command as a service manager does."""
    started = []

    def begin_one(*arguments: str) -> subprocess.Popen[bytes]:
        environment = os.environ | {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "300000"}
        command = [sys.executable, "-m", "delayserver", *arguments, "--port", "0", "--http-port", "0"]
        command += ["--data-dir", str(tmp_path / "data")]
        started.append(subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE))
        return started[-1]

    yield begin_one
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("command", ["serve", "broker"])
def test_a_service_manager_hears_of_the_start_the_life_and_the_stop(
    begin: Callable[..., subprocess.Popen[bytes]], heard: Heard, command: str
) -> None:
    process = begin(command)
    *before, ready = heard.until("READY")
    assert before[0]["STATUS"] == "the server is opening its data directory"
    assert all(int(each["EXTEND_TIMEOUT_USEC"]) >= 30_000_000 for each in before)
    assert ready["READY"] == "1"
    assert ready["STATUS"].startswith("serving on 127.0.0.1 port ")
    for _ in range(3):
        alive = heard.next()
        assert (alive["WATCHDOG"], "EXTEND_TIMEOUT_USEC" in alive) == ("1", False)
    process.send_signal(signal.SIGTERM)
    stopping = heard.until("STOPPING")[-1]
    assert (stopping["STOPPING"], stopping["STATUS"].partition(":")[0]) == ("1", "stopping")
    assert process.wait(timeout=WAIT_S) == 0


def test_a_reload_is_announced_and_ended(
    begin: Callable[..., subprocess.Popen[bytes]], heard: Heard, tmp_path: Path
) -> None:
    (tmp_path / "server.toml").write_text("")
    process = begin("serve", "--config", str(tmp_path / "server.toml"))
    heard.until("READY")
    (tmp_path / "server.toml").write_text("[[groups]\n")
    for _ in range(2):  # one that is refused, and one that changes nothing
        process.send_signal(signal.SIGHUP)
        reloading = heard.until("RELOADING")[-1]
        assert (reloading["RELOADING"], int(reloading["MONOTONIC_USEC"]) > 0) == ("1", True)
        assert heard.until("READY")[-1]["STATUS"].startswith("serving")
        (tmp_path / "server.toml").write_text("")


def test_a_failed_start_is_not_ready(begin: Callable[..., subprocess.Popen[bytes]], heard: Heard) -> None:
    process = begin("serve", "--host", "192.0.2.1")
    assert process.wait(timeout=WAIT_S) == 1
    heard.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        heard.next()


def test_the_environment_names_the_socket_and_the_watchdog(heard: Heard) -> None:
    assert NotifySocket.of({}, 7) is None
    assert NotifySocket.of({"NOTIFY_SOCKET": "relative"}, 7) is None
    watched = {"NOTIFY_SOCKET": heard.address, "WATCHDOG_USEC": "3000000"}
    beats = []
    for more in ({}, {"WATCHDOG_PID": "7"}, {"WATCHDOG_PID": "8"}, {"WATCHDOG_USEC": "no"}, {"WATCHDOG_USEC": "0"}):
        manager = NotifySocket.of(watched | more, 7)
        assert manager is not None
        beats.append(manager.beat_ms)
        manager.close()
    assert beats == [1000, 1000, BEAT_MS, BEAT_MS, BEAT_MS]
    assert BEATS >= 2, "a late sign of life must not end the process"


def test_an_abstract_socket_is_reached() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("")  # the kernel draws an abstract name
        receiver.settimeout(WAIT_S)
        manager = NotifySocket.of({"NOTIFY_SOCKET": "@" + receiver.getsockname()[1:].decode()}, 7)
        assert manager is not None
        manager.tell("READY=1", status_line("two\nlines"))
        manager.close()
        assert receiver.recv(4096) == b"READY=1\nSTATUS=two lines"


def test_a_missing_service_manager_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    manager = NotifySocket.of({"NOTIFY_SOCKET": str(tmp_path / "nobody")}, 7)
    assert manager is not None
    for _ in range(3):
        manager.tell("WATCHDOG=1")
    manager.close()
    assert len(caplog.records) == 1
    assert "WATCHDOG=1" in caplog.text


def test_a_full_socket_does_not_hold_the_server_up(heard: Heard) -> None:
    manager = NotifySocket.of({"NOTIFY_SOCKET": heard.address}, 7)
    assert manager is not None
    for _ in range(1000):
        manager.tell("WATCHDOG=1")
    manager.close()
    assert heard.next() == {"WATCHDOG": "1"}
