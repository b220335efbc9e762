"""Results of measurements: one run of a row, and the row's figure as the median of its runs. Arithmetic only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class WrongResult(Exception):
    """An answer or a delivery does not match the sent messages. This is a bug, and the run does not count."""


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line. None means the default of the row."""

    runs: int = 3
    seconds: float | None = None
    messages: int | None = None
    data_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One verified run of a row. ``details`` are numbers with units in their names, or words."""

    value: float
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """The figure of a row. ``value`` is the median of ``values``; numbers in ``details`` are medians too."""

    row: str
    value: float
    unit: str
    floor: float
    reached: bool
    values: tuple[float, ...]
    details: dict[str, Any]

    def to_record(self) -> dict[str, Any]:
        """The JSON object of the row."""
        return {
            "row": self.row,
            "value": self.value,
            "unit": self.unit,
            "floor": self.floor,
            "reached": self.reached,
            "runs": len(self.values),
            "values": list(self.values),
            **self.details,
        }


def expect(condition: bool, message: str) -> None:
    """Raises `WrongResult` with the message unless the condition holds."""
    if not condition:
        raise WrongResult(message)


def median_details(runs: Sequence[Run]) -> dict[str, Any]:
    """The median of every number over the runs; words and lists of the last run."""
    details: dict[str, Any] = {}
    for name, last in runs[-1].details.items():
        values = [run.details[name] for run in runs if name in run.details]
        numeric = all(type(value) in (int, float) for value in values)
        details[name] = rounded(statistics.median(values)) if numeric else last
    return details


def rounded(value: float, digits: int = 4) -> float:
    """Rounds to the significant digits of a measurement. Integers do not change."""
    if isinstance(value, int) or value == 0:
        return value
    if abs(value) >= 10_000:
        return round(value)
    return float(f"{value:.{digits}g}")
