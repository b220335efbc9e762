"""Finds broker outages in dispatch_log: times in which a group's rows waited while attempts failed.

An outage leaves two traces: rows with more than one attempt, and rows that waited long in the group's queue during
back-off. Long waits alone are not an outage, but a queue that was too long.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any


@dataclass(slots=True)
class _Stretch:
    start_us: int
    stop_us: int
    rows: int
    retried: int
    attempts_max: int


def find_outages(troubles: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Outages of all servers and groups: from, to, duration_ms, delayed, retried, attempts_max; in order of start.

    `troubles` are the cells of kind TROUBLE: a row for each server, broker group and due minute.
    """
    troubled = sorted(troubles, key=lambda row: row["trouble_from_us"])
    by_group: dict[tuple[str, str], list[_Stretch]] = {}
    for row in troubled:
        stretch = _Stretch(
            row["trouble_from_us"], row["trouble_to_us"], row["count"], row["retried"], row["attempts_max"]
        )
        by_group.setdefault((row["server_id"], row["broker_group"] or ""), []).append(stretch)
    found = [
        {
            "server_id": server_id,
            "broker_group": group,
            "from": instant_of_us(stretch.start_us),
            "to": instant_of_us(stretch.stop_us),
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
    """Joins overlapping stretches, which must be in order of start."""
    result: list[_Stretch] = []
    for stretch in stretches:
        last = result[-1] if result else None
        if last is None or stretch.start_us > last.stop_us:
            result.append(stretch)
            continue
        result[-1] = replace(
            last,
            stop_us=max(last.stop_us, stretch.stop_us),
            rows=last.rows + stretch.rows,
            retried=last.retried + stretch.retried,
            attempts_max=max(last.attempts_max, stretch.attempts_max),
        )
    return result


def instant_of_us(us: int) -> str:
    """Microseconds since 1970 as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(us / 1_000_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
