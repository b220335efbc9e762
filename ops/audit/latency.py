"""The latency report: lateness by subject, group, time and stage. Computes figures only; `page` draws them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from typing import Any, Self

import pyarrow as pa

from ops.audit.capture import Captured
from ops.audit.directories import CorruptRow
from ops.audit.engines import Engine
from ops.audit.histogram import ERROR, POINTS
from ops.audit.latency_cells import BY, KEYS, MINUTE, SUBJECT
from ops.audit.latency_reading import CellQuestion, read_cells
from ops.audit.latency_store import Cells, Groups
from ops.audit.latency_totals import LatencyTotals
from ops.audit.log_frames import Range
from ops.audit.outages import find_outages, instant_of_us
from ops.audit.takeovers import Takeover

WORST_ROWS = 10
# Points of a curve, two days of minutes. More would not be visible on a screen.
POINTS_MAX = 2880
# Groups in a JSON list; more belong in a table (`--out report.parquet`).
BY_ROWS_MAX = 100_000
# The kinds of cells that exist for every question. Hours are computed from minutes.
_KINDS: dict[tuple[str, ...], str] = {("subject",): SUBJECT, ("minute",): MINUTE, ("hour",): MINUTE}
_WORST, _MOST = ("p99_us", "max_us"), ("count",)
_FIGURES = ("count", "early", "within", "max_us", *[f"{name}_us" for name in POINTS])
_TYPES = {
    **dict.fromkeys(("subject", "broker_group", "server_id"), pa.string()),
    **dict.fromkeys(("minute", "hour"), pa.int64()),
}
DIMENSIONS = ("subject", "broker_group", "minute", "hour", "server_id")


@dataclass(frozen=True, slots=True)
class LatencyQuestion:
    """The question: the range, the dimensions `by`, and the objective, a `share` of deliveries within `slo_ms`."""

    chosen: Range
    by: tuple[str, ...] = ("subject",)
    slo_ms: float = 100.0
    share: float = 0.999

    def counted(self, takeovers: Sequence[Takeover]) -> CellQuestion:
        """What the cells must be counted by. Dimensions that every report has need no cells of their own."""
        by = () if self.by in _KINDS else self.by
        return CellQuestion(self.chosen.selection(), round(self.slo_ms * 1000), by, tuple(takeovers))

    def holds(self, takeover: Takeover) -> bool:
        """Whether some of the range was without a primary then."""
        selection = self.chosen.selection()
        return takeover.claimed_us >= selection.from_ms * 1000 and takeover.last_us < selection.to_ms * 1000


class LatencyReport:
    """The cells of one audit, and the figures computed from them."""

    def __init__(
        self,
        cells: Cells,
        question: LatencyQuestion,
        takeovers: Sequence[Takeover] = (),
        damages: Sequence[CorruptRow] = (),
    ) -> None:
        self._damages = damages
        self._cells = cells
        self._question = question
        self._takeovers = takeovers
        self._groups: dict[tuple[str, ...], Groups] = {}

    @classmethod
    def made_by(
        cls,
        engine: Engine,
        dispatch: Captured,
        question: LatencyQuestion,
        takeovers: Sequence[Takeover] = (),
        damages: Sequence[CorruptRow] = (),
    ) -> Self:
        """A report over a captured dispatch_log, read where the engine runs. `takeovers`: those of its shards.
        `damages`: rows of the `corrupt` report."""
        chosen = [each for each in takeovers if question.holds(each)]
        return cls(Cells(read_cells(engine, dispatch, question.counted(chosen))), question, chosen, damages)

    @cached_property
    def _totals(self) -> LatencyTotals:
        """The totals, summed up on the driver after one query."""
        return self._cells.totals()

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
            "takeovers": [self._cost(each) for each in self._takeovers],
            "corrupt": [*self._damages, *totals.corrupt_ranges()],
        }

    def _cost(self, takeover: Takeover) -> dict[str, Any]:
        """What a takeover cost: the time without a primary, and the messages that waited for the next one."""
        server_id, first_us = f"{takeover.server_id:012x}", takeover.first_us
        return {
            "server_id": server_id,
            "epoch": takeover.epoch,
            "from": instant_of_us(takeover.last_us),
            "claimed": instant_of_us(takeover.claimed_us),
            "planned": takeover.planned,
            "without_primary_ms": max(takeover.claimed_us - takeover.last_us, 0) / 1000,
            "first_record_ms": max(first_us - takeover.last_us, 0) / 1000 if first_us else None,
            **self._totals.waited(server_id, takeover.epoch),
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

    def table(self, dimensions: Sequence[str]) -> pa.Table:
        """One row for each combination of the dimensions, with the figures in microseconds, for a .parquet file.
        `dimensions` must be those of the question, or one of subject, minute and hour."""
        keys = {KEYS.get(name, name): _TYPES[name] for name in dimensions}
        fields = [*keys.items(), *[(name, pa.int64()) for name in _FIGURES]]
        return pa.Table.from_pylist(self._grouped(dimensions).rows(), schema=pa.schema(fields))

    def _grouped(self, dimensions: Sequence[str]) -> Groups:
        """Figures by group, kept because most are used more than once."""
        wanted = tuple(dimensions)
        if wanted not in self._groups:
            kind = _KINDS.get(wanted, BY)
            assert kind != BY or wanted == self._question.by, f"{wanted} were not counted"
            self._groups[wanted] = self._cells.groups(kind, tuple([KEYS.get(name, name) for name in wanted]))
        return self._groups[wanted]

    def by(self, dimensions: Sequence[str]) -> list[dict[str, Any]]:
        """The groups for JSON, in order of their keys. Raises ValueError for more than BY_ROWS_MAX rows."""
        if not dimensions:
            return []
        rows = self._grouped(dimensions).first(BY_ROWS_MAX + 1)
        if len(rows) > BY_ROWS_MAX:
            raise ValueError(
                f"--by {','.join(dimensions)} gives more than {BY_ROWS_MAX} groups: write a table with --out "
                "report.parquet, or choose fewer dimensions"
            )
        return [_group(row, dimensions) | _figures(row) for row in rows]

    def _first(self, dimension: str, order: tuple[str, ...]) -> list[dict[str, Any]]:
        """The minutes or subjects with the largest values in these columns, largest first."""
        rows = self._grouped((dimension,)).largest(order, WORST_ROWS)
        return [_group(row, [dimension]) | _figures(row) for row in rows]

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
