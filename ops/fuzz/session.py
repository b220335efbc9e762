"""One session of fuzzing: counts inputs and accepted inputs, and keeps each finding once with its smallest input.

Findings do not end a session. Two findings are the same if they have the same kind of error from the same place in our
code.
"""

from __future__ import annotations

import resource
import signal
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from ops.fuzz.target import Target

# CPU time of one input from which it counts as a hang. The slowest regular input takes 0.1 s.
INPUT_S_MAX = 5.0
# Memory that one input may allocate. Readers here need reads of 4 MiB and columns of at most 2^16 rows.
MEMORY_BYTES_MAX = 1 << 30


class Hang(BaseException):
    """An input took more processor time than its bound."""


@dataclass(slots=True)
class Found:
    """One finding: its text, the smallest input that leads to it, and how often it came."""

    text: str
    data: bytes
    times: int = 0


@dataclass(slots=True)
class Session:
    """Counts and findings of one target."""

    target: Target
    executions: int = 0
    accepted: int = 0
    started_s: float = field(default_factory=time.monotonic)
    findings: dict[str, Found] = field(default_factory=dict)

    @property
    def seconds(self) -> float:
        """Seconds since the session began."""
        return time.monotonic() - self.started_s

    def one(self, data: bytes) -> None:
        """Checks one input within the bounds of time and memory. Raises nothing."""
        self.executions += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, INPUT_S_MAX)
        try:
            self.accepted += self.target.check(data)
        except (Exception, Hang) as error:  # noqa: BLE001 - every exception is a finding
            self._add(error, data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _add(self, error: BaseException, data: bytes) -> None:
        frames = [
            frame for frame in traceback.extract_tb(error.__traceback__) if "/site-packages/" not in frame.filename
        ]
        where = " < ".join(f"{Path(frame.filename).name}:{frame.name}" for frame in reversed(frames[-3:]))
        text = f"{type(error).__name__}: {str(error)[:200]}"
        key = f"{type(error).__name__} at {where}"
        found = self.findings.setdefault(key, Found(text, data))
        found.times += 1
        if len(data) < len(found.data):
            found.text, found.data = text, data

    def save(self, folder: str) -> None:
        """Writes the smallest input of each finding to its own file."""
        for number, found in enumerate(self.findings.values(), 1):
            Path(folder).mkdir(parents=True, exist_ok=True)
            (Path(folder) / f"{self.target.name}-{number}").write_bytes(found.data)


def bound_process() -> None:
    """Bounds this process, so that an input that hangs or allocates without limit raises an exception."""

    def hang(_number: int, _frame: FrameType | None) -> None:
        raise Hang(f"more than {INPUT_S_MAX:g} s of processor time")

    signal.signal(signal.SIGVTALRM, hang)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_BYTES_MAX, resource.RLIM_INFINITY))
