"""Real server and broker processes for the audit's tests, and what clients saw of them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from delayserver.client import Client

ROOT = Path(__file__).parents[3]
START_TIMEOUT_S = 60


@dataclass
class ServerProcess:
    """`delayserver serve` or `delayserver broker` on a directory; it can be killed and started again."""

    role: str
    directory: Path
    port: int
    config: Path | None = None
    process: subprocess.Popen[str] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *settings: str) -> None:
        command = [sys.executable, "-m", "delayserver", self.role, "--json", "--data-dir", str(self.directory)]
        command += ["--port", str(self.port), "--http-port", "0"]
        if self.config is not None:
            command += ["--config", str(self.config)]
        for setting in settings:
            command += ["--set", setting]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line and json.loads(line)["ready"], f"{self.role} did not start: {line!r}"

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        if self.process is not None:
            self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)
        self.process.wait(START_TIMEOUT_S)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.process = None

    def client(self) -> Client:
        return Client(self.address)
