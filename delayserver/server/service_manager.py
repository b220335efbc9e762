"""The service manager that started this process, such as systemd: it learns the state of the server, and that its event
loop turns. The protocol is sd_notify(3): one datagram of lines to a Unix socket.

A step of the event loop that never ends sends no sign of life, so systemd kills the process and starts it again.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Protocol, Self

from delayserver.logs.events import EventLogger

events = EventLogger()

# Without a watchdog, the status line is renewed this often.
BEAT_MS = 5_000
# Signs of life for each of the watchdog's times, so that two may be late.
BEATS = 3
STATUS_BYTES_MAX = 512


class ServiceManager(Protocol):
    """The service manager that started this process and watches it."""

    @property
    def beat_ms(self) -> int:
        """The time between two signs of life."""

    def tell(self, *lines: str) -> None:
        """Say something, as `READY=1`; never waits, never fails."""


class NotifySocket:
    """The service manager behind a Unix datagram socket."""

    def __init__(self, address: str, watchdog_us: int | None) -> None:
        """`address`: a path, or `@name` in the abstract namespace. `watchdog_us`: without a sign of life for this long the
        process is killed; None: never."""
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self._beat_ms = BEAT_MS if watchdog_us is None else max(min(watchdog_us // 1000 // BEATS, BEAT_MS), 1)
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._failed = False

    @classmethod
    def of(cls, environment: Mapping[str, str], pid: int) -> Self | None:
        """The service manager that these variables of the process `pid` name; None if they name none."""
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        watchdog = environment.get("WATCHDOG_USEC", "")
        ours = environment.get("WATCHDOG_PID", str(pid)) == str(pid)
        return cls(address, int(watchdog) if ours and watchdog.isdecimal() and int(watchdog) else None)

    @property
    def beat_ms(self) -> int:
        """The time between two signs of life."""
        return self._beat_ms

    def tell(self, *lines: str) -> None:
        """Send the lines as one datagram. A failure is logged once: the service manager will notice the silence."""
        try:
            self._socket.sendto("\n".join(lines).encode(), self._address)
        except OSError as error:
            if not self._failed:
                events.warning(
                    "service_manager_unreachable",
                    "cannot send {line} to the service manager: {reason}",
                    line=lines[0],
                    reason=str(error),
                )
            self._failed = True
        else:
            self._failed = False

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()


def status_line(text: str) -> str:
    """`STATUS=` with a text for people, on one line."""
    return f"STATUS={' '.join(text.split())[:STATUS_BYTES_MAX]}"
