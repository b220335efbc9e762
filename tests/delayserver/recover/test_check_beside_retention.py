"""A check beside a server whose retention takes windows and segments: each message counts once, what went is no finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from delayserver.recover.capture import Capture, capture
from delayserver.recover.check import Check, Checked
from delayserver.recover.due_range import Range
from delayserver.recover.findings import Findings
from store.batches import LedgerBatch
from store.filesystem import RealFileSystem
from store.ledger import Ledger
from store.schedule_log import ScheduleKey, Source
from store.windows import window_of
from tests.delayserver.recover.directories import Made, copy


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
def test_a_window_that_goes_counts_once_whatever_the_ledger_had_of_it_before(
    stopped: Made, tmp_path: Path, before: int, schedule_was_there: bool
) -> None:
    """Before: when it was read, which is after the ends of dispatch_log were taken."""
    made = copy(stopped, tmp_path / "data")
    taken = taken_of(made)
    start_ms = window_of(int(made.receipts["delivered"][13:25], 16), taken.window_ms)
    if before:
        retire(made, start_ms, before)
        taken.read_ledger_again()
    if before != 301:
        retire(made, start_ms, 301)
    key = ScheduleKey(start_ms, Source.DIRECT)
    Path(taken.schedule_path(key)).unlink()
    if not schedule_was_there:
        del taken.schedule[key]
    for found in [found for found in taken.dispatch if found.start_ms == start_ms]:
        Path(taken.dispatch_path(found)).unlink()
    done = checked(taken)
    assert [finding.detail for finding in done.findings] == []
    assert int(done.balance.totals()[0]) == made.accepted
