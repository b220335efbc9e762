"""The trace of a run: readable lines, and a hash that two runs of one seed share."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.simulation.clocks import BASE_US, SimulatedTime
from tests.simulation.failures import SimulationFailure

# A run that says more than this goes in circles.
LINES_MAX = 20_000


class Trace:
    """Every event that anything in the simulation notes, in order."""

    def __init__(self, time: SimulatedTime) -> None:
        self._time = time
        self._hash = hashlib.sha256()
        self.lines: list[str] = []
        self.wall_us: Callable[[], int] = lambda: BASE_US
        # What handlers met and never should: bugs, each answered to its client and logged.
        self.bugs: list[str] = []

    def note(self, who: str, what: str, **fields: Any) -> None:
        """One line: seconds since the start, who, what, and the fields."""
        text = " ".join(f"{name}={value}" for name, value in fields.items())
        hours = (self.wall_us() - BASE_US) / 3_600_000_000
        line = f"{self._time.now_s:14.6f}s  wall +{hours:10.5f}h  {who:<12} {what} {text}".rstrip()
        self._hash.update(line.encode())
        self.lines.append(line)
        if len(self.lines) > LINES_MAX:
            raise SimulationFailure(f"more than {LINES_MAX} events: the run goes in circles")

    def emit(self, record: logging.LogRecord) -> None:
        """What the server logs belongs to the trace."""
        self.note("log", record.levelname.lower(), text=record.getMessage())
        if record.exc_info:
            self.bugs.append(f"{record.getMessage()}: {record.exc_info[1]!r}")
            self.lines += logging.Formatter().formatException(record.exc_info).splitlines()

    @contextmanager
    def logging(self) -> Iterator[None]:
        """Take the server's log in, and keep it off the terminal."""
        logger, handler = logging.getLogger("delayserver"), logging.Handler()
        handler.emit = self.emit  # type: ignore[method-assign]
        logger.addHandler(handler)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(handler)
            logger.propagate = True

    @property
    def digest(self) -> str:
        """Of everything noted so far."""
        return self._hash.hexdigest()[:16]
