"""What stands behind a placeholder is known again."""

from __future__ import annotations

import numpy as np

from delayserver.recover.checking.log_check import NOTHING_KEPT, LogCheck
from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.due_range import Range
from delayserver.recover.reading.file_read import Reader
from delayserver.recover.reading.findings import Findings
from delayserver.recover.reading.outcomes_of_file import OutcomeRows
from delayserver.recover.reading.window_units import Units
from store.disk.filesystem import RealFileSystem
from store.logs.message_log import MessageLog
from store.records.batches import MessageBatch, NameBatch
from tests.delayserver.recover.directories import Made


def test_a_placeholder_at_the_end_of_a_segment_hides_no_message_of_the_next_segment(made: Made) -> None:
    for path in (made.path / "message_log").iterdir():
        path.unlink()
    log = MessageLog.open(RealFileSystem(), f"{made.path}/message_log", int(made.server_id, 16), segment_bytes=128)
    for sequence in (1000, 0, 2000, 0):
        if sequence:
            log.append([MessageBatch.filled(2, sequence=np.arange(sequence, sequence + 2), due_ms=1, subject=1)])
        else:
            log.append([NameBatch.filled(1, names=b"aside", names_length=5)])
    log.sync()
    assert len(list((made.path / "message_log").iterdir())) > 2
    log.close()
    taken = capture(RealFileSystem(), str(made.path), Findings())
    check = LogCheck(Reader(taken), Units(taken), OutcomeRows.empty(), Range())
    check.run()
    taken.close()
    assert check.gaps == [(1001, 2000), (2001, NOTHING_KEPT)]
