"""Second reading: servers with windows of different lengths in one audit."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from pyspark.sql import SparkSession

from ops.audit.audit import Audit
from ops.audit.capture import DISPATCH_LOG, MESSAGE_LOG, SCHEDULE_LOG
from ops.audit.log_frames import Range
from store.batches import MessageBatch
from store.filesystem import RealFileSystem
from store.schedule_log import ScheduleKey, ScheduleLog, Source
from tests.ops.audit.hand_made import START_MS, HandMade


def test_each_server_has_windows_of_its_own_length(tmp_path: Path) -> None:
    paths = (HandMade(tmp_path / "a", 7, messages=[1], scheduled=[1]).write(), HandMade(tmp_path / "b", 8).write())
    schedule = ScheduleLog(RealFileSystem(), f"{paths[1]}/schedule_log", 8, 1_000)
    schedule.append(ScheduleKey(START_MS, Source.DIRECT), MessageBatch.filled(1, sequence=1, due_ms=START_MS))
    schedule.sync()
    schedule.close()
    # No frame is made of it: only files are read.
    audit = Audit(cast("SparkSession", None), RealFileSystem(), paths, lambda _line: None)
    found = audit.directories()
    captured = audit._capture(found, [DISPATCH_LOG, SCHEDULE_LOG, MESSAGE_LOG])
    assert audit._evidence(found, captured, Range(None, None)).window_ms == {7: 60_000, 8: 1_000}
