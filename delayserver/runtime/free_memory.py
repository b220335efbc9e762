"""Memory that the C library keeps after a burst, given back to the operating system."""

from __future__ import annotations

import ctypes
import time
from typing import Final

import trio

from delayserver.runtime.clock import Clock

LOOK_MS: Final = 5_000
QUIET_PART: Final = 0.1
"""A process that used less of one core since the last look is quiet. A server without clients uses about a fiftieth."""

WORK_S: Final = 1.0
"""So much CPU time in looks that were not quiet is a burst. Less leaves too little memory behind."""

_TRIM: Final = getattr(ctypes.CDLL(None), "malloc_trim", None)
"""A call of glibc. Other C libraries give memory back by themselves."""


def give_back() -> None:
    """Give free memory back. It takes some milliseconds for each 100 MiB, without the GIL."""
    if _TRIM is not None:
        _TRIM(0)


class QuietAfterWork:
    """Finds the moments at which a process is quiet after a burst. Pure."""

    def __init__(self, now_s: float, used_s: float) -> None:
        """`now_s`: a time that only grows. `used_s`: the CPU time of the process."""
        self._now_s = now_s
        self._used_s = used_s
        self._work_s = 0.0

    def look(self, now_s: float, used_s: float) -> bool:
        """Whether a burst is over since the last look; once for each."""
        took_s, used_in_look_s = now_s - self._now_s, used_s - self._used_s
        self._now_s, self._used_s = now_s, used_s
        if used_in_look_s > QUIET_PART * took_s:
            self._work_s += used_in_look_s
            return False
        if self._work_s < WORK_S:
            return False
        self._work_s = 0.0
        return True


async def give_back_when_quiet(clock: Clock) -> None:
    """Give free memory back each time that the process is quiet after a burst, until cancelled. A thread does it beside the
    event loop: an allocation meanwhile can wait for milliseconds, so it is never done while there is work."""
    moments = QuietAfterWork(clock.monotonic_us() / 1_000_000, time.process_time())
    while True:
        await clock.sleep_ms(LOOK_MS)
        if moments.look(clock.monotonic_us() / 1_000_000, time.process_time()):
            await trio.to_thread.run_sync(give_back)
