"""Describes the machine of the figures in one line."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

from delayserver import __version__


def describe_machine() -> str:
    """Day, version, processor, memory, kernel and Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"{day}, delayserver {__version__}, {len(os.sched_getaffinity(0))} cores of {_processor()}, "
        f"{memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def load_average() -> float:
    """The load average of the last minute. Before a run, it shows the other work of the machine."""
    return os.getloadavg()[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.machine()
