"""Prints figures: a table for the terminal, and the Markdown page that is committed."""

from __future__ import annotations

from typing import Any, Final

from ops.bench.figures import Figure
from ops.bench.rows import BY_NAME

HEADER: Final = ("row", "value", "unit", "floor", "", "details")


def shown(value: Any) -> str:
    """A number with thousands separators; anything else unchanged."""
    if type(value) is int or (type(value) is float and abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:g}" if type(value) is float else str(value)


def table_line(figure: Figure) -> str:
    """One row of the table for the terminal, with its details at the end."""
    mark = "ok" if figure.reached else "below"
    details = "  ".join(f"{name}={shown(value)}" for name, value in figure.details.items())
    return f"{figure.row:17} {shown(figure.value):>10} {figure.unit:6} {_floor(figure):>12} {mark:6} {details}"


def table_header() -> str:
    """The line above the rows."""
    return f"{HEADER[0]:17} {HEADER[1]:>10} {HEADER[2]:6} {HEADER[3]:>12} {HEADER[4]:6} {HEADER[5]}"


def markdown(figures: list[Figure], machine: str, command: str) -> str:
    """The page RESULTS.md."""
    lines = [
        "# Figures",
        "",
        f"Measured on {machine}, with",
        "",
        f"    {command}",
        "",
        "Client and server share the cores. Bodies of 100 bytes, durability `sync`, each run on a fresh data directory, its",
        "result verified; a figure is the median of its runs. Absolute figures swing with the machine's load: to compare",
        "systems take the ratios of one run (`python -m ops.bench compare`).",
        "",
        "| row | what | value | floor | reached | runs |",
        "|---|---|---|---|---|---|",
    ]
    for figure in figures:
        runs = ", ".join(shown(value) for value in figure.values)
        reached = "yes" if figure.reached else "**no**"
        what = BY_NAME[figure.row].summary
        value = f"{shown(figure.value)} {figure.unit}"
        lines.append(f"| `{figure.row}` | {what} | **{value}** | {_floor(figure)} | {reached} | {runs} |")
    lines += ["", "## Details", "", "Medians over the runs; times in the units of their names.", ""]
    for figure in figures:
        details = ", ".join(f"{name} {shown(value)}" for name, value in figure.details.items())
        lines.append(f"- `{figure.row}`: {details}")
    return "\n".join(lines)


def _floor(figure: Figure) -> str:
    row = BY_NAME[figure.row]
    more = "".join(f", {name} ≤ {shown(most)}" for name, most in row.floors)
    more += "".join(f", {name} ≥ {shown(least)}" for name, least in row.least)
    return f"{'≤' if row.lower else '≥'} {shown(figure.floor)}{more}"
