"""A trace beside a server that retires the window."""

from __future__ import annotations

from pathlib import Path

import pytest

from delayserver.recover.reading.capture import Capture, capture
from delayserver.recover.reading.findings import Findings
from delayserver.recover.telling import trace
from store.disk.filesystem import File, RealFileSystem
from store.logs.due_windows import window_of
from store.records.batches import LedgerBatch
from store.tables.ledger import Ledger
from tests.delayserver.recover.directories import Made


@pytest.mark.parametrize("by", ["sequence", "id"])
def test_a_file_that_goes_while_a_trace_reads_it_ends_no_trace(
    made: Made, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    files = [str(path) for path in (made.path / "schedule_log").glob("*/*.log")]
    opened = Capture.open

    def then_gone(self: Capture, path: str) -> File:
        file = opened(self, path)
        if path in files:
            Path(path).unlink(missing_ok=True)
        return file

    monkeypatch.setattr(Capture, "open", then_gone)
    taken = capture(RealFileSystem(), str(made.path), Findings())
    sequence = int(made.receipts["pending"][-12:], 16)
    wanted = trace.TracedMessage(sequence=sequence) if by == "sequence" else trace.TracedMessage(message_id="pending")
    [life] = trace.Trace(taken).run(wanted)
    taken.close()
    assert {item.what for item in life.evidence} == {"accepted"}


def test_a_message_whose_window_is_retired_meanwhile_is_not_pending(made: Made) -> None:
    sequence, due_ms = int(made.receipts["delivered"][-12:], 16), int(made.receipts["delivered"][13:25], 16)
    taken = capture(RealFileSystem(), str(made.path), Findings())
    ledger = Ledger.open(RealFileSystem(), str(made.path), taken.server_id)
    ledger.append(
        LedgerBatch.filled(
            1,
            subject=1,
            start_ms=window_of(due_ms, taken.files.window_ms),
            last_sequence=1 << 40,
            accepted=1,
            delivered=1,
        )
    )
    ledger.close()
    for key in taken.files.dispatch:
        Path(taken.dispatch_path(key)).unlink(missing_ok=True)
    [life] = trace.Trace(taken).run(trace.TracedMessage(sequence=sequence))
    taken.close()
    assert life.state == "retired"
