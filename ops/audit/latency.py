"""The latency report: how late, for whom, when, and through which stage. Figures only; pages are drawn elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from delayserver.protocol.outcomes import OUTCOME_LABELS, Outcome
from ops.audit.capture import Captured
from ops.audit.directories import with_names
from ops.audit.histogram import ERROR, POINTS, percentiles
from ops.audit.latency_cells import MINUTE_MS, STAGES, Range, corrupt_ranges, latency_cells
from ops.audit.outages import find_outages
from store.names import Names

HOUR_MS = 3_600_000
WORST_ROWS = 10
# Two days of minutes; a curve with more points says no more on a screen.
POINTS_MAX = 2880
# A JSON list is for reading; more groups than this belong into a table (`--out report.parquet`).
BY_ROWS_MAX = 100_000
DIMENSIONS = ("subject", "broker_group", "minute", "hour", "server_id")


@dataclass(frozen=True, slots=True)
class LatencyQuestion:
    """What is asked: the range, the dimensions of `by`, and the objective: `share` of deliveries within `slo_ms`."""

    chosen: Range
    by: tuple[str, ...] = ("subject",)
    slo_ms: float = 100.0
    share: float = 0.999


class LatencyReport:
    """The cells of one audit, kept by Spark until `close`, and the figures made of them."""

    def __init__(
        self, spark: SparkSession, dispatch: Captured, names: Mapping[int, Names], question: LatencyQuestion
    ) -> None:
        self._spark = spark
        self._dispatch = dispatch
        self._question = question
        cells = latency_cells(spark, dispatch, question.chosen, round(question.slo_ms * 1000))
        named = with_names(spark, cells, dict(names)).withColumns(
            {
                "hour_ms": F.col("minute_ms") - F.pmod(F.col("minute_ms"), F.lit(HOUR_MS)),
                "server_id": F.lower(F.lpad(F.hex("server"), 12, "0")),
            }
        )
        self._cells = named.persist(StorageLevel.MEMORY_AND_DISK)
        self._measured = self._cells.where(F.col("max_us").isNotNull())
        self._deliveries = self._measured.where(~F.col("internal"))

    def close(self) -> None:
        """Give the memory back."""
        self._cells.unpersist()

    def to_map(self) -> dict[str, Any]:
        """The report as JSON has it."""
        head = self._headline(self._deliveries)
        return {
            **head,
            "percentile_error": ERROR,
            "slo": self._slo(head),
            "mean_ms": self._mean_ms(),
            "stages_ms": self._stages(),
            "attempts": self._attempts(),
            "outcomes": self._outcomes(),
            "all_deliveries": self._headline(self._measured),
            "by": self.by(self._question.by),
            "worst_minutes": self._worst("minute"),
            "worst_subjects": self._worst("subject"),
            "thundering_minutes": self._thundering(),
            "outages": find_outages(self._measured),
            "corrupt": corrupt_ranges(self._spark, [self._dispatch]),
        }

    def _headline(self, cells: DataFrame) -> dict[str, Any]:
        row = percentiles(cells, ()).first()
        return _figures(row.asDict()) if row is not None else _figures({})

    def _slo(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The share within the target, and how much of the error budget the others used up."""
        missed = head["count"] - head["within"]
        allowed = head["count"] * (1 - self._question.share)
        return {
            "target_ms": self._question.slo_ms,
            "objective": self._question.share,
            "attained": head["within"] / head["count"] if head["count"] else None,
            "missed": missed,
            "budget_used": missed / allowed if allowed else None,
        }

    def _mean_ms(self) -> float | None:
        row = self._deliveries.agg(F.sum("sum_us").alias("sum"), F.sum("count").alias("count")).first()
        return row["sum"] / row["count"] / 1000 if row is not None and row["count"] else None

    def _stages(self) -> dict[str, Any]:
        """Mean and maximum of each stage; the means of the first four add up to the mean lateness."""
        wanted = [F.sum("count").alias("count")]
        for stage in STAGES:
            wanted += [F.sum(f"{stage}_sum_us").alias(f"{stage}_sum"), F.max(f"{stage}_max_us").alias(f"{stage}_max")]
        row = self._deliveries.agg(*wanted).first()
        if row is None or not row["count"]:
            return {}
        count = row["count"]
        return {
            stage: {"mean": row[f"{stage}_sum"] / count / 1000, "max": row[f"{stage}_max"] / 1000} for stage in STAGES
        }

    def _attempts(self) -> dict[str, Any]:
        rows = self._deliveries.groupBy("attempts").agg(F.sum("count").alias("count")).orderBy("attempts").collect()
        return {
            "by_count": {str(row["attempts"]): row["count"] for row in rows},
            "retried": sum([row["count"] for row in rows if row["attempts"] > 1]),
        }

    def _outcomes(self) -> dict[str, int]:
        rows = (
            self._cells.where(~F.col("internal")).groupBy("outcome_code").agg(F.sum("count").alias("count")).collect()
        )
        counts = {row["outcome_code"]: row["count"] for row in rows}
        ends = (Outcome.DELIVERED, Outcome.CANCELLED, Outcome.DEAD_LETTERED, Outcome.EXPIRED, Outcome.DEDUPLICATED)
        return {OUTCOME_LABELS[code]: counts.get(int(code), 0) for code in ends}

    def by_frame(self, dimensions: Sequence[str]) -> DataFrame:
        """One row for each combination of the dimensions, with the figures in microseconds."""
        keys = [f"{name}_ms" if name in ("minute", "hour") else name for name in dimensions]
        return percentiles(self._deliveries, keys).orderBy(*keys)

    def by(self, dimensions: Sequence[str]) -> list[dict[str, Any]]:
        """`by_frame` as JSON has it. Raises ValueError where that would be too long to read."""
        if not dimensions:
            return []
        rows = self.by_frame(dimensions).limit(BY_ROWS_MAX + 1).collect()
        if len(rows) > BY_ROWS_MAX:
            raise ValueError(
                f"--by {','.join(dimensions)} gives more than {BY_ROWS_MAX} groups: write a table with --out "
                "report.parquet, or choose fewer dimensions"
            )
        return [_group(row.asDict(), dimensions) | _figures(row.asDict()) for row in rows]

    def _worst(self, dimension: str) -> list[dict[str, Any]]:
        key = "minute_ms" if dimension == "minute" else dimension
        rows = percentiles(self._deliveries, [key]).orderBy(F.desc("p99_us"), F.desc("max_us"), key).limit(WORST_ROWS)
        return [_group(row.asDict(), [dimension]) | _figures(row.asDict()) for row in rows.collect()]

    def _thundering(self) -> list[dict[str, Any]]:
        """The minutes with most deliveries due, and how late they were."""
        rows = percentiles(self._deliveries, ["minute_ms"]).orderBy(F.desc("count"), "minute_ms").limit(WORST_ROWS)
        return [_group(row.asDict(), ["minute"]) | _figures(row.asDict()) for row in rows.collect()]

    def over_time(self) -> tuple[str, list[dict[str, Any]]]:
        """("minute" or "hour", figures by it): the finer one that can still be drawn."""
        minutes = self._deliveries.select("minute_ms").distinct().count()
        dimension = "minute" if minutes <= POINTS_MAX else "hour"
        return dimension, self.by([dimension])

    def distribution(self) -> list[dict[str, int]]:
        """Count and largest lateness (microseconds) of each bucket, ascending: the CDF."""
        rows = self._deliveries.groupBy("bucket").agg(F.sum("count").alias("count"), F.max("max_us").alias("max_us"))
        return [row.asDict() for row in rows.orderBy("bucket").collect()]


def instant(ms: int) -> str:
    """Milliseconds since 1970 as ISO 8601 in UTC, to the minute."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _group(row: Mapping[str, Any], dimensions: Sequence[str]) -> dict[str, Any]:
    return {name: instant(row[f"{name}_ms"]) if name in ("minute", "hour") else row[name] for name in dimensions}


def _figures(row: Mapping[str, Any]) -> dict[str, Any]:
    points = {name: row.get(f"{name}_us") for name in POINTS} | {"max": row.get("max_us")}
    return {
        "count": row.get("count") or 0,
        "early": row.get("early") or 0,
        "within": row.get("within") or 0,
        "lateness_ms": {name: None if value is None else value / 1000 for name, value in points.items()},
    }


assert HOUR_MS % MINUTE_MS == 0
