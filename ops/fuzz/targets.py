"""All targets by name."""

from __future__ import annotations

from typing import Final

from ops.fuzz import filters, logs, records, tables, tools, wire
from ops.fuzz.target import Target

TARGETS: Final[dict[str, Target]] = {
    target.name: target
    for target in (
        *wire.TARGETS,
        *filters.TARGETS,
        *records.TARGETS,
        *logs.TARGETS,
        *tables.TARGETS,
        *tools.TARGETS,
    )
}
