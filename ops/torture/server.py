"""The server of a torture run: a real process, started like an operator does, killed by its pid."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
STOP_TIMEOUT_S: Final = 30.0  # above the server's own bound for a clean stop


class ServerFailed(Exception):
    """The server did not start or did not stop cleanly. Has the end of its log."""


class TorturedServer:
    """`python -m delayserver serve` on one data directory, started many times."""

    def __init__(
        self,
        directory: str,
        config: str,
        data_dir: str,
        ports: tuple[int, int] = (0, 0),
        options: Sequence[str] = (),
    ) -> None:
        """`ports`: of the protocol and of HTTP. A protocol port 0 is another one at each start; HTTP port 0 is no HTTP.
        `options`: more of the command line."""
        self._ports = ports
        self._options = options
        self._data_dir = data_dir
        self._config = config
        self._log = f"{directory}/server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._said = 0
        self.address = ""

    def launch(self) -> None:
        """Starts the process and returns at once."""
        command = [sys.executable, "-m", "delayserver", "serve", "--json", "--port", str(self._ports[0])]
        command += ["--http-port", str(self._ports[1])]
        command += ["--data-dir", self._data_dir, "--config", self._config, *self._options]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
        with open(self._log, "ab") as log:
            self._said = log.tell()
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "PYTHONPATH": path}
            )

    def start(self) -> None:
        """Starts the process and waits until it accepts requests. Raises ServerFailed."""
        self.launch()
        assert self._process is not None and self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise ServerFailed(f"the server ended before it was ready: {self.last_words()}")
        ready = json.loads(line)
        self.address = f"{ready['host']}:{ready['port']}"

    @property
    def pid(self) -> int | None:
        """The process that runs, or None."""
        return None if self._process is None else self._process.pid

    def cpu_s(self) -> float:
        """Processor time of the process so far, in seconds. On a busy machine a start takes much longer than that."""
        assert self._process is not None
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def kill(self) -> None:
        """Kills the process with SIGKILL, like a crash."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Stops the process by SIGSTOP, like a machine that stands still."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets a paused process go on."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def lose_power(self) -> list[str]:
        """Kills the process after its disk is gone; it may have ended by itself. Returns log lines that wrongly call an
        error of the disk a bug."""
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        process.kill()
        process.wait()
        process.stdout.close()
        said = Path(self._log).read_bytes()[self._said :].decode(errors="replace")
        return [line for line in said.splitlines() if "Traceback" in line or "bug while" in line]

    def stop(self) -> None:
        """Stops the server with SIGTERM. Raises ServerFailed if it does not end, or not with exit code 0."""
        code = self._end(signal.SIGTERM)
        if code:
            raise ServerFailed(f"a clean stop ended with code {code}: {self.last_words()}")

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        assert process is not None and process.stdout is not None
        gone = process.poll()
        if gone is None:
            process.send_signal(how)
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ServerFailed(f"it did not stop within {STOP_TIMEOUT_S:g} s: {self.last_words()}") from None
        finally:
            process.stdout.close()
        if gone is not None:
            raise ServerFailed(f"the server had ended by itself with code {gone}: {self.last_words()}")
        return code

    def clean_up(self) -> None:
        """Kills the process if it still runs."""
        process, self._process = self._process, None
        if process is not None and process.stdout is not None:
            process.kill()
            process.wait()
            process.stdout.close()

    def last_words(self) -> str:
        """The end of the server's stderr."""
        return Path(self._log).read_text(errors="replace")[-2000:].strip() or "it said nothing"
