"""Schedules of a server, for programs and for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import asdict

from delayserver.cli.terminal.output import visible
from delayserver.config.units import format_duration, format_instant

if TYPE_CHECKING:
    from delayserver.client import Schedule

HEADINGS: Final = ("NAME", "STATE", "NEXT", "FIRED", "SUBJECT", "WHEN")


def schedule_record(each: Schedule) -> dict[str, Any]:
    """The record of a schedule. A body that is no text is shown with replacement characters."""
    record = asdict(each)
    body = record["definition"].get("body")
    if isinstance(body, bytes):
        record["definition"]["body"] = body.decode(errors="replace")
    return record


def schedule_table(schedules: Sequence[Schedule]) -> list[str]:
    """A heading, and a line for each schedule."""
    rows = [HEADINGS, *[_cells(each) for each in schedules]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join([cell.ljust(width) for cell, width in zip(row, widths, strict=True)]).rstrip() for row in rows]


def _cells(each: Schedule) -> tuple[str, ...]:
    return (
        visible(each.name),
        each.state,
        format_instant(each.next_ms) if each.next_ms else "-",
        f"{each.fired:,}",
        visible(each.definition["subject"]),
        visible(_rule(each.definition)),
    )


def _rule(definition: dict[str, Any]) -> str:
    zone = definition.get("zone", "UTC")
    if "every_ms" in definition:
        return f"every {format_duration(definition['every_ms'])}"
    return f"{definition['cron']} {zone}" if "cron" in definition else f"at {definition['at']} {zone}"
