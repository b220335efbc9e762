"""A check beside a server whose retention takes windows and segments: each message counts once, what went is no finding."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from delayserver.client import Client
from delayserver.recover.checking.check import Check, Checked
from delayserver.recover.reading import capture as capturing
from delayserver.recover.reading.capture import Capture, capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.findings import Findings
from store.disk.filesystem import RealFile, RealFileSystem
from store.logs.due_windows import window_of
from store.logs.schedule_log import ScheduleKey, ScheduleSource
from store.records.batches import LedgerBatch
from store.tables.ledger import Ledger
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, copy


def taken_of(made: Made) -> Capture:
    return capture(RealFileSystem(), str(made.path), Findings())


def checked(taken: Capture, progress: Callable[[int, int], None] = lambda _done, _total: None) -> Checked:
    done = Check(taken, Range(), Findings(), lambda *_: None, progress).run()
    taken.close()
    return done


def retire(made: Made, start_ms: int, accepted: int) -> None:
    """The first step of retention, for messages that all were delivered."""
    ledger = Ledger.open(RealFileSystem(), str(made.path), int(made.server_id, 16))
    ledger.append(
        LedgerBatch.filled(
            1, subject=1, start_ms=start_ms, last_sequence=accepted + 97, accepted=accepted, delivered=accepted
        )
    )
    ledger.close()


@pytest.mark.parametrize(("before", "schedule_was_there"), [(0, True), (100, True), (301, False)])
def test_a_window_that_retention_removes_during_a_check_counts_once(
    made: Made, before: int, schedule_was_there: bool
) -> None:
    """Before: when it was read, which is after the ends of dispatch_log were taken."""
    taken = taken_of(made)
    start_ms = window_of(int(made.receipts["delivered"][13:25], 16), taken.files.window_ms)
    if before:
        retire(made, start_ms, before)
        taken.tables.read_ledger_again()
    if before != 301:
        retire(made, start_ms, 301)
    key = ScheduleKey(start_ms, ScheduleSource.DIRECT)
    Path(taken.schedule_path(key)).unlink()
    if not schedule_was_there:
        del taken.files.schedule[key]
    for found in [found for found in taken.files.dispatch if found.start_ms == start_ms]:
        Path(taken.dispatch_path(found)).unlink()
    done = checked(taken)
    assert [finding.detail for finding in done.findings] == []
    assert int(done.balance.totals()[0]) == made.accepted


# -- segments


@pytest.fixture(scope="module")
def segmented(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """One window with messages in each of several segments. Not to be changed."""
    path = tmp_path_factory.mktemp("segmented") / "data"
    with ServerProcess(path, *SMALL) as server, Client(server.address) as client:
        made = Made(path, server.server_id)
        due_ms = int(time.time() * 1000) // 60_000 * 60_000 + 3_600_000
        for _ in range(8):
            batch = client.send_columns("kept", [due_ms] * 40, [b"x" * 1000] * 40)
            client.lookup(batch.receipts()[0])  # answered after its replay
            made.accepted += len(batch.sequence)
        server.stop()
    return made


def taken_holding(segments: int, segmented: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Capture:
    """Of a copy: so many segments are held, and no other files."""
    monkeypatch.setattr(capturing, "HELD_MAX", 0)
    monkeypatch.setattr(capturing, "HELD_SEGMENTS_MAX", segments)
    return taken_of(copy(segmented, tmp_path / "data"))


def windows_bytes(taken: Capture) -> int:
    """What a check has read when it comes to message_log."""
    return sum(taken.files.schedule.values()) + sum(taken.files.dispatch.values())


def test_segments_are_held_however_many_other_files_are(
    segmented: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = taken_holding(2, segmented, tmp_path, monkeypatch)
    assert len(taken.files.message_log) > 2
    assert list(taken.files.held) == [part.path for part in taken.files.message_log[:2]]
    for path in taken.files.held:
        Path(path).unlink()
    done = checked(taken)
    assert ([finding.detail for finding in done.findings], int(done.balance.totals()[0])) == ([], segmented.accepted)


def test_messages_of_a_segment_that_went_are_not_missed(
    segmented: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = taken_holding(0, segmented, tmp_path, monkeypatch)
    first, before_log = Path(taken.files.message_log[0].path), windows_bytes(taken)
    done = checked(taken, lambda done, _total: first.unlink(missing_ok=True) if done >= before_log else None)
    assert not first.exists()
    assert ([finding.detail for finding in done.findings], int(done.balance.totals()[0])) == ([], segmented.accepted)


class Retiring(RealFileSystem):
    """Segments go when a file is opened for the n-th time."""

    def __init__(self, path: str, segments: list[str]) -> None:
        super().__init__()
        self._path = path
        self._segments = segments

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        if path == self._path and self._segments:
            Path(self._segments.pop(0)).unlink()
        return super().open(path, create=create, write=write)


def test_messages_of_a_segment_that_went_before_it_was_read_once_more_are_not_missed(
    segmented: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one goes when the window is read, the second when it is read again to be compared row by row."""
    taken = taken_holding(0, segmented, tmp_path, monkeypatch)
    [key] = taken.files.schedule
    segments = [part.path for part in taken.files.message_log[:2]]
    taken = replace(taken, fs=Retiring(taken.schedule_path(key), list(segments)))
    done = checked(taken)
    assert not any(Path(path).exists() for path in segments)
    assert ([finding.detail for finding in done.findings], int(done.balance.totals()[0])) == ([], segmented.accepted)


def test_a_window_that_goes_before_it_is_compared_row_by_row_misses_nothing(
    segmented: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = taken_holding(0, segmented, tmp_path, monkeypatch)
    before_log = windows_bytes(taken)
    [key] = taken.files.schedule

    def progress(done: int, _total: int) -> None:
        if done >= before_log:  # the segment is what makes the two differ
            Path(taken.files.message_log[0].path).unlink(missing_ok=True)
            Path(taken.schedule_path(key)).unlink(missing_ok=True)

    assert [finding.detail for finding in checked(taken, progress).findings] == []
