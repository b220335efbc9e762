"""A timer of the kernel with microseconds, for the end of a wait.

The event loop waits in epoll, which rounds its time-out up to whole milliseconds: half a millisecond of lateness on
average. A timerfd is a file that becomes readable at a set moment. Python has it from 3.13 on, so the C library is
called here. Without it (not Linux) waits end a little later, and all else is the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time
import weakref

import trio

_NANOSECONDS = 1_000_000_000


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _TimerSpec(ctypes.Structure):
    _fields_ = (("interval", _TimeSpec), ("value", _TimeSpec))


class FineTimer:
    """One timer, for one task at a time; closed with the object. Raises OSError without timerfd or free descriptors."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None, use_errno=True)
        if not hasattr(library, "timerfd_create"):
            raise OSError("this system has no timerfd")
        self._set = library.timerfd_settime
        self._set.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.POINTER(_TimerSpec), ctypes.POINTER(_TimerSpec))
        self._spec = _TimerSpec()
        self._fd = library.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "no timer to be had")
        weakref.finalize(self, os.close, self._fd)

    async def sleep_us(self, duration_us: int) -> None:
        """Wait by monotonic time. It is a trio checkpoint."""
        value = self._spec.value
        value.seconds, value.nanoseconds = divmod(max(duration_us, 1) * 1000, _NANOSECONDS)
        self._set(self._fd, 0, ctypes.byref(self._spec), None)
        await trio.lowlevel.wait_readable(self._fd)
        with contextlib.suppress(BlockingIOError):
            os.read(self._fd, 8)
