"""The formats read what the files hold: columns asked for, ranges, filters, parts, torn tails, damage, growth."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.ops.audit.needs_spark import require_pyspark

pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default")]
require_pyspark()

from delayserver.protocol.outcomes import Outcome  # noqa: E402 - behind the check that Spark is there
from ops.audit.bench_data import SUBJECTS, write_directory  # noqa: E402
from ops.audit.capture import DISPATCH_LOG, capture  # noqa: E402
from store.disk.filesystem import RealFileSystem  # noqa: E402
from tests.ops.audit.hand_made import START_MS, HandMade  # noqa: E402

ROWS = 40_000


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("sources") / "data")
    return write_directory(RealFileSystem(), path, ROWS).path


def _hand_made(tmp_path: Path, rows: int = 3) -> tuple[str, Path]:
    outcomes = [(sequence, Outcome.DELIVERED, 500) for sequence in range(1, rows + 1)]
    path = HandMade(tmp_path / "data", messages=[1], scheduled=[1], outcomes=outcomes).write()
    (file,) = Path(path, "dispatch_log").glob("*/*.log")
    return path, file


def test_a_log_is_read_with_names_and_without_bodies(spark: Any, written: str) -> None:
    frame = spark.read.format("delay_schedule_log").load(written)
    assert not {"body", "properties", "message_id"} & set(frame.columns)
    row = frame.where("sequence = 1").first().asDict()
    assert row["subject"].startswith("orders.") and row["server_id"] == "0000000a0d17"
    assert frame.count() == ROWS
    outcomes = spark.read.format("delay_dispatch_log").load(written).groupBy("outcome").count().collect()
    assert dict(outcomes).keys() == {"delivered", "cancelled"}
    assert sum([count for _, count in outcomes]) == ROWS


def test_columns_come_by_option_or_by_a_narrower_schema(spark: Any, written: str) -> None:
    by_option = spark.read.format("delay_message_log").option("columns", "sequence, body").load(written)
    assert by_option.columns == ["sequence", "body"]
    assert by_option.orderBy("sequence").first()["body"] == bytes(100)
    by_schema = spark.read.format("delay_message_log").schema("due_ms long, subject string").load(written)
    assert by_schema.columns == ["due_ms", "subject"]
    assert by_schema.select("subject").distinct().count() == SUBJECTS
    with pytest.raises(Exception, match="has no column 'colour'"):
        spark.read.format("delay_message_log").option("columns", "colour").load(written).count()


def test_range_and_subjects_cut_rows_and_files(spark: Any, written: str) -> None:
    rows = spark.read.format("delay_dispatch_log").option("columns", "due_ms,subject").load(written).collect()
    middle = sorted([row["due_ms"] for row in rows])[ROWS // 2]
    wanted = [row for row in rows if row["due_ms"] >= middle and row["subject"] in ("orders.01", "orders.02")]
    options = {"from": str(middle), "subjects": "orders.01, orders.02", "columns": "sequence"}
    assert spark.read.format("delay_dispatch_log").options(**options).load(written).count() == len(wanted)


def test_filters_are_pushed_where_the_session_allows_it_and_agree_where_not(spark: Any, written: str) -> None:
    def count() -> int:
        frame = spark.read.format("delay_dispatch_log").option("columns", "due_ms,subject,sequence").load(written)
        chosen = (
            (frame.due_ms >= START_MS + 61_000) & (frame.due_ms < START_MS + 90_000) & (frame.subject == "orders.03")
        )
        return int(frame.where(chosen).count())

    plain = count()
    assert 0 < plain < ROWS
    name = "spark.sql.python.filterPushdown.enabled"
    spark.conf.set(name, "true")
    try:
        assert count() == plain
    finally:
        spark.conf.unset(name)


def test_a_large_file_is_read_in_parts_and_small_ones_one_by_one(spark: Any, written: str) -> None:
    whole = spark.read.format("delay_message_log").option("columns", "sequence")
    parts = whole.option("part_bytes", "1MB").load(written)
    assert parts.rdd.getNumPartitions() >= 3
    assert parts.count() == parts.distinct().count() == ROWS
    files = len(capture(RealFileSystem(), [written], DISPATCH_LOG).parts)
    assert spark.read.format("delay_dispatch_log").load(written).rdd.getNumPartitions() == files > 1


def test_several_servers_are_read_together(spark: Any, written: str, tmp_path: Path) -> None:
    other, _ = _hand_made(tmp_path)
    frame = spark.read.format("delay_dispatch_log").load([written, other])
    assert {row["server_id"]: row["count"] for row in frame.groupBy("server_id").count().collect()} == {
        "0000000a0d17": ROWS, f"{7:012x}": 3,
    }  # fmt: skip


def test_a_torn_tail_is_the_end(spark: Any, tmp_path: Path) -> None:
    path, file = _hand_made(tmp_path)
    file.write_bytes(file.read_bytes()[:-20])
    assert spark.read.format("delay_dispatch_log").load(path).count() == 2
    assert spark.read.format("delay_dispatch_log").option("corrupt", "report").load(path).count() == 0


def test_damage_fails_is_skipped_or_reported_by_option(spark: Any, tmp_path: Path) -> None:
    path, file = _hand_made(tmp_path)
    data = bytearray(file.read_bytes())
    size = (len(data) - 64) // 3
    last = 64 + 2 * size
    data[last + 40 : last + 48] = last.to_bytes(8, "little")
    import google_crc32c

    data[last + 4 : last + 8] = google_crc32c.value(bytes(data[last + 8 : last + 64])).to_bytes(4, "little")
    data[64 + 100] ^= 1
    file.write_bytes(data)
    read = spark.read.format("delay_dispatch_log")
    with pytest.raises(Exception, match="corrupt at offset 64"):
        read.load(path).collect()
    assert [row["sequence"] for row in read.option("corrupt", "skip").load(path).orderBy("sequence").collect()] == [
        2,
        3,
    ]
    (damage,) = read.option("corrupt", "report").load(path).collect()
    assert (damage["file"], damage["start"], damage["stop"]) == (str(file), 64, 64 + size)


def test_a_stream_follows_the_file_with_each_row_once(spark: Any, tmp_path: Path) -> None:
    path, file = _hand_made(tmp_path)
    whole = file.read_bytes()
    size = (len(whole) - 64) // 3
    target, progress = str(tmp_path / "rows"), str(tmp_path / "progress")

    def follow() -> list[int]:
        stream = spark.readStream.format("delay_dispatch_log").load(path).select("sequence")
        query = stream.writeStream.format("parquet").option("checkpointLocation", progress).trigger(availableNow=True)
        query.start(target).awaitTermination(120)
        return sorted([row["sequence"] for row in spark.read.parquet(target).collect()])

    file.write_bytes(whole[: 64 + size + 30])  # one record, and the beginning of the next
    assert follow() == [1]
    file.write_bytes(whole)
    assert follow() == [1, 2, 3]
    assert follow() == [1, 2, 3]
