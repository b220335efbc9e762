"""What an operator's dashboard shows of a server's processes: memory, open files and disk, read from /proc and the disk."""

from __future__ import annotations

import os
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final

PROBES_KEPT: Final = 60
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Sample:
    """One look. Memory and disk in MB, of the server and of its HTTP gateway; open files of both; the slowest round trip of
    the last minute's probes in ms (p99 of some sixty probes)."""

    second: int
    server_mb: float
    gateway_mb: float
    files: int
    disk_mb: float
    p99_ms: float

    def line(self) -> str:
        """The sample for a person."""
        return (
            f"{self.second:5d} s  server {self.server_mb:6.1f} MB  gateway {self.gateway_mb:6.1f} MB  files {self.files:4d}"
            f"  disk {self.disk_mb:7.1f} MB  round trip p99 {self.p99_ms:7.1f} ms"
        )


class Probes:
    """Round trips of an ordinary client, the last minute of them."""

    def __init__(self) -> None:
        self._trips_ms: deque[float] = deque(maxlen=PROBES_KEPT)

    def add(self, trip_ms: float) -> None:
        """One more round trip."""
        self._trips_ms.append(trip_ms)

    def p99_ms(self) -> float:
        """The slowest but one of a hundred, 0.0 without any."""
        trips = sorted(self._trips_ms)
        return trips[min(int(len(trips) * 0.99), len(trips) - 1)] if trips else 0.0


def look(second: int, pid: int, data_dir: str, probes: Probes) -> Sample | None:
    """A sample of the process `pid`, its gateway and its data directory. None while one of them is not there."""
    try:
        # The server starts its gateway in a thread.
        children = [
            int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()
        ]
        if not children:
            return None
        return Sample(
            second,
            _memory_mb(pid),
            sum(_memory_mb(child) for child in children),
            sum(len(os.listdir(f"/proc/{each}/fd")) for each in (pid, *children)),
            _disk_mb(data_dir),
            probes.p99_ms(),
        )
    except (FileNotFoundError, ProcessLookupError):
        return None


def _memory_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 1e6


def _disk_mb(data_dir: str) -> float:
    total = 0
    for folder, _, files in os.walk(data_dir):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue  # the server removed it meanwhile
    return total / 1e6
