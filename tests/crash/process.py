"""The test's end of a server process: start, wait, kill, stop; and the settings that bring crash points within seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from dataclasses import replace
from multiprocessing import connection
from pathlib import Path
from typing import Any

from delayserver.config.settings import (
    BrokerSettings,
    ListenSettings,
    Settings,
    StorageSettings,
    WheelSettings,
)
from delayserver.front.front import SERVER
from tests.crash.crashing_server import Control, Orders, main
from tests.crash.points import Operation

# Forked from a process that has imported everything already: a start takes a tenth of a second.
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ("tests.crash.crashing_server",)
CONTEXT.set_forkserver_preload(list(PRELOADED))
# `Process.start` asks after all children of this process, those of other threads too. The exit code of a child can be read
# once: of two threads that ask at the same moment one gets nothing, and says 255. So they ask one at a time.
ASKING = threading.Lock()
START_TIMEOUT_S = 120.0
KIB = 1 << 10
HOUR_MS = 3_600_000


def small_settings(data_dir: str) -> Settings:
    """Windows of a second, segments of some kilobytes, a checkpoint ten times a second: every file rolls soon."""
    return Settings(
        listen=ListenSettings(port=0),
        storage=StorageSettings(
            data_dir=data_dir,
            window_ms=1000,
            message_log_segment_bytes=24 * KIB,
            message_log_retention_ms=HOUR_MS,
            retention_ms=HOUR_MS,
            checkpoint_interval_ms=100,
            free_bytes_min=64 * KIB,
            dispatch_reserve_bytes=256 * KIB,
        ),
        wheel=WheelSettings(load_ahead_ms=1500),
        broker=BrokerSettings(segment_bytes=24 * KIB, ack_timeout_ms=HOUR_MS),
    )


def with_retention(settings: Settings) -> Settings:
    """Everything is given back about a second after it was due."""
    storage = replace(settings.storage, retention_ms=1000, message_log_retention_ms=1, clock_hold_ms=100)
    return replace(
        settings, storage=storage, broker=replace(settings.broker, retention_ms=200, unconsumed_retention_ms=1000)
    )


class ServerUnderTest:
    """One data directory and the server processes that run on it, one after the other."""

    def __init__(self, folder: Path, settings: Settings | None = None) -> None:
        self.data_dir = settings.storage.data_dir if settings else str(folder / "data")
        self.settings = settings or small_settings(self.data_dir)
        self.control = Control(str(folder / "control"))
        self._control_path = str(folder / "control")
        self._log = folder / "server.log"
        self._process: Any = None
        self._pipe: Any = None
        self.address = ""
        self.died_at = ""
        self.seen: set[Operation] = set()

    def now_us(self) -> int:
        """The time by the server's clock."""
        return time.time_ns() // 1000 + self.control.step_us

    def launch(
        self,
        point: str = "",
        *,
        fail_sync: tuple[str, int] | None = None,
        open_files_max: int = 0,
        role: str = SERVER,
    ) -> None:
        """Start a process, with a crash point if one is given."""
        self.died_at = ""
        self.address = ""
        self._pipe, theirs = CONTEXT.Pipe()
        orders = Orders(self.settings, self._control_path, str(self._log), point, fail_sync, open_files_max, role)
        self._process = CONTEXT.Process(target=main, args=(orders, theirs), daemon=True)
        with ASKING:
            self._process.start()
        theirs.close()

    def start(self, point: str = "", **more: Any) -> bool:
        """Launch and wait; whether it got ready (otherwise it has ended)."""
        self.launch(point, **more)
        return self.wait_ready()

    def wait_ready(self) -> bool:
        """Whether it says that it is ready; False when it ended before."""
        assert self._pipe.poll(START_TIMEOUT_S), f"neither ready nor dead: {self.said()}"
        self._hear()
        return bool(self.address)

    def _hear(self) -> None:
        try:
            while self._pipe.poll(0):
                kind, value = self._pipe.recv()
                if kind == "ready":
                    self.address = value
                elif kind == "seen":
                    self.seen |= {Operation(*operation) for operation in value}
                else:
                    self.died_at = value
        except (EOFError, ConnectionResetError):
            pass

    @property
    def alive(self) -> bool:
        """Whether the process runs."""
        with ASKING:
            return bool(self._process.is_alive())

    @property
    def pid(self) -> int:
        """Its process id."""
        return int(self._process.pid)

    def wait(self, timeout_s: float = START_TIMEOUT_S) -> int:
        """Wait for the end; the exit code (negative: the signal)."""
        connection.wait([self._process.sentinel], timeout_s)
        assert not self.alive, f"the server did not end: {self.said()}"
        self._hear()
        self._pipe.close()
        return int(self._process.exitcode)

    def kill(self) -> None:
        """SIGKILL, from outside."""
        os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def terminate(self) -> None:
        """SIGTERM, without waiting."""
        os.kill(self.pid, signal.SIGTERM)

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        self.terminate()
        return self.wait()

    def clean_up(self) -> None:
        """Leave no process behind."""
        if self._process is not None and self.alive:
            self._process.kill()
            connection.wait([self._process.sentinel])
            assert not self.alive

    def said(self) -> str:
        """What the processes wrote to stderr."""
        return self._log.read_text(errors="replace")[-6000:] if self._log.exists() else ""
