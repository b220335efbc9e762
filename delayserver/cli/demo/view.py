"""The output of the demo: a live panel on a terminal, else one line per second, and a table at the end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click
import numpy as np
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from delayserver.cli.demo.demo_run import Measurements, quantiles

BOUNDS_MS: Final = (0.5, 1, 2, 5, 10, 20, 50, 100)
BAR_WIDTH: Final = 40
LINE_SECONDS: Final = 1.0
Show = Callable[[Measurements], None]


@contextmanager
def make_view(terminal: bool, silent: bool) -> Iterator[Show]:
    """A function that shows progress: on a panel for a terminal, in lines elsewhere, not at all if silent."""
    if silent:
        yield lambda progress: None
    elif terminal:
        with Live(auto_refresh=False) as live:
            yield lambda progress: live.update(_panel(progress), refresh=True)
    else:
        yield _LineASecond().show


class _LineASecond:
    """Prints one line per second, for output that is not a terminal."""

    def __init__(self) -> None:
        self._shown_s = float("-inf")
        self._complete = False

    def show(self, progress: Measurements) -> None:
        now_s = time.monotonic()
        if self._complete:
            return
        if now_s - self._shown_s >= LINE_SECONDS or not progress.missing:
            self._shown_s = now_s
            self._complete = not progress.missing
            click.echo(_line(progress))


def _line(progress: Measurements) -> str:
    late = quantiles(progress.dispatched_ms)
    figures = ", ".join(f"{name} {_ms(value)}" for name, value in late.items())
    arrived = f"{progress.delivered:>{len(str(progress.scheduled))}} of {progress.scheduled}"
    return f"arrived   {arrived}   early {progress.early}   late by {figures}"


def _panel(progress: Measurements) -> RenderableType:
    bar = ProgressBar(total=progress.scheduled, completed=progress.delivered, width=BAR_WIDTH)
    arrived, late = _line(progress).split("   late by ")
    # Two lines, to fit in 80 columns. The padding adds the line end that the bar lacks.
    return Group(Text(arrived), Text(f"late by   {late}"), Padding(bar, 0), *_histogram(progress))


def _histogram(progress: Measurements) -> list[Text]:
    edges = np.array([0.0, *BOUNDS_MS])
    place = np.searchsorted(edges, progress.dispatched_ms, side="right")
    counts = np.bincount(place, minlength=len(edges) + 1)[1:].tolist()
    labels = [f"< {bound:g} ms" for bound in BOUNDS_MS] + [f"≥ {BOUNDS_MS[-1]:g} ms"]
    most = max(1, *counts)
    return [
        Text(f"{label:>9} {'█' * round(count / most * BAR_WIDTH):<{BAR_WIDTH}} {count:>7,}")
        for label, count in zip(labels, counts, strict=True)
    ]


def print_summary(progress: Measurements) -> None:
    """Prints the final table: the counts, and lateness at hand-off and at the consumer."""
    table = Table(title="Summary", title_justify="left", show_header=False)
    for name in ("scheduled", "delivered", "missing", "duplicates", "early"):
        table.add_row(name, f"{getattr(progress, name):,}")
    for name, values in (("at hand-off", progress.dispatched_ms), ("in the consumer's hands", progress.received_ms)):
        figures = "  ".join(f"{key} {_ms(value)}" for key, value in quantiles(values).items())
        table.add_row(f"late, {name}", figures)
    Console().print(table)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"
