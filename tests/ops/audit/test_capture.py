"""What a capture takes of a directory that changes under it, and of small files that are damaged. No Spark runs."""

from __future__ import annotations

from pathlib import Path

from tests.ops.audit.needs_spark import require_pyspark

require_pyspark()

from ops.audit.capture import BROKER_LOG, DISPATCH_LOG, SCHEDULE_LOG, capture, capture_all  # noqa: E402
from store.disk.filesystem import RealFile, RealFileSystem  # noqa: E402
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource  # noqa: E402
from store.records.batches import LedgerBatch, MessageBatch  # noqa: E402
from store.records.file_header import FILE_HEADER_BYTES  # noqa: E402
from store.tables.ledger import Ledger  # noqa: E402
from tests.ops.audit.evidence import evidence_of  # noqa: E402
from tests.ops.audit.hand_made import START_MS, WINDOW_MS, HandMade  # noqa: E402


class DrainsTheDay(RealFileSystem):
    """A server drains the day between the listing of its file and the look at it."""

    def open(self, path: str, *, create: bool = False, write: bool = True) -> RealFile:
        if path.endswith("/day.log"):
            Path(path).unlink()
        return super().open(path, create=create, write=write)


class Listed(RealFileSystem):
    """Notes the folders in the order in which they are listed."""

    def __init__(self) -> None:
        super().__init__()
        self.listed: list[str] = []

    def listdir(self, path: str) -> list[str]:
        self.listed.append(path)
        return super().listdir(path)


def test_a_file_that_goes_while_it_is_captured_counts_as_vanished(tmp_path: Path) -> None:
    path = HandMade(tmp_path / "data", messages=[1]).write()
    schedule = ScheduleLog(RealFileSystem(), f"{path}/schedule_log", 7, WINDOW_MS)
    schedule.append(ScheduleKey(START_MS, ScheduleSource.DAY), MessageBatch.filled(1, sequence=1, due_ms=START_MS))
    schedule.sync()
    schedule.close()
    captured = capture(DrainsTheDay(), [path], SCHEDULE_LOG)
    assert captured.parts == ()
    assert [Path(gone).name for gone in captured.vanished(RealFileSystem())] == ["day.log"]


def test_the_store_of_a_broker_is_captured_behind_the_recorded_outcomes(tmp_path: Path) -> None:
    path = HandMade(tmp_path / "data").write()
    fs = Listed()
    capture_all(fs, [path], [BROKER_LOG, DISPATCH_LOG])
    assert fs.listed.index(f"{path}/dispatch_log") < fs.listed.index(f"{path}/broker/store")


def test_a_damaged_ledger_is_corrupt(tmp_path: Path) -> None:
    counts = {"accepted": 9, "delivered": 9, "last_sequence": 9}
    path = HandMade(tmp_path / "data", retired=counts).write()
    ledger = Ledger.open(RealFileSystem(), path, 7)
    ledger.append(LedgerBatch.filled(1, subject=1, start_ms=START_MS + WINDOW_MS, **counts))
    ledger.close()
    assert evidence_of(path).damages == ()
    file = Path(path, "ledger.log")
    data = bytearray(file.read_bytes())
    data[FILE_HEADER_BYTES + 70] ^= 0xFF  # within the first record, which the second calls durable
    file.write_bytes(data)
    evidence = evidence_of(path)
    assert [len(retired.rows) for retired in evidence.retired] == [1]
    assert [(row["server_id"], row["file"], row["start"]) for row in evidence.damages] == [
        (f"{7:012x}", str(file), FILE_HEADER_BYTES)
    ]


def test_a_damaged_checkpoint_is_corrupt(tmp_path: Path) -> None:
    path = HandMade(tmp_path / "data", messages=[1], scheduled=[1]).write()
    file = Path(path, "checkpoint")
    data = bytearray(file.read_bytes())
    data[-1] ^= 0xFF
    file.write_bytes(data)
    [row] = evidence_of(path).damages
    assert (row["file"], row["stop"], row["detail"]) == (str(file), len(data), "body checksum or length")
