"""`delayserver backup` and `restore` on real processes: beside a server under load, killed in the middle, damaged."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

import pytest

from delayserver.client import Client
from delayserver.protocol.errors import DelayServerError
from tests.delayserver.cli.conftest import Done, Server, serve

HOUR_MS = 3_600_000


@contextmanager
def load(address: str, senders: int = 3) -> Iterator[list[str]]:
    """Clients that send as quickly as they can, half of it due at once. The receipts of what was acknowledged."""
    over, receipts = Event(), list[str]()

    def send(sender: int) -> None:
        with Client(address) as client:
            number = 0
            while not over.is_set():
                sent = client.send(f"load-{sender}", b"%d" % number, delay_ms=HOUR_MS if number % 2 else 1)
                receipts.append(str(sent.receipt))
                number += 1

    with ThreadPoolExecutor(senders) as pool:
        running = [pool.submit(send, sender) for sender in range(senders)]
        try:
            yield receipts
        finally:
            over.set()
            for each in running:
                each.result()


def fates(client: Client, receipts: list[str]) -> list[str]:
    """What became of messages."""
    found = client.lookup_many(receipts)
    return [str(each) if isinstance(each, DelayServerError) else each.outcome_name for each in found]


def test_every_message_acknowledged_before_a_backup_under_load_is_restored(
    start_server: Callable[..., Server], delayserver: Callable[..., Done], tmp_path: Path
) -> None:
    server = start_server(tmp_path / "data")
    place, restored = str(tmp_path / "backups"), tmp_path / "restored"
    before: list[str] = []
    with load(server.address) as receipts:
        for _ in range(3):
            count = len(receipts) + 100
            while len(receipts) < count:
                time.sleep(0.01)
            before = list(receipts)
            done = server.run("backup", "--to", place, "--json")
            assert done.code == 0, done.err
    assert done.row["copied_bytes"] < done.row["bytes"], "the earlier backups have some of it"
    assert server.run("status", "--json").row["storage"]["last_backup_ms"] == done.row["taken_ms"]
    assert not (tmp_path / "data" / "snapshot").exists()
    server.stop(signal.SIGKILL)
    checked = delayserver("backup", "check", place, "--json")
    assert checked.code == 0 and checked.row["clean"] and checked.row["backups"] == 3, checked.out
    told = delayserver("restore", "--from", place, "--data-dir", str(restored))
    assert told.code == 0 and "are delivered once more" in told.out and "Never start the server" in told.out, told.err
    assert delayserver("recover", "check", str(restored)).code == 0
    again = start_server(restored)
    assert again.server_id == server.server_id
    with Client(again.address) as client:
        states = set(fates(client, before))
        assert states <= {"pending", "delivered"}, states
        assert client.send("new", b"x", delay_ms=1).receipt not in receipts
    assert again.stop().code == 0
    assert delayserver("recover", "check", str(restored)).code == 0


def test_a_backup_that_is_killed_leaves_none_and_the_next_one_works(
    start_server: Callable[..., Server], begin: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    server, place = start_server(tmp_path / "data"), tmp_path / "backups"
    with Client(server.address) as client:
        for _ in range(40):
            client.send("s", b"b" * 1_000_000, delay_ms=HOUR_MS)
    killed = begin("backup", "--server", server.address, "--to", str(place))
    while killed.poll() is None and not list(place.glob("packs/*")):
        time.sleep(0.01)
    with suppress(ProcessLookupError):  # it was quicker
        assert os.getpriority(os.PRIO_PROCESS, killed.pid) == 19, "clients of the server do not wait for it"
    killed.kill()
    killed.wait(60)
    complete = len(list(place.glob("snapshots/*.manifest")))  # 1: it was quicker than the kill
    listed = server.run("status")
    assert listed.code == 0
    assert server.run("backup", "--to", str(place)).code == 0
    assert len(list(place.glob("snapshots/*.manifest"))) == complete + 1
    assert not list(place.glob("*/*.tmp"))
    assert server.stop().code == 0


def test_a_directory_of_a_stopped_server_is_backed_up_and_that_of_a_running_one_is_not(
    start_server: Callable[..., Server], delayserver: Callable[..., Done], tmp_path: Path
) -> None:
    server, place = start_server(tmp_path / "data"), str(tmp_path / "backups")
    with Client(server.address) as client:
        sent = client.send("s", b"x", delay_ms=HOUR_MS)
    arguments = ("backup", "--data-dir", str(tmp_path / "data"), "--to", place)
    refused = delayserver(*arguments)
    assert refused.code == 1 and "in use" in refused.err
    assert server.stop().code == 0
    assert delayserver(*arguments).code == 0
    assert delayserver("restore", "--from", place, "--data-dir", str(tmp_path / "new")).code == 0
    again = start_server(tmp_path / "new")
    with Client(again.address) as client:
        assert client.lookup(sent.receipt).outcome_name == "pending"


def test_a_moment_between_two_backups_is_restored(
    start_server: Callable[..., Server], delayserver: Callable[..., Done], tmp_path: Path
) -> None:
    server, place = start_server(tmp_path / "data"), str(tmp_path / "backups")
    with Client(server.address) as client:
        assert server.run("backup", "--to", place).code == 0
        early = client.send("s", b"early", delay_ms=HOUR_MS)
        moment_ms = client.ping() // 1000 + 1
        while client.ping() // 1000 <= moment_ms + 1:
            time.sleep(0.01)
        late = client.send("s", b"late", delay_ms=HOUR_MS)
        assert server.run("backup", "--to", place).code == 0
    assert server.stop().code == 0
    moment = datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat()
    done = delayserver("restore", "--from", place, "--data-dir", str(tmp_path / "new"), "--to-time", moment)
    assert done.code == 0 and "All else is as of" in done.out, done.err
    again = start_server(tmp_path / "new")
    with Client(again.address) as client:
        assert fates(client, [early.receipt, late.receipt]) == ["pending", "unknown"]
    assert delayserver("restore", "--from", place, "--data-dir", str(tmp_path / "new")).code == 1
    late_time = delayserver(
        "restore", "--from", place, "--data-dir", str(tmp_path / "x"), "--to-time", "2100-01-01T00:00Z"
    )
    assert late_time.code == 1 and "the last backup is of" in late_time.err


def test_a_place_in_the_data_directory_is_refused(
    start_server: Callable[..., Server], delayserver: Callable[..., Done], tmp_path: Path
) -> None:
    server, inside = start_server(tmp_path / "data"), str(tmp_path / "data" / "backups")
    assert "choose a folder of another disk" in server.run("backup", "--to", inside).err
    assert not Path(inside).exists() and not (tmp_path / "data" / "snapshot").exists()
    server.stop()
    refused = delayserver("backup", "--data-dir", str(tmp_path / "data"), "--to", inside)
    assert refused.code == 2 and "choose a folder of another disk" in refused.err


def test_a_lone_broker_is_backed_up_and_restored(
    begin: Callable[..., subprocess.Popen[bytes]], delayserver: Callable[..., Done], tmp_path: Path
) -> None:
    def started(data: Path) -> str:
        process = begin("broker", "--data-dir", str(data), "--port", "0", "--json")
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        return f"{ready['host']}:{ready['port']}"

    address, place = started(tmp_path / "data"), str(tmp_path / "backups")
    with Client(address) as client:
        client.publish("s", b"kept")
    assert delayserver("backup", "--server", address, "--to", place).code == 0
    assert delayserver("backup", "check", place).code == 0
    assert delayserver("restore", "--from", place, "--data-dir", str(tmp_path / "new")).code == 0
    with Client(started(tmp_path / "new")) as client:
        assert [message.body for message in client.pull("s", "g", wait_s=60)] == [b"kept"]


def test_damage_of_a_backup_is_told_by_check(
    start_server: Callable[..., Server], delayserver: Callable[..., Done], tmp_path: Path
) -> None:
    server, place = start_server(tmp_path / "data"), tmp_path / "backups"
    with Client(server.address) as client:
        client.send("s", b"x" * 10_000, delay_ms=HOUR_MS)
    assert server.run("backup", "--to", str(place)).code == 0
    (pack,) = place.glob("packs/*")
    data = bytearray(pack.read_bytes())
    data[len(data) // 2] ^= 1
    pack.write_bytes(data)
    found = delayserver("backup", "check", str(place), "--temporary-dir", str(tmp_path))
    assert found.code == 1 and f"{pack}: corrupt at offset" in found.out and "NOT clean" in found.out
    refused = delayserver("restore", "--from", str(place), "--data-dir", str(tmp_path / "new"))
    assert refused.code == 1 and "corrupt" in refused.err
    assert not (tmp_path / "new" / "identity").exists()


def test_backups_are_listed_and_pruned(
    start_server: Callable[..., Server], delayserver: Callable[..., Done], tmp_path: Path
) -> None:
    server, place = start_server(tmp_path / "data"), str(tmp_path / "backups")
    names = [server.run("backup", "--to", place, "--json").row["backup"] for _ in range(3)]

    def listed() -> list[str]:
        return [row["backup"] for row in delayserver("backup", "list", place, "--json").rows]

    assert listed() == names
    assert [row["removed"] for row in delayserver("backup", "prune", place, "--keep", "1", "--json").rows] == names[:2]
    assert listed() == names[2:]


@pytest.mark.parametrize("role", ["send", "admin"])
def test_only_a_token_of_an_admin_opens_a_backup(
    delayserver: Callable[..., Done], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, role: str
) -> None:
    made = delayserver("token", "create", "--role", role, "--data-dir", str(tmp_path / "data"), "--json")
    server = serve(tmp_path / "data")
    try:
        monkeypatch.setenv("DELAYSERVER_TOKEN", made.row["token"])
        done = server.run("backup", "--to", str(tmp_path / "backups"))
        assert done.code == (0 if role == "admin" else 1), done.err
        assert ("forbidden" in done.err) == (role == "send")
    finally:
        server.process.kill()
        server.process.communicate()


def test_usage_is_checked(delayserver: Callable[..., Done], tmp_path: Path) -> None:
    assert "--to" in delayserver("backup").err
    assert delayserver("backup", "--to", "x", "list", str(tmp_path)).code == 2
    foreign = delayserver("backup", "--data-dir", str(tmp_path), "--to", str(tmp_path / "backups"))
    assert foreign.code == 2 and "not a data directory" in foreign.err
    empty = delayserver("backup", "check", str(tmp_path))
    assert empty.code == 1 and "no backup here" in empty.err
