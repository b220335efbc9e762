"""`redispatch`: a range is delivered again, from a stopped directory and by a running server."""

from __future__ import annotations

from pathlib import Path

from delayserver.client import Client
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, copy, in_process, recover

EVERYTHING = ("--from", "2020-01-01T00:00Z", "--to", "2100-01-01T00:00Z")


def pull_all(client: Client, subject: str, group: str, count: int) -> list[str]:
    """Message ids, until so many came, and what comes within a moment more."""
    ids: list[str] = []
    while len(ids) < count:
        pulled = client.pull(subject, group, 1000, 10)
        assert pulled, f"{len(ids)} of {count} came"
        ids += [delivery.message_id for delivery in pulled]
    return ids + [delivery.message_id for delivery in client.pull(subject, group, 1000, 0.2)]


def test_a_dry_run_counts_and_writes_nothing(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    before = {path: path.read_bytes() for path in made.path.rglob("*.log")}
    done = in_process("redispatch", str(made.path), *EVERYTHING, "--dry-run", "--json")
    assert done.rows == [{"messages": 300, "dry_run": True}]
    assert {path: path.read_bytes() for path in made.path.rglob("*.log")} == before
    expired = in_process("redispatch", str(made.path), *EVERYTHING, "--dry-run", "--json", "--outcome", "expired")
    assert expired.rows == [{"messages": 1, "dry_run": True}]


def test_the_next_start_delivers_again_what_a_stopped_directory_was_told(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    done = in_process("redispatch", str(made.path), *EVERYTHING, "--subject", "orders", "--yes", "--json")
    assert done.rows == [{"messages": 300, "dry_run": False}]
    assert in_process("check", str(made.path)).code == 0
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        ids = pull_all(client, "orders", "fresh", 600)
        assert client.status()["accepted"] == made.accepted
        server.stop()
    assert (len(ids), len(set(ids))) == (600, 300)
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["accepted"], done.last["delivered"]) == (0, made.accepted, 300)
    assert done.last["internal"] == 301


def test_a_broker_that_lost_its_data_gets_everything_again(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    for path in sorted((made.path / "broker").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        assert client.pull("orders", "fresh", 10, 0.2) == []
        done = recover("redispatch", "--server", server.address, *EVERYTHING, "--yes", "--json")
        assert (done.code, done.rows) == (0, [{"messages": 300, "dry_run": False}])
        ids = pull_all(client, "orders", "fresh", 300)
        assert (len(ids), len(set(ids))) == (300, 300)
        server.stop()
    assert in_process("check", str(made.path)).code == 0


def test_what_is_asked_wrongly_is_refused(stopped: Made) -> None:
    path = str(stopped.path)
    for wrong in (
        (path,),
        (path, "--from", "2020-01-01T00:00Z"),
        (path, *EVERYTHING, "--server", "127.0.0.1:1"),
        EVERYTHING,
        (path, *EVERYTHING, "--outcome", "cancelled"),
        (path, *EVERYTHING, "--subject", "nobody"),
        (path, "--from", "2100-01-01T00:00Z", "--to", "2020-01-01T00:00Z"),
    ):
        assert in_process("redispatch", *wrong, "--yes").code == 2, wrong
