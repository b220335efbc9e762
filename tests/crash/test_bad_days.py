"""What a machine does to a server besides killing it: a full disk, no descriptors left, a failed sync, a clock that jumps.

All with a real process on real files and sockets.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from delayserver.client import Client, Delivery, Message, SendResult
from delayserver.config.settings import GroupSettings, NodeSettings
from delayserver.protocol.errors import ConnectionLost, DelayServerError, DiskFull, NotReady, StorageFailed
from delayserver.protocol.outcomes import Outcome
from tests.crash.command_line import require
from tests.crash.process import KIB, ServerUnderTest, small_settings
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
MIB = 1 << 20
HOUR_US = 3_600_000_000
SUBJECT, GROUP = "bad.day", "g"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerUnderTest]:
    made = ServerUnderTest(tmp_path)
    yield made
    made.clean_up()


def receive(client: Client, count: int, timeout_s: float = 90.0) -> list[Delivery]:
    """Pull and ack until `count` deliveries came. What a full disk refused comes after a back-off of up to 30 s."""
    came: list[Delivery] = []
    end_s = time.monotonic() + timeout_s
    while len(came) < count and time.monotonic() < end_s:
        pulled = client.pull(SUBJECT, GROUP, 1000, 0.2)
        if pulled:
            client.ack(SUBJECT, GROUP, pulled)
        came += pulled
    return came


def wait_until(true: object, timeout_s: float = 60.0) -> None:
    assert callable(true)
    end_s = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end_s, "it did not come to this in time"
        time.sleep(0.05)


# -- no data directory


def test_a_send_behind_the_deletion_of_the_data_directory_is_refused_and_the_server_ends(
    server: ServerUnderTest,
) -> None:
    assert server.start(), server.said()
    with Client(server.address, retries=0) as client:
        client.send(SUBJECT, "before", delay_ms=HOUR_US // 1000)
        shutil.rmtree(
            server.data_dir, ignore_errors=True
        )  # the server may make a file in a folder that is being emptied
        with pytest.raises((StorageFailed, ConnectionLost)) as refused:
            client.send(SUBJECT, "after", delay_ms=HOUR_US // 1000)
        # On a slow machine another part may meet the deletion before the send does.
        assert isinstance(refused.value, ConnectionLost) or "deleted while the server ran" in str(refused.value)
    assert server.wait() != 0


# -- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own of 24 MiB."""
    mount = tmp_path / "disk"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=24m", "delayserver-test", str(mount)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    require(not done.returncode, f"the right to mount a tmpfs ({done.stderr.strip()})")
    yield mount
    subprocess.run(["umount", "-l", str(mount)], check=True)


def test_on_a_full_disk_sends_are_refused_nothing_is_lost_and_service_resumes(small_disk: Path, tmp_path: Path) -> None:
    settings = small_settings(str(small_disk / "data"))
    settings = replace(settings, storage=replace(settings.storage, free_bytes_min=512 * KIB))
    server = ServerUnderTest(tmp_path, settings)
    ballast, rest = small_disk / "ballast", small_disk / "rest"
    # Behind its removal everything that was accepted beside it finds room in the broker's store.
    ballast.write_bytes(bytes(14 * MIB))
    try:
        assert server.start(), server.said()
        accepted = fill_until_refused(server, due_in_ms=3000)
        with Client(server.address, retries=0) as client:
            # Somebody else takes what the bound had kept: from here on every write meets a full disk.
            with contextlib.suppress(OSError), rest.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4 * KIB))
            wait_until(lambda: client.status()["storage"]["disk_low"])
            with pytest.raises(DiskFull):
                client.send(SUBJECT, "refused", delay_ms=10)
            ballast.unlink()
            rest.unlink()
            wait_until(lambda: not client.status()["storage"]["disk_low"])
            after = client.send(SUBJECT, "after", delay_ms=10)
            came = receive(client, len(accepted) + 1)
            assert {delivery.sequence for delivery in came} == {*accepted, after.sequence}
            assert len(came) == len(accepted) + 1
            # A consumer has a message a moment before its outcome is durable, and so counted.
            wait_until(lambda: client.status()["delivered"] >= len(accepted) + 1)
            status = client.status()
            assert status["delivered"] == len(accepted) + 1 == status["accepted"]
        assert server.stop() == 0, server.said()
        assert "disk nearly full" in server.said()
        assert "has room again" in server.said()
    finally:
        server.clean_up()


def fill_until_refused(server: ServerUnderTest, due_in_ms: int) -> set[int]:
    """Send until the server says that the disk is full; the sequences it acknowledged."""
    accepted: set[int] = set()
    due_ms = server.now_us() // 1000 + due_in_ms
    with Client(server.address, retries=0) as client:
        for _ in range(400):
            try:
                results = client.send_many([Message(SUBJECT, random.Random(7).randbytes(4000), due_ms=due_ms)] * 10)
            except DiskFull as refusal:
                assert refusal.retry_after_ms
                return accepted
            accepted |= {result.sequence for result in results if isinstance(result, SendResult)}
            if any(isinstance(result, DiskFull) for result in results):
                return accepted
    raise AssertionError("the disk did not fill up")


def fill(path: Path, free_bytes: int) -> None:
    """Write a file until the disk has this much room; what a file system takes for itself is in it."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            stat = os.statvfs(path)
            over = stat.f_bavail * stat.f_frsize - free_bytes
            if over <= 0:
                return
            file.write(bytes(min(over, 64 * KIB)))


@pytest.mark.parametrize("free_bytes", [0, 76 * KIB])
def test_a_start_on_a_full_disk_answers_stops_on_a_signal_and_goes_on_when_there_is_room(
    small_disk: Path, tmp_path: Path, free_bytes: int
) -> None:
    server = ServerUnderTest(tmp_path, small_settings(str(small_disk / "data")))
    ballast = small_disk / "ballast"
    try:
        assert server.start(), server.said()
        due_ms = server.now_us() // 1000 + 3_600_000
        with Client(server.address, retries=0) as client:
            placed = client.send(SUBJECT, "placed", delay_ms=5_000)
            wait_until(lambda: not client.status()["storage"]["replay_lag_bytes"])
            client.send_columns(SUBJECT, [due_ms + 1000 * row for row in range(3000)], [b"x" * 100] * 3000)
        server.kill()  # long before it has made three thousand files
        fill(ballast, free_bytes)
        server.settings = replace(server.settings, listen=replace(server.settings.listen, port=free_port()))
        for lives_left in (1, 0):
            server.launch()
            address = f"127.0.0.1:{server.settings.listen.port}"
            with Client(address, retries=100) as client:
                wait_until(lambda client=client: "needs about" in client.status()["waits_for"])
                assert not client.status()["ready"]
                assert client.ping()
            with Client(address, retries=0) as client, pytest.raises(NotReady, match="bytes free"):
                client.send(SUBJECT, "refused", delay_ms=10)
            if lives_left:
                assert server.stop() == 0, server.said()
        with Client(address) as client:  # what has its place already goes out
            wait_until(lambda: client.status()["delivered"] == 1)
            assert [delivery.sequence for delivery in client.pull(SUBJECT, GROUP, 10, 1)] == [placed.sequence]
        ballast.unlink()
        assert server.wait_ready(), server.said()
        with Client(server.address) as client:
            assert client.status()["accepted"] == 3001
        assert server.stop() == 0, server.said()
    finally:
        server.clean_up()


def test_outcomes_of_deliveries_find_room_on_a_completely_full_disk(small_disk: Path, tmp_path: Path) -> None:
    """The broker is another process on another disk, so that delivery goes on while this disk takes nothing more."""
    broker = ServerUnderTest(_folder(tmp_path / "broker"))
    settings = small_settings(str(small_disk / "data"))
    server = ServerUnderTest(tmp_path, settings)
    ballast = small_disk / "ballast"
    try:
        assert broker.start(role="broker"), broker.said()
        node = NodeSettings(broker.address)
        server.settings = replace(settings, groups=(GroupSettings("default", (node,)),))
        assert server.start(), server.said()
        due_ms = server.now_us() // 1000 + 1500
        with Client(server.address) as client, Client(broker.address) as consumer:
            sent = client.send_many([Message(SUBJECT, b"x" * 100, due_ms=due_ms + n) for n in range(500)])
            receipts = [result.receipt for result in sent if isinstance(result, SendResult)]
            assert len(receipts) == 500
            wait_until(lambda: client.status()["storage"]["replay_lag_bytes"] == 0)
            with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4 * KIB))
            assert len(receive(consumer, 500)) == 500
            wait_until(lambda: client.status()["delivered"] == 500)
        server.kill()
        # What was recorded is durable: the next start, still without room for anything else, delivers nothing again.
        ballast.unlink()
        assert server.start(), server.said()
        with Client(server.address) as client, Client(broker.address) as consumer:
            assert client.status()["delivered"] == 500
            assert {
                found.outcome for found in client.lookup_many(receipts) if not isinstance(found, DelayServerError)
            } == {Outcome.DELIVERED}
            assert consumer.pull(SUBJECT, GROUP, 10, 0.3) == []
    finally:
        server.clean_up()
        broker.clean_up()


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


# -- no descriptors left


def test_clients_cannot_take_the_descriptors_that_the_files_need(tmp_path: Path) -> None:
    settings = small_settings(str(tmp_path / "data"))
    server = ServerUnderTest(tmp_path, replace(settings, storage=replace(settings.storage, open_files_max=64)))
    try:
        assert server.start(open_files_max=200), server.said()
        assert "leave room for 52 open files of windows and 52 connections" in server.said()
        flood(server)
        assert server.stop() == 0, server.said()
    finally:
        server.clean_up()


def flood(server: ServerUnderTest) -> None:
    """Far more connections than there are descriptors, while messages are accepted, fall due and are delivered."""
    host, _, port = server.address.rpartition(":")
    with Client(server.address, retries=0) as client:
        sent = [client.send(SUBJECT, f"{n}", delay_ms=1500).sequence for n in range(20)]
        idle: list[socket.socket] = []
        with contextlib.suppress(OSError):
            idle += [socket.create_connection((host, int(port)), timeout=0.3) for _ in range(300)]
        sent += [client.send(SUBJECT, f"{n}", delay_ms=1500 + 200 * n).sequence for n in range(20)]
        wait_until(lambda: client.status()["errors"].get("too_many_connections", 0) > 0)
        came = receive(client, len(sent))
        for connection in idle:
            connection.close()
        assert sorted(delivery.sequence for delivery in came) == sent
    with Client(server.address) as again:
        assert again.send(SUBJECT, "later", delay_ms=1).sequence > max(sent)


# -- a sync that fails


@pytest.mark.parametrize(
    "room", ["message_log", "schedule", "dispatch", "broker.store", "broker.progress", "checkpoint"]
)
def test_a_sync_that_fails_once_stops_the_server_with_one_line_and_a_restart_recovers(
    room: str, server: ServerUnderTest
) -> None:
    assert server.start(fail_sync=(room, 4)), server.said()
    accepted: list[int] = []
    came: list[Delivery] = []
    with Client(server.address, retries=0) as client, contextlib.suppress(DelayServerError):
        for _ in range(2000):
            accepted.append(client.send(SUBJECT, "x", delay_ms=30).sequence)
            pulled = client.pull(SUBJECT, GROUP, 100)
            came += pulled
            if pulled:
                client.ack(SUBJECT, GROUP, pulled)
    assert server.wait() == 1, server.said()
    last = server.said().strip().splitlines()[-1]
    assert last.startswith("Error: "), server.said()
    assert "restart to recover" in last
    assert server.start(), server.said()
    with Client(server.address) as client:
        seen = {delivery.sequence for delivery in came}
        missing = [sequence for sequence in accepted if sequence not in seen]
        came_again: set[int] = set()  # also what was pulled before, where the ack was lost

        def all_came() -> bool:
            came_again.update(delivery.sequence for delivery in receive(client, 1, timeout_s=0.5))
            return came_again >= set(missing)

        wait_until(all_came)
        status = client.status()
        assert status["accepted"] >= len(accepted)
        assert status["corruption"] == []


# -- a clock that jumps


def test_after_steps_of_the_clock_forward_and_back_nothing_is_early_and_overdue_messages_are_delivered(
    server: ServerUnderTest,
) -> None:
    assert server.start(), server.said()
    with Client(server.address) as client:
        now_ms = server.now_us() // 1000
        client.send(SUBJECT, "in two hours", due_ms=now_ms + 2 * 3_600_000)
        client.send(SUBJECT, "in five hours", due_ms=now_ms + 5 * 3_600_000)
        assert client.pull(SUBJECT, GROUP, 10, 0.5) == []

        server.control.step_us += 3 * HOUR_US
        came = receive(client, 1)
        assert [delivery.body for delivery in came] == [b"in two hours"]
        wait_until(lambda: client.status()["clock"]["steps"] == 1)
        assert client.status()["clock"]["step_last_ms"] == pytest.approx(3 * 3_600_000, abs=1000)

        # Back to before: what was due in the time that is gone is not due any more.
        server.control.step_us -= 3 * HOUR_US
        client.send(SUBJECT, "in one hour", due_ms=now_ms + 3_600_000)
        wait_until(lambda: client.status()["clock"]["steps"] == 2)
        assert client.pull(SUBJECT, GROUP, 10, 1.0) == []

        server.control.step_us += 2 * HOUR_US
        came = receive(client, 1)
        assert [delivery.body for delivery in came] == [b"in one hour"]
        wait_until(lambda: client.status()["clock"]["steps"] == 3)
        assert client.status()["early"] == 0
    assert server.said().count("the clock was stepped by") == 3
    assert server.stop() == 0


def test_a_clock_set_back_between_two_runs_loses_and_hastens_nothing(server: ServerUnderTest) -> None:
    server.control.step_us = 6 * HOUR_US
    assert server.start(), server.said()
    with Client(server.address) as client:
        due_ms = server.now_us() // 1000 + 10_000
        client.send(SUBJECT, "due in the future of yesterday", due_ms=due_ms)
    server.kill()
    server.control.step_us = 0
    assert server.start(), server.said()
    with Client(server.address) as client:
        assert client.pull(SUBJECT, GROUP, 10, 2.5) == []
        assert client.status()["pending"] == 1
        server.control.step_us = 7 * HOUR_US
        assert len(receive(client, 1)) == 1
        assert client.status()["early"] == 0


# -- two servers, and a clean end


def command_line(data_dir: str) -> list[str]:
    return [sys.executable, "-m", "delayserver", "serve", "--data-dir", data_dir, "--port", "0", "--http-port", "0"]


def test_a_second_process_on_the_same_directory_is_refused_with_one_clear_line(server: ServerUnderTest) -> None:
    assert server.start(), server.said()
    second = subprocess.run(
        command_line(server.data_dir), capture_output=True, text=True, cwd=ROOT, timeout=120, check=False
    )
    assert second.returncode == 1
    assert second.stdout == ""
    (line,) = second.stderr.strip().splitlines()
    assert f"in use by process {server.pid} (delayserver server)" in line
    with Client(server.address) as client:
        assert client.send(SUBJECT, "still served", delay_ms=1).sequence == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_under_load_ends_cleanly_within_its_bound_and_the_next_start_knows(
    how: signal.Signals, server: ServerUnderTest
) -> None:
    assert server.start(), server.said()
    accepted: list[int] = []
    with Client(server.address, retries=0) as client, contextlib.suppress(DelayServerError):
        for n in range(10_000):
            accepted += [
                r.sequence
                for r in client.send_many([Message(SUBJECT, "x", delay_ms=400)] * 20)
                if isinstance(r, SendResult)
            ]
            if n == 30:
                os.kill(server.pid, how)
                told_s = time.monotonic()
    assert server.wait() == 0, server.said()
    assert time.monotonic() - told_s < server.settings.shutdown_timeout_ms / 1000
    assert server.start(), server.said()
    with Client(server.address) as client:
        # A sequence that follows the last one directly is the sign of a clean end: after a crash a block is skipped.
        following = client.send(SUBJECT, "x", delay_ms=1).sequence
        assert following == max(accepted) + 1
        came = receive(client, len(accepted) + 1)
        assert sorted(delivery.sequence for delivery in came) == sorted([*accepted, following])


def test_after_a_kill_no_sequence_is_used_twice(server: ServerUnderTest) -> None:
    assert server.start(), server.said()
    with Client(server.address) as client:
        before = client.send(SUBJECT, "x", delay_ms=1).sequence
    server.kill()
    assert server.start(), server.said()
    with Client(server.address) as client:
        assert client.send(SUBJECT, "x", delay_ms=1).sequence > before + 1
