"""The process of a server under test: the real server on real files and sockets, with a file system that may kill it.

The server knows nothing of it: crash points live in the `FileSystem` door, time steps in the `Clock` door. A small mapped
file beside the data directory lets the test step the clock and arm the point while the server runs.
"""

from __future__ import annotations

import faulthandler
import logging
import mmap
import os
import resource
import signal
import struct
import sys
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import trio

from delayserver.cli.terminal.failures import report_failure
from delayserver.config.settings import Settings
from delayserver.front.front import SERVER
from delayserver.runtime.clock import SystemClock
from delayserver.runtime.runtime import Runtime
from delayserver.server.process import serve
from tests.crash.files import FailSyncOnce, Hook, HookedFileSystem, Killer, Observer
from tests.crash.points import BY_NAME

CONTROL = struct.Struct("<qq")
# What the server looks at every few seconds (retention, upkeep) or half minutes (days) is looked at this often instead.
SLEEP_MS_MAX = 150


@dataclass(frozen=True, slots=True)
class Orders:
    """What one server process is to be. `fail_sync`: a kind of file and which of its syncs fails."""

    settings: Settings
    control: str
    log: str
    point: str = ""
    fail_sync: tuple[str, int] | None = None
    open_files_max: int = 0
    role: str = SERVER


class Control:
    """The mapped file: the step of the clock in microseconds, and whether the crash point is armed."""

    def __init__(self, path: str) -> None:
        if not Path(path).exists():
            Path(path).write_bytes(bytes(CONTROL.size))
        with Path(path).open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), CONTROL.size)

    @property
    def step_us(self) -> int:
        """How far the server's clock is ahead of the machine's."""
        return int(CONTROL.unpack_from(self._map)[0])

    @step_us.setter
    def step_us(self, value: int) -> None:
        CONTROL.pack_into(self._map, 0, value, int(self.armed))

    @property
    def armed(self) -> bool:
        """Whether the server may die at its point."""
        return bool(CONTROL.unpack_from(self._map)[1])

    @armed.setter
    def armed(self, value: bool) -> None:
        CONTROL.pack_into(self._map, 0, self.step_us, int(value))


class SteppedClock(SystemClock):
    """The machine's clock and a step that the test may change; long pauses between looks are short."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control

    def now_us(self) -> int:
        return super().now_us() + self._control.step_us

    def now_ms(self) -> int:
        return self.now_us() // 1000

    async def sleep_ms(self, duration_ms: float) -> None:
        await super().sleep_ms(min(duration_ms, SLEEP_MS_MAX))


def main(orders: Orders, pipe: Connection) -> None:
    """The body of the process. Ends as the command line would: exit code 0, or 1 with one line on stderr."""
    log = os.open(orders.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for standard in (1, 2):
        os.dup2(log, standard)
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s", level=logging.WARNING, stream=sys.stderr)
    faulthandler.register(signal.SIGUSR1)  # a developer sees by it where a server hangs
    if orders.open_files_max:
        resource.setrlimit(resource.RLIMIT_NOFILE, (orders.open_files_max, orders.open_files_max))
    control = Control(orders.control)
    observer = Observer()
    hook: Hook = observer
    if orders.point:
        hook = Killer(BY_NAME[orders.point], lambda: control.armed, lambda name: pipe.send(("died", name)))
    elif orders.fail_sync:
        hook = FailSyncOnce(*orders.fail_sync)
    fs = HookedFileSystem(orders.settings.storage.data_dir, hook)

    async def run() -> None:
        await serve(
            orders.settings,
            role=orders.role,
            runtime=Runtime.on(clock=SteppedClock(control)),
            fs=fs,
            ready=lambda host, port: pipe.send(("ready", f"{host}:{port}")),
            signals=True,
        )

    code: int | None = 0
    try:
        trio.run(run)
    except BaseException as error:
        code = report_failure(error)
        if code is None:
            raise
    pipe.send(("seen", sorted(observer.seen)))
    sys.stderr.flush()
    sys.exit(code)
