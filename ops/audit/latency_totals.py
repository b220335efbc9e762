"""The figures of a latency report about all messages: some thousand cells, summed up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from delayserver.protocol.outcomes import OUTCOME_LABELS
from ops.audit.fields import CORRUPT_FIELDS
from ops.audit.histogram import POINTS, Bucket, bound_us, points_of
from ops.audit.latency_cells import OUTCOME, STAGE, STAGES, TAKEOVER, TROUBLE, WHOLE
from ops.audit.latency_reading import CORRUPT
from ops.audit.states import ENDS

TOTALS = (WHOLE, OUTCOME, STAGE, TROUBLE, CORRUPT, TAKEOVER)
"""The kinds of cells whose number does not grow with the number of rows."""

Rows = Sequence[Mapping[str, Any]]


def totals_of(rows: Rows) -> LatencyTotals:
    """The cells of the kinds `TOTALS`, by kind."""
    return LatencyTotals(*[[row for row in rows if row["kind"] == kind] for kind in TOTALS])


@dataclass(frozen=True)
class LatencyTotals:
    """Cells by kind. Their number does not grow with the number of rows."""

    late: Rows
    outcome: Rows
    stage: Rows
    trouble: Rows
    corrupt: Rows
    takeover: Rows = ()

    def buckets(self, *, internal_too: bool) -> list[Bucket]:
        """The lateness of messages, or with `internal_too` of all deliveries, ascending."""
        counts: Counter[int] = Counter()
        largest: dict[int, int] = {}
        for row in self.late:
            if internal_too or not row["internal"]:
                bucket = row["bucket"]
                counts[bucket] += row["count"]
                largest[bucket] = max(row["max_us"], largest.get(bucket, row["max_us"]))
        return [Bucket(bucket, counts[bucket], largest[bucket]) for bucket in sorted(counts)]

    def headline(self, *, internal_too: bool) -> dict[str, Any]:
        """count, early, within, max_us and the percentiles in microseconds."""
        rows = [row for row in self.late if internal_too or not row["internal"]]
        points = {f"{name}_us": value for name, value in points_of(self.buckets(internal_too=internal_too)).items()}
        counts = {name: sum([row[name] for row in rows]) for name in ("count", "early", "within")}
        return {**counts, **points, "max_us": max([row["max_us"] for row in rows], default=None)}

    def mean_ms(self) -> float | None:
        """The mean lateness of messages in ms."""
        rows = self._delivered()
        count = sum([row["count"] for row in rows])
        return sum([row["sum_us"] for row in rows]) / count / 1000 if count else None

    def stages_ms(self) -> dict[str, dict[str, float]]:
        """Mean, p50, p99 and maximum of each stage. The means of the first four add up to the mean lateness."""
        rows = self._delivered()
        count = sum([row["count"] for row in rows])
        if not count:
            return {}
        found = {}
        for index, stage in enumerate(STAGES):
            max_us = max([row[f"{stage}_max_us"] for row in rows])
            points = points_of(
                Bucket(row["bucket"], row["count"], min(bound_us(row["bucket"]), max_us))
                for row in self.stage
                if row["stage"] == index
            )
            found[stage] = {
                "mean": sum([row[f"{stage}_sum_us"] for row in rows]) / count / 1000,
                "p50": points["p50"] / 1000,
                "p99": points["p99"] / 1000,
                "max": max_us / 1000,
            }
        return found

    def attempts(self) -> dict[str, Any]:
        """Messages by their number of attempts, and `maybe_twice`, those that may have been delivered twice. An earlier
        hand-over of these to another node had no answer."""
        counts: Counter[int] = Counter()
        maybe_twice = 0
        for row in self._delivered():
            counts[row["attempts"]] += row["count"]
            maybe_twice += row["maybe_twice"]
        return {
            "maybe_twice": maybe_twice,
            "by_count": {str(attempts): counts[attempts] for attempts in sorted(counts)},
            "retried": sum([count for attempts, count in counts.items() if attempts > 1]),
        }

    def waited(self, server_id: str, epoch: int) -> dict[str, Any]:
        """The messages that waited for the primary of an epoch: `delayed`, `maybe_twice` and their lateness in ms."""
        rows = [row for row in self.takeover if (row["server_id"], row["epoch"]) == (server_id, epoch)]
        points = points_of(Bucket(row["bucket"], row["count"], row["max_us"]) for row in rows)
        late = {name: points[name] / 1000 if rows else None for name in POINTS}
        return {
            "delayed": sum([row["count"] for row in rows]),
            "maybe_twice": sum([row["maybe_twice"] for row in rows]),
            "lateness_ms": late | {"max": max([row["max_us"] for row in rows]) / 1000 if rows else None},
        }

    def outcomes(self) -> dict[str, int]:
        """Messages by outcome."""
        counts: Counter[int] = Counter()
        for row in self.outcome:
            if not row["internal"]:
                counts[row["outcome"]] += row["count"]
        return {OUTCOME_LABELS[code]: counts[int(code)] for code in ENDS}

    def corrupt_ranges(self) -> list[dict[str, Any]]:
        """server_id, file, start, stop and detail of all damage, in order of file."""
        rows = [{field.name: row[field.name] for field in CORRUPT_FIELDS} for row in self.corrupt]
        return sorted(rows, key=lambda row: (row["file"], row["start"]))

    def _delivered(self) -> list[Mapping[str, Any]]:
        return [row for row in self.outcome if row["delivered"] and not row["internal"]]
