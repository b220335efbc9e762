"""The progress of a report that runs: one bar on a terminal, elsewhere a line for each step."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console
from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOOK_S = 0.5


class Progress:
    """Shows the steps of a report on stderr. `terminal`: with one bar, which goes at the end."""

    def __init__(self, *, terminal: bool) -> None:
        self._started_s = time.monotonic()
        self._done = threading.Event()
        self._bar: Bar | None = None
        if terminal:
            # A copy of stderr: while Java starts, stderr itself leads to the log of Spark.
            console = Console(file=os.fdopen(os.dup(sys.stderr.fileno()), "w"))
            columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
            self._bar = Bar(*columns, console=console, transient=True)
            self._task = self._bar.add_task("reading directories", total=None)

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show it for the block."""
        if self._bar is None:
            yield
            return
        with self._bar:
            try:
                yield
            finally:
                self._done.set()

    def say(self, text: str) -> None:
        """A step begins."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        else:
            click.echo(f"[{time.monotonic() - self._started_s:6.1f} s] {text}", err=True)

    def watch(self, spark: SparkSession) -> None:
        """From now on the bar shows the tasks of the stages that run."""
        if self._bar is not None:
            threading.Thread(target=self._look, args=(spark.sparkContext.statusTracker(),), daemon=True).start()

    def _look(self, tracker: Any) -> None:
        assert self._bar is not None
        while not self._done.wait(LOOK_S):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            tasks = sum([stage.numTasks for stage in stages if stage is not None])
            done = sum([stage.numCompletedTasks for stage in stages if stage is not None])
            self._bar.update(self._task, total=tasks or None, completed=done)
