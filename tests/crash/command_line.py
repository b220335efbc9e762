"""A server started as an operator starts it: `python -m delayserver serve`, with another environment or fewer rights.

Where both are those of the tests, it is forked."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.forked import popen

ROOT = Path(__file__).parents[2]
STOP_TIMEOUT_S = 60.0


def require(condition: object, what: str) -> None:
    """Skip without what a test needs; in CI, which installs it, fail: a check that does not run must not look green."""
    if not condition:
        if os.environ.get("CI"):
            pytest.fail(f"CI must have {what}")
        pytest.skip(f"needs {what}")


class CommandLineServer:
    """One data directory and the server processes that run on it. `prefix` stands before the command, `options` behind it.
    `root` has the program."""

    def __init__(
        self,
        folder: Path,
        config: str,
        *,
        prefix: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        root: Path = ROOT,
        options: Sequence[str] = ("--http-port", "0"),
    ) -> None:
        self.data_dir = folder / "data"
        self._config = folder / "delayserver.toml"
        self._config.write_text(config)
        self._log = folder / "server.log"
        self._prefix = list(prefix)
        self._env = {**os.environ, **(env or {})}
        self._forked = not prefix and not env and root == ROOT
        self._root = root
        self._options = list(options)
        self._process: subprocess.Popen[bytes] | None = None
        self.address = ""

    def start(self) -> bool:
        """Start; whether it got ready, otherwise it has ended."""
        command = [*self._prefix, sys.executable, "-m", "delayserver", "serve", "--json", "--port", "0", *self._options]
        command += ["--data-dir", str(self.data_dir), "--config", str(self._config)]
        start = popen if self._forked else subprocess.Popen
        with self._log.open("ab") as log:
            self._process = start(command, stdout=subprocess.PIPE, stderr=log, cwd=self._root, env=self._env)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            return False
        ready = json.loads(line)
        self.address = f"{ready['host']}:{ready['port']}"
        return True

    def wait(self) -> int:
        """Wait for the end; the exit code."""
        assert self._process is not None and self._process.stdout is not None
        code = self._process.wait(STOP_TIMEOUT_S)
        self._process.stdout.close()
        return code

    def stop(self) -> int:
        """SIGTERM, and wait; the exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        """SIGKILL, and wait."""
        assert self._process is not None
        self._process.kill()
        self.wait()

    def clean_up(self) -> None:
        """Leave no process behind."""
        if self._process is not None and self._process.stdout is not None and not self._process.stdout.closed:
            self.kill()

    def said(self) -> str:
        """What the processes wrote to stderr."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""
