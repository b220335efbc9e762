"""`pending` and `export` beside a server that retires windows while they read."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayserver.recover.checking import survey
from delayserver.recover.checking.window_check import Visited
from delayserver.recover.reading.capture import Capture, capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.findings import Findings
from delayserver.recover.telling.export import ACCEPTED_FILE, DISPATCHED_FILE, Export
from delayserver.recover.telling.pending_on_disk import PendingOnDisk
from store.disk.filesystem import File, RealFileSystem
from store.records.batches import LedgerBatch
from store.tables.ledger import Ledger
from tests.delayserver.recover.directories import Made, copy, in_process
from tests.delayserver.recover.telling.test_missing_files import files_of_window, start_of


def goes_when_opened(monkeypatch: pytest.MonkeyPatch, trigger: Path, gone: list[Path]) -> None:
    """These files are removed as soon as a reader has opened the first one, or has it from those that are held."""
    opened = Capture.open

    def then_gone(self: Capture, path: str) -> File:
        file = opened(self, path)
        if path == str(trigger):
            for each in gone:
                each.unlink(missing_ok=True)
        return file

    monkeypatch.setattr(Capture, "open", then_gone)


def test_an_export_holds_the_windows_that_go_next(
    stopped: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pyarrow")
    made = copy(stopped, tmp_path / "data")
    schedule, dispatch = files_of_window(made, "delivered")
    goes_when_opened(monkeypatch, schedule, [schedule, dispatch])
    done = in_process("export", str(made.path), "--to", str(tmp_path / "out"), "--json")
    assert (done.code, done.err) == (0, "")
    whole = in_process("export", str(stopped.path), "--to", str(tmp_path / "whole"), "--json")
    assert [row["rows"] for row in done.rows] == [row["rows"] for row in whole.rows]


@pytest.mark.parametrize("which", ["schedule", "dispatch"])
def test_an_export_reports_windows_that_went_beyond_those_that_it_holds(
    stopped: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    pytest.importorskip("pyarrow")
    monkeypatch.setattr(survey, "WINDOWS_HELD", 0)
    made = copy(stopped, tmp_path / "data")
    schedule, dispatch = files_of_window(made, "delivered")
    gone = schedule if which == "schedule" else dispatch
    goes_when_opened(monkeypatch, schedule, [gone])
    taken = capture(RealFileSystem(), str(made.path), Findings())
    work = Export(taken, Range(), str(tmp_path))
    work.run()
    taken.close()
    assert [finding.file for finding in work.unread] == [str(gone)]
    assert "went while" in work.unread[0].detail
    taken = capture(RealFileSystem(), str(stopped.path), Findings())
    whole = Export(taken, Range(), str(tmp_path))
    whole.run()
    taken.close()
    short = ACCEPTED_FILE if which == "schedule" else DISPATCHED_FILE
    assert [name for name, rows in work.rows.items() if rows < whole.rows[name]] == [short]


@pytest.mark.parametrize("retired", [True, False])
def test_a_window_that_goes_before_it_is_read_has_nothing_pending_where_the_ledger_has_it(
    made: Made, retired: bool
) -> None:
    schedule, dispatch = files_of_window(made, "delivered")
    taken = capture(RealFileSystem(), str(made.path), Findings())
    if retired:
        ledger = Ledger.open(RealFileSystem(), str(made.path), taken.server_id)
        start = start_of(made, "delivered")
        ledger.append(LedgerBatch.filled(1, subject=1, start_ms=start, last_sequence=300, accepted=300, delivered=300))
        ledger.close()
    for path in (schedule, dispatch):
        path.unlink()
    found = PendingOnDisk(taken, Range(), None)
    found.run()
    taken.close()
    assert [finding.file for finding in found.unread] == ([] if retired else [str(schedule)])


def test_a_survey_holds_a_bounded_number_of_windows(stopped: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "WINDOWS_HELD", 1)
    taken = capture(RealFileSystem(), str(stopped.path), Findings())
    before = set(taken.files.held)
    visited: list[Visited] = []
    survey.survey(taken, Range(), visited.append)
    schedule, dispatch = files_of_window(stopped, "delivered")
    assert set(taken.files.held) - before == {str(schedule), str(dispatch)}
    taken.close()
