"""The gateway as a process, in front of a server under measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import TracebackType
from typing import Self

from ops.bench.server_process import ServerFailed, process_cpu_s, python_path


class Gateway:
    """``delayserver http`` for a server. A `with` block starts and stops it. Raises `ServerFailed`."""

    def __init__(self, server: str) -> None:
        command = [sys.executable, "-m", "delayserver", "http", "--server", server, "--port", "0", "--json"]
        environment = {**os.environ, "PYTHONPATH": python_path()}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, env=environment)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerFailed("the gateway ended before it was ready")
        self.port = int(json.loads(line)["http_port"])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.communicate()

    def cpu_s(self) -> float:
        """The processor time of all threads so far, in seconds."""
        return process_cpu_s(self._process.pid)
