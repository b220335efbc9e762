"""Broker outages as dispatch_log shows them: stretches in which a group's rows waited while attempts failed.

An outage leaves two traces: rows with more than one attempt, and rows that waited long in the group's queue because no
attempt was made during back-off. Long waits alone are a queue that was too long, not an outage.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

# Stretches are found by due minute and joined here; a day of one group has at most 1440 of them.
_ROWS_MAX = 200_000


@dataclass(slots=True)
class _Stretch:
    start_us: int
    stop_us: int
    rows: int
    retried: int
    attempts_max: int


def find_outages(cells: DataFrame) -> list[dict[str, Any]]:
    """Outages of all servers and groups: from, to, duration_ms, delayed, retried, attempts_max; by their start."""
    troubled = (
        cells.where(F.col("troubled") > 0)
        .groupBy("server_id", "broker_group", "minute_ms")
        .agg(
            F.min("trouble_from_us").alias("start_us"),
            F.max("trouble_to_us").alias("stop_us"),
            F.sum("troubled").alias("rows"),
            F.sum("retried").alias("retried"),
            F.max("attempts").alias("attempts_max"),
        )
        .orderBy("server_id", "broker_group", "start_us")
        .limit(_ROWS_MAX)
        .collect()
    )
    by_group: dict[tuple[str, str], list[_Stretch]] = {}
    for row in troubled:
        stretch = _Stretch(row["start_us"], row["stop_us"], row["rows"], row["retried"], row["attempts_max"])
        by_group.setdefault((row["server_id"], row["broker_group"]), []).append(stretch)
    found = [
        {
            "server_id": server_id,
            "broker_group": group,
            "from": _instant(stretch.start_us),
            "to": _instant(stretch.stop_us),
            "duration_ms": (stretch.stop_us - stretch.start_us) / 1000,
            "delayed": stretch.rows,
            "retried": stretch.retried,
            "attempts_max": stretch.attempts_max,
        }
        for (server_id, group), stretches in by_group.items()
        for stretch in joined(stretches)
        if stretch.retried
    ]
    return sorted(found, key=lambda outage: (outage["from"], outage["server_id"], outage["broker_group"]))


def joined(stretches: Iterable[_Stretch]) -> list[_Stretch]:
    """Stretches in order of their start, those that overlap made one."""
    result: list[_Stretch] = []
    for stretch in stretches:
        last = result[-1] if result else None
        if last is None or stretch.start_us > last.stop_us:
            result.append(stretch)
            continue
        last.stop_us = max(last.stop_us, stretch.stop_us)
        last.rows += stretch.rows
        last.retried += stretch.retried
        last.attempts_max = max(last.attempts_max, stretch.attempts_max)
    return result


def _instant(us: int) -> str:
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
