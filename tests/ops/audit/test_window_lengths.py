"""Servers with windows of different lengths in one audit."""

from __future__ import annotations

from pathlib import Path

from tests.ops.audit.needs_spark import require_pyspark

require_pyspark()

from ops.audit.capture import DISPATCH_LOG, SCHEDULE_LOG, capture_all  # noqa: E402 - behind the check that Spark is there
from store.disk.filesystem import RealFileSystem  # noqa: E402
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource  # noqa: E402
from store.records.batches import MessageBatch  # noqa: E402
from store.tables import checkpoint as checkpoint_file  # noqa: E402
from store.tables.checkpoint import Checkpoint  # noqa: E402
from tests.ops.audit.evidence import evidence_of  # noqa: E402
from tests.ops.audit.hand_made import START_MS, HandMade  # noqa: E402


def test_each_server_has_windows_of_its_own_length(tmp_path: Path) -> None:
    paths = (HandMade(tmp_path / "a", 7, messages=[1], scheduled=[1]).write(), HandMade(tmp_path / "b", 8).write())
    schedule = ScheduleLog(RealFileSystem(), f"{paths[1]}/schedule_log", 8, 1_000)
    schedule.append(ScheduleKey(START_MS, ScheduleSource.DIRECT), MessageBatch.filled(1, sequence=1, due_ms=START_MS))
    schedule.sync()
    schedule.close()
    assert evidence_of(*paths).window_ms == {7: 60_000, 8: 1_000}


def test_the_checkpoint_has_the_length_of_windows_that_are_all_retired(tmp_path: Path) -> None:
    path = HandMade(
        tmp_path / "data", messages=[1], retired={"accepted": 1, "delivered": 1, "last_sequence": 1}
    ).write()
    checkpoint_file.write(RealFileSystem(), f"{path}/checkpoint", Checkpoint(7, window_ms=1_000))
    captured = capture_all(RealFileSystem(), [path], [DISPATCH_LOG, SCHEDULE_LOG])
    assert (captured[SCHEDULE_LOG].parts, captured[DISPATCH_LOG].parts) == ((), ())
    assert evidence_of(path).window_ms == {7: 1_000}
