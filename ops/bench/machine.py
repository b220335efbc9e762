"""What the figures were measured on, in one line."""

from __future__ import annotations

import datetime
import os
import platform
from pathlib import Path

from delayserver import __version__


def describe_machine() -> str:
    """Processor, memory, kernel, Python, load and day."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30)
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return (
        f"{day}, delayserver {__version__}, {len(os.sched_getaffinity(0))} cores of {_processor()}, "
        f"{memory:.0f} GiB, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def load_average() -> float:
    """Processes that wanted to run over the last minute: what else the machine is doing, seen before a run."""
    return os.getloadavg()[0]


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model"))]
    return names[0] if names else platform.machine()
