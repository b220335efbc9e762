"""Ports for servers that must know theirs before they listen.

They lie below the range from which the kernel takes ports for clients. Each worker of xdist has some of its own.
So nobody takes a port between the look at it and the server's start, nor while its server is down for a while.
"""

from __future__ import annotations

import itertools
import os
import socket
from typing import Final

FIRST: Final = 26_000
OF_A_WORKER: Final = 500
WORKERS: Final = 12

_worker: Final = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % WORKERS
# In turn: a port that was given out is free until its server has started.
_turns: Final = itertools.cycle(range(FIRST + _worker * OF_A_WORKER, FIRST + (_worker + 1) * OF_A_WORKER))


def free_port(count: int = 1) -> int:
    """A port on which nobody listens, and that no other call has returned lately. The first of `count` in a row."""
    found: list[int] = []
    for port in itertools.islice(_turns, OF_A_WORKER):
        if found and port != found[-1] + 1:
            found.clear()
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                found.clear()
                continue
        found.append(port)
        if len(found) == count:
            return found[0]
    raise AssertionError("no free port")
