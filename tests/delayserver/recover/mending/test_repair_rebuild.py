"""`repair` and `rebuild`: what they say, what they leave, and that a server goes on behind them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from delayserver.client import Client
from store.disk.filesystem import RealFileSystem
from store.errors import DiskFullError
from tests.delayserver.recover import damaging
from tests.delayserver.recover.checking.test_corruption_table import files
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, copy, in_process, recover


def content(path: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(path)): file.read_bytes()
        for file in sorted(path.rglob("*"))
        if file.is_file() and file.name != "lock"
    }


def status_of(made: Made) -> dict[str, int]:
    """What a server counts that goes on in the directory."""
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        found = client.status()
        server.stop()
    return {name: found[name] for name in ("accepted", "delivered", "cancelled", "pending", "deduplicated", "expired")}


def test_a_dry_run_shows_every_step_and_changes_nothing(made: Made) -> None:
    chosen = files(made.path)
    damaging.flip_in_columns(chosen["schedule_log minute"])
    damaging.append_torn(chosen["dispatch_log minute"])
    before = content(made.path)
    done = in_process("repair", str(made.path), "--dry-run", "--json")
    assert done.code == 0
    assert content(made.path) == before
    actions = {(row["action"], Path(row["file"]).name) for row in done.rows}
    assert actions == {("take_out", chosen["schedule_log minute"].name), ("cut", chosen["dispatch_log minute"].name)}


def test_without_a_terminal_nothing_is_changed_unless_yes_is_said(made: Made) -> None:
    chosen = files(made.path)
    damaging.flip_in_columns(chosen["message_log"])
    chosen["schedule_log minute"].unlink()
    before = content(made.path)
    for command in ("repair", "rebuild"):
        done = recover(command, str(made.path))
        assert done.code == 2
        assert "--yes" in done.err
    assert content(made.path) == before


def test_the_quarantine_file_describes_the_range_and_holds_its_bytes(made: Made) -> None:
    path = files(made.path)["schedule_log minute"]
    start, _, end = damaging.records(path)[0]
    damaging.flip_in_body(path)
    bad = path.read_bytes()[start:end]
    assert in_process("repair", str(made.path), "--yes").code == 0
    [aside] = sorted((made.path / "quarantine").iterdir())
    line, _, data = aside.read_bytes().partition(b"\n")
    description = json.loads(line)
    assert data == bad
    assert (description["file"], description["offset"], description["stop"]) == (str(path), start, end)
    [record] = description["records"]
    assert (record["rows"], record["columns"]) == (40, "whole")
    assert len(record["sequences"]) == 40


def test_a_running_server_keeps_repair_and_rebuild_away(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data", *SMALL):
        for command in ("repair", "rebuild"):
            done = recover(command, str(tmp_path / "data"), "--yes")
            assert done.code == 1
            assert "in use" in done.err


@pytest.mark.parametrize("lost", ["schedule_log", "checkpoint", "schedule_log and checkpoint"])
def test_rebuild_brings_schedule_log_back_and_the_server_goes_on(stopped: Made, tmp_path: Path, lost: str) -> None:
    made = copy(stopped, tmp_path / "data")
    expected = status_of(copy(stopped, tmp_path / "same"))
    for name in lost.split(" and "):
        for path in sorted((made.path / name).rglob("*.log")) if name == "schedule_log" else [made.path / name]:
            path.unlink()
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["findings"]) == (0, [])
    assert (done.last["accepted"], done.last["pending"], done.last["deduplicated"]) == (397, 92, 1)
    assert status_of(made) == expected


def test_a_restored_copy_is_a_copy_again(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    files(made.path)["schedule_log minute"].unlink()
    before = [row for row in in_process("dump", str(files(stopped.path)["schedule_log minute"])).rows if "row" in row]
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    after = [row for row in in_process("dump", str(files(made.path)["schedule_log minute"])).rows if "row" in row]
    facts = ("sequence", "due_ms", "subject", "duplicate_of", "message_id", "body")
    assert [[row[name] for name in facts] for row in after] == [[row[name] for name in facts] for row in before]
    assert any(row["duplicate_of"] for row in after)


def test_rebuild_keeps_messages_whose_message_log_is_retired(made: Made) -> None:
    damaging.flip_in_columns(files(made.path)["schedule_log minute"])
    for segment in (made.path / "message_log").iterdir():
        segment.unlink()
    assert in_process("repair", str(made.path), "--yes").code == 0
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["accepted"]) == (0, made.accepted - 40)


def test_a_lost_outcome_of_a_cancel_is_recorded_again_by_the_next_start(made: Made) -> None:
    files(made.path)["dispatch_log day"].unlink()
    done = in_process("check", str(made.path), "--json")
    assert any("cancel" in finding["detail"] for finding in done.last["findings"])
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    assert status_of(made)["cancelled"] == 3
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["cancelled"], done.last["findings"]) == (0, 3, [])


@pytest.mark.parametrize("writes", range(1, 12))
def test_an_interrupted_rebuild_can_be_run_again(made: Made, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in sorted((made.path / "schedule_log").rglob("*.log")):
        path.unlink()
    replace, count = RealFileSystem.replace, 0

    def stop_at(self: RealFileSystem, source: str, target: str) -> None:
        nonlocal count
        count += 1
        if count == writes:
            raise DiskFullError("the disk is full, as a stand-in for the end of the process")
        replace(self, source, target)

    with monkeypatch.context() as patch:
        patch.setattr(RealFileSystem, "replace", stop_at)
        first = in_process("rebuild", str(made.path), "--yes")
    assert first.code == (1 if count >= writes else 0)
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["accepted"], done.last["pending"]) == (0, 397, 92)


def test_a_rebuild_of_a_healthy_directory_touches_no_schedule_file(made: Made) -> None:
    anew = ("checkpoint", "keys/runs")
    before = {name: data for name, data in content(made.path).items() if name not in anew}
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    assert {name: data for name, data in content(made.path).items() if name not in anew} == before
