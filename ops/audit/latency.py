"""The latency report: lateness by subject, group, time and stage. Computes figures only; `page` draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from ops.audit.capture import Captured
from ops.audit.histogram import ERROR, POINTS, percentiles
from ops.audit.latency_cells import BY, HOUR_MS, KEYS, MINUTE, SUBJECT
from ops.audit.latency_source import read_cells
from ops.audit.latency_totals import LatencyTotals, read_totals
from ops.audit.log_frames import Range
from ops.audit.outages import find_outages

WORST_ROWS = 10
# Points of a curve, two days of minutes. More would not be visible on a screen.
POINTS_MAX = 2880
# Groups in a JSON list; more belong in a table (`--out report.parquet`).
BY_ROWS_MAX = 100_000
# The kinds of cells that exist for every question. Hours are computed from minutes.
_KINDS: dict[tuple[str, ...], str] = {("subject",): SUBJECT, ("minute",): MINUTE, ("hour",): MINUTE}
_WORST, _MOST = ("p99_us", "max_us"), ("count",)
DIMENSIONS = ("subject", "broker_group", "minute", "hour", "server_id")


@dataclass(frozen=True, slots=True)
class LatencyQuestion:
    """The question: the range, the dimensions `by`, and the objective, a `share` of deliveries within `slo_ms`."""

    chosen: Range
    by: tuple[str, ...] = ("subject",)
    slo_ms: float = 100.0
    share: float = 0.999


class LatencyReport:
    """The cells of one audit, which Spark keeps until `close`, and the figures computed from them."""

    def __init__(self, spark: SparkSession, dispatch: Captured, question: LatencyQuestion) -> None:
        self._question = question
        by = () if question.by in _KINDS else question.by
        cells = read_cells(spark, dispatch, question.chosen, round(question.slo_ms * 1000), by)
        self._cells = cells.persist(StorageLevel.MEMORY_AND_DISK)
        self._groups: dict[tuple[str, ...], DataFrame] = {}

    def close(self) -> None:
        """Releases the cells."""
        for frame in (self._cells, *self._groups.values()):
            frame.unpersist()

    @cached_property
    def _totals(self) -> LatencyTotals:
        """The totals, summed up on the driver after one query."""
        return read_totals(self._cells)

    def to_map(self, *, listed: bool = True) -> dict[str, Any]:
        """The JSON report. Without `listed` it omits the groups of `by`, which may be too many."""
        totals, by = self._totals, self._question.by
        head = _figures(totals.headline(internal_too=False))
        return {
            **head,
            "percentile_error": ERROR,
            "slo": self._slo(head),
            "mean_ms": totals.mean_ms(),
            "stages_ms": totals.stages_ms(),
            "attempts": totals.attempts(),
            "outcomes": totals.outcomes(),
            "all_deliveries": _figures(totals.headline(internal_too=True)),
            "by": self.by(by) if listed else [],
            "worst_minutes": self._first("minute", _WORST),
            "worst_subjects": self._first("subject", _WORST),
            "thundering_minutes": self._first("minute", _MOST),
            "outages": find_outages(totals.trouble),
            "corrupt": totals.corrupt_ranges(),
        }

    def _slo(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The share within the target, and the used part of the error budget."""
        missed = head["count"] - head["within"]
        allowed = head["count"] * (1 - self._question.share)
        return {
            "target_ms": self._question.slo_ms,
            "objective": self._question.share,
            "attained": head["within"] / head["count"] if head["count"] else None,
            "missed": missed,
            "budget_used": missed / allowed if allowed else None,
        }

    def by_frame(self, dimensions: Sequence[str]) -> DataFrame:
        """One row for each combination of the dimensions, with the figures in microseconds. `dimensions` must be those
        of the question, or one of subject, minute and hour."""
        keys = [KEYS.get(name, name) for name in dimensions]
        return self._grouped(dimensions).orderBy(*keys)

    def _grouped(self, dimensions: Sequence[str]) -> DataFrame:
        """Figures by group, kept because most are used more than once."""
        wanted = tuple(dimensions)
        if wanted not in self._groups:
            kind = _KINDS.get(wanted, BY)
            assert kind != BY or wanted == self._question.by, f"{wanted} were not counted"
            cells = self._cells.where(F.col("kind") == kind)
            if wanted == ("hour",) and kind == MINUTE:
                cells = cells.withColumn("hour_ms", F.col("minute_ms") - F.pmod(F.col("minute_ms"), F.lit(HOUR_MS)))
            frame = percentiles(cells, [KEYS.get(name, name) for name in wanted])
            self._groups[wanted] = frame.persist(StorageLevel.MEMORY_AND_DISK)
        return self._groups[wanted]

    def by(self, dimensions: Sequence[str]) -> list[dict[str, Any]]:
        """The rows of `by_frame` for JSON. Raises ValueError for more than BY_ROWS_MAX rows."""
        if not dimensions:
            return []
        rows = self.by_frame(dimensions).limit(BY_ROWS_MAX + 1).collect()
        if len(rows) > BY_ROWS_MAX:
            raise ValueError(
                f"--by {','.join(dimensions)} gives more than {BY_ROWS_MAX} groups: write a table with --out "
                "report.parquet, or choose fewer dimensions"
            )
        return [_group(row.asDict(), dimensions) | _figures(row.asDict()) for row in rows]

    def _first(self, dimension: str, order: tuple[str, ...]) -> list[dict[str, Any]]:
        """The minutes or subjects with the largest values in these columns, largest first."""
        ordered = self._grouped((dimension,)).orderBy(*[F.desc(name) for name in order], KEYS[dimension])
        rows = ordered.limit(WORST_ROWS).collect()
        return [_group(row.asDict(), [dimension]) | _figures(row.asDict()) for row in rows]

    def over_time(self) -> tuple[str, list[dict[str, Any]]]:
        """("minute" or "hour", figures by it). Minutes, unless there are more than POINTS_MAX."""
        dimension = "minute" if self._grouped(("minute",)).count() <= POINTS_MAX else "hour"
        return dimension, self.by([dimension])

    def distribution(self) -> list[dict[str, int]]:
        """Count and largest lateness (microseconds) of each bucket, ascending, for the CDF."""
        return [{"count": one.count, "max_us": one.max_us} for one in self._totals.buckets(internal_too=False)]


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
