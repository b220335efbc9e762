"""What the server does at its start with a damaged directory: it refuses in one line what it cannot do without, names
what it finds, and goes on where it can; `rebuild` and `repair` bring back what was refused."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from delayserver.client import Client
from tests.delayserver.recover import damaging
from tests.delayserver.recover.checking.test_corruption_table import DAMAGES, files
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, in_process


def refusal(made: Made) -> str:
    """The line with which the server ends; a server that starts is the failure of the test."""
    with pytest.raises(AssertionError, match="did not start") as raised, ServerProcess(made.path, *SMALL):
        pass
    return str(raised.value)


def starts(made: Made) -> None:
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        status = client.status()
        assert (status["accepted"], status["pending"]) == (made.accepted, 92)
        server.stop()


@pytest.mark.parametrize("name", ["names.log", "days", "sequences", "identity"])
@pytest.mark.parametrize("damage", ["missing", "flipped bit"])
def test_a_damaged_table_that_a_server_needs_is_refused_by_name_and_rebuilt(made: Made, name: str, damage: str) -> None:
    path = made.path / name
    path.unlink() if damage == "missing" else damaging.flip(path, path.stat().st_size // 2)
    line = refusal(made)
    assert name in line or "not a data directory" in line
    assert "Traceback" not in line
    command = "repair" if (name, damage) == ("names.log", "flipped bit") else "rebuild"
    assert in_process(command, str(made.path), "--yes").code == 0
    starts(made)


@pytest.mark.parametrize("kind", ["message_log", "names.log", "broker store", "broker progress"])
@pytest.mark.parametrize("damage", ["foreign cluster id", "newer version"])
def test_a_file_that_is_not_ours_is_refused_and_left_alone(made: Made, kind: str, damage: str) -> None:
    path = files(made.path)[kind]
    DAMAGES[damage](path)
    before = path.read_bytes()
    assert path.name in refusal(made)
    assert path.read_bytes() == before


@pytest.mark.parametrize("kind", ["message_log", "schedule_log minute", "schedule_log day", "broker store"])
@pytest.mark.parametrize("damage", ["bit in a column", "bit in the file header", "half a record more"])
def test_a_server_starts_with_damage_that_it_can_serve_around(made: Made, kind: str, damage: str) -> None:
    DAMAGES[damage](files(made.path)[kind])
    starts(made)


def test_a_damaged_checkpoint_costs_time_and_nothing_else(made: Made) -> None:
    damaging.flip(made.path / "checkpoint", 100)
    starts(made)
    assert in_process("check", str(made.path)).code == 0


def two_batches(path: Path) -> tuple[Path, Path, int]:
    """A stopped directory with two records of one window that is due soon, its schedule file, and the due time."""
    for number in range(10):
        made = path / str(number)
        with ServerProcess(made, *SMALL) as server, Client(server.address) as client:
            due_ms = client.ping() // 1000 + 4_000
            due_ms += 3_000 if due_ms % 60_000 > 58_000 else 0
            first = client.send_columns("a", due_ms, [b"first"] * 10)
            client.lookup(first.receipts()[0])  # answered after its replay: the next ones are another record
            client.send_columns("a", due_ms, [b"second"] * 10)
            client.send_columns("a", due_ms + 3_600_000, [b"later"])
            server.stop()
        if time.time() * 1000 < due_ms:  # otherwise a busy machine has let this life deliver some of them
            return made, sorted((made / "schedule_log").rglob("*.direct.log"))[0], due_ms
    raise AssertionError("no server stopped within four seconds")


def test_one_bad_record_does_not_hold_back_the_others_of_its_window(tmp_path: Path) -> None:
    made, path, _ = two_batches(tmp_path)
    damaging.flip_in_columns(path)
    with ServerProcess(made, *SMALL) as server, Client(server.address) as client:
        found = client.pull("a", "g", 100, 60) + client.pull("a", "g", 100, 1)
        assert {delivery.body for delivery in found} == {b"second"}


def test_a_foreign_window_file_does_not_end_the_server(tmp_path: Path) -> None:
    made, path, due_ms = two_batches(tmp_path)
    damaging.foreign_cluster(path)
    with ServerProcess(made, *SMALL) as server, Client(server.address) as client:
        time.sleep(max(0.0, due_ms / 1000 - time.time()) + 1)
        assert server.process.poll() is None
        assert client.status()["ready"]
