"""Files that are gone hide messages and outcomes from `pending`, `export` and `redispatch`: those say so."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.protocol.outcomes import Outcome
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.findings import Findings
from store.disk.filesystem import RealFileSystem
from store.logs.dispatch_log import DispatchKey
from store.logs.due_windows import window_of
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import LedgerBatch
from store.tables import checkpoint as checkpoint_file
from store.tables.ledger import Ledger
from tests.delayserver.recover import damaging
from tests.delayserver.recover.checking.test_corruption_table import files
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, in_process

LONG_AGO = ("--from", "2020-01-01T00:00Z", "--to", "2020-01-02T00:00Z")
EVERYTHING = ("--from", "2020-01-01T00:00Z", "--to", "2100-01-01T00:00Z")


def files_of_window(made: Made, name: str) -> tuple[Path, Path]:
    """The schedule file and the dispatch file of the window of a message."""
    taken = capture(RealFileSystem(), str(made.path), Findings())
    start = start_of(made, name, taken.files.window_ms)
    schedule, dispatch = taken.schedule_path(ScheduleKey(start, ScheduleSource.DIRECT)), DispatchKey(start, False)
    taken.close()
    return Path(schedule), Path(taken.dispatch_path(dispatch))


def start_of(made: Made, name: str, window_ms: int = 60_000) -> int:
    return window_of(int(made.receipts[name].split("-")[1], 16), window_ms)


@pytest.fixture
def retired(made: Made) -> Made:
    """A clean directory as it is when retention has taken all of message_log."""
    fs = RealFileSystem()
    found = checkpoint_file.read(fs, f"{made.path}/checkpoint")
    assert found is not None
    shutil.rmtree(made.path / "message_log")
    log = MessageLog.open(
        fs, f"{made.path}/message_log", int(made.server_id, 16), segment_bytes=65536, valid_to=found.replay_offset
    )
    checkpoint_file.write(fs, f"{made.path}/checkpoint", replace(found, replay_offset=log.end))
    log.close()
    assert in_process("check", str(made.path)).code == 0
    return made


@pytest.mark.parametrize("command", ["pending", "export"])
@pytest.mark.parametrize("missing", ["schedule", "dispatch"])
def test_a_file_that_is_missing_is_named(retired: Made, tmp_path: Path, command: str, missing: str) -> None:
    target = ["--to", str(tmp_path / "out")] if command == "export" else []
    assert in_process(command, str(retired.path), *target).code == 0
    path = files_of_window(retired, "delivered")[missing == "dispatch"]
    path.unlink()
    done = in_process(command, str(retired.path), *target)
    assert (done.code, done.err.count("\n")) == (1, 1)
    assert str(path) in done.err and "is missing" in done.err
    elsewhere = in_process(command, str(retired.path), *target, *LONG_AGO)
    assert (elsewhere.code, elsewhere.err) == (0, "")


@pytest.mark.parametrize("missing", ["schedule", "dispatch", "both"])
def test_a_redispatch_names_a_missing_file_and_counts_its_hidden_messages(retired: Made, missing: str) -> None:
    schedule, dispatch = files_of_window(retired, "delivered")
    gone = {"schedule": [schedule], "dispatch": [dispatch], "both": [schedule, dispatch]}[missing]
    # The one that expired is in the same file, unless a minute began meanwhile; without outcomes it may be a delivered one.
    same_window = start_of(retired, "expired") == start_of(retired, "delivered")
    for path in gone:
        path.unlink()
    done = in_process("redispatch", str(retired.path), *EVERYTHING, "--dry-run", "--json")
    assert (done.code, done.last["messages"]) == (1, 0)
    assert done.last["unreadable"] == 300 + (missing == "dispatch" and same_window)
    assert [damage["file"] for damage in done.last["damages"]] == [str(path) for path in gone]
    elsewhere = in_process("redispatch", str(retired.path), *LONG_AGO, "--dry-run", "--json")
    assert (elsewhere.code, elsewhere.last["damages"]) == (0, [])


def test_files_that_went_with_their_window_are_not_missed(retired: Made) -> None:
    ledger = Ledger.open(RealFileSystem(), str(retired.path), int(retired.server_id, 16))
    start = start_of(retired, "delivered")
    ledger.append(LedgerBatch.filled(1, subject=1, start_ms=start, last_sequence=300, accepted=300, delivered=300))
    ledger.close()
    for path in files_of_window(retired, "delivered"):
        path.unlink()
    assert in_process("pending", str(retired.path), "--json").code == 0
    assert in_process("redispatch", str(retired.path), *EVERYTHING, "--dry-run").code == 0


CUTS = {
    "missing": damaging.remove,
    "cut to the header": damaging.cut_to_header,
    "cut to nothing": damaging.cut_to_nothing,
}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("kind", ["dispatch_log minute", "schedule_log minute", "schedule_log day"])
def test_every_check_names_a_file_whose_messages_a_start_holds_back_until_a_rebuild(
    made: Made, kind: str, cut: str
) -> None:
    path = files(made.path)[kind]
    CUTS[cut](path)
    for _ in range(2):
        with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
            assert any(str(path) in text for text in client.status()["corruption"])
            if kind != "schedule_log minute":
                assert client.lookup(made.receipts["cancelled"]).outcome == Outcome.CANCELLED
            server.stop()
        checked = in_process("check", str(made.path), "--json")
        assert checked.code == 1 and "missing" in checked.kinds()
        assert str(path) in {finding["file"] for finding in checked.last["findings"]}
        assert in_process("repair", str(made.path), "--yes").code == 0
    assert in_process("pending", str(made.path)).code == 1, "it names what hides messages"
    done = in_process("rebuild", str(made.path), "--yes")
    assert done.code == 0 and ("lost for good" in done.out) == (kind == "dispatch_log minute")
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.kinds(), after.last["accepted"]) == (0, [], made.accepted), after.last["findings"]
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        assert client.status()["corruption"] == []
        assert client.lookup(made.receipts["cancelled"]).outcome == Outcome.CANCELLED
        server.stop()


def test_a_start_restores_cancels_of_a_day_and_holds_nothing_back(made: Made) -> None:
    files(made.path)["dispatch_log day"].unlink()
    with ServerProcess(made.path, *SMALL) as server, Client(server.address) as client:
        assert client.lookup(made.receipts["far_cancelled"]).outcome == Outcome.CANCELLED
        assert client.cancel(made.receipts["far"]).outcome == Outcome.CANCELLED
        server.stop()
    after = in_process("check", str(made.path), "--json")
    assert (after.code, after.kinds()) == (0, []), after.last["findings"]
