"""DataFrames over logs that were captured at one moment, and the range of rows of a report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from ops.audit.capture import Captured

# Neighbouring files share a task up to this size, because starting a task costs more than reading a small file.
PACK_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Range:
    """Due times [from_ms, to_ms) and subjects of a report. None or no subjects: all."""

    from_ms: int | None = None
    to_ms: int | None = None
    subjects: tuple[str, ...] = ()

    def options(self) -> dict[str, str]:
        """The range as options of our formats."""
        given = {"from": self.from_ms, "to": self.to_ms}
        options = {name: str(value) for name, value in given.items() if value is not None}
        return options | ({"subjects": ",".join(self.subjects)} if self.subjects else {})


def read_log(spark: SparkSession, captured: Captured, columns: tuple[str, ...], chosen: Range) -> DataFrame:
    """The rows of a captured log. Skips corruption, which `corrupt_ranges` reports."""
    options = chosen.options() | {"columns": ",".join(columns), "corrupt": "skip"}
    return read_captured(spark, f"delay_{captured.log}", captured, options)


def read_captured(spark: SparkSession, source: str, captured: Captured, options: dict[str, str]) -> DataFrame:
    """The rows of captured files in one of our formats."""
    common = {"capture": captured.encode(), "pack_bytes": str(PACK_BYTES)}
    return spark.read.format(source).options(**options, **common).load()


def corrupt_ranges(spark: SparkSession, captured: Iterable[Captured]) -> list[dict[str, object]]:
    """The corrupt report of captured logs: server_id, file, start, stop, detail. Checks checksums, moves no rows."""
    logs = list(captured)
    # A part is complete without its log, so one read serves the files of all logs.
    together = Captured(logs[0].log, tuple([part for one in logs for part in one.parts]))
    rows = read_captured(spark, f"delay_{together.log}", together, {"corrupt": "report"}).collect()
    return [row.asDict() for row in sorted(rows, key=lambda row: (row.file, row.start))]
