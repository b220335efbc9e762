"""What a measurement gives: one run of a row, and the row's figure as the median of its runs. Arithmetic only."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


class WrongResult(Exception):
    """The server's answer or what was delivered is not what was sent: the run counts for nothing, it is a bug."""


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for. None means the row's own default."""

    runs: int = 3
    seconds: float | None = None
    messages: int | None = None
    data_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a row, verified. ``details`` are numbers with units in their names, or words."""

    value: float
    details: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Figure:
    """A row's figure: ``value`` is the median of ``values``, and so is every number among the details."""

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
    """Raise `WrongResult` with the message unless the condition holds."""
    if not condition:
        raise WrongResult(message)


def median_details(runs: Sequence[Run]) -> dict[str, Any]:
    """Every number as its median over the runs; words and lists from the last run."""
    details: dict[str, Any] = {}
    for name, last in runs[-1].details.items():
        values = [run.details[name] for run in runs if name in run.details]
        numeric = all(type(value) in (int, float) for value in values)
        details[name] = rounded(statistics.median(values)) if numeric else last
    return details


def rounded(value: float, digits: int = 4) -> float:
    """As many digits as a measurement deserves; whole numbers stay whole."""
    if isinstance(value, int) or value == 0:
        return value
    if abs(value) >= 10_000:
        return round(value)
    return float(f"{value:.{digits}g}")
