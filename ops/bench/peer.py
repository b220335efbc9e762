"""This project as a peer of the harness that measures Redis, PostgreSQL, beanstalkd and others.

So figures of one run on one machine give ratios.

    PEERS_HARNESS=DIR python -m ops.bench.peer ingest --mode sync --shapes 8x1000
    python -m ops.bench.peer --harness DIR thunder --n 100000

The harness is not part of this repository. All arguments except its folder are those of its command line. The modes are
the durabilities ``sync`` and ``os``.
"""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from delayserver.client import Client, DelayServerError, PulledColumns
from ops.bench.server_process import python_path

VARIABLE: Final = "PEERS_HARNESS"
MODES: Final = ("sync", "os")
LOAD_RATES: Final = {"sync": 100_000, "os": 100_000}  # floors, from which the harness computes the due second
SUBJECT, GROUP = "peers", "peers"
PORT: Final = 26_801
SERVING_S_MAX: Final = 120.0
PULL_MESSAGES_MAX: Final = 8192

BODY: Final = np.dtype([("due_s", "<f8"), ("number", "<i8"), ("filler", "V84")])
RECORD: Final = np.dtype([("received_s", "<f8"), ("due_s", "<f8"), ("number", "<i8")])


class HarnessMissing(Exception):
    """The folder of the harness is not given, or has no harness."""


def load_harness(directory: str | None) -> Any:
    """The module `common` of the harness in ``directory`` (default: $PEERS_HARNESS). Raises `HarnessMissing`."""
    directory = directory or os.environ.get(VARIABLE)
    if not directory:
        raise HarnessMissing(f"name the folder of the peers' harness: --harness DIR, or {VARIABLE}=DIR")
    if not (Path(directory) / "common.py").is_file():
        raise HarnessMissing(f"{directory} holds no harness: there is no common.py in it")
    if directory not in sys.path:
        sys.path.insert(0, directory)
    return importlib.import_module("common")


class Producer:
    """Sends lists of (due in unix seconds, body). `send` returns when all are durable."""

    def __init__(self, address: str) -> None:
        self._client = Client(address, timeout_s=120.0, retries=0)
        self._client.connect()

    def send(self, messages: Sequence[tuple[float, bytes]]) -> None:
        """Sends one message as a row, several as columns. Rounds due times up to whole milliseconds."""
        if len(messages) == 1:
            due_s, body = messages[0]
            self._client.send(SUBJECT, body, due_ms=math.ceil(due_s * 1000))
            return
        due, bodies = zip(*messages, strict=True)
        due_ms = np.ceil(np.fromiter(due, np.float64, len(due)) * 1000).astype(np.int64)
        sent = self._client.send_columns(SUBJECT, due_ms, list(bodies))
        if sent.accepted != len(messages):
            raise RuntimeError(f"{sent.accepted} of {len(messages)} accepted: {sent.rejected[:1]}")


def records_of(pulled: PulledColumns, received_s: float) -> bytes:
    """The records of some messages as the harness's recorder writes them, made at once."""
    bodies = np.frombuffer(pulled.bodies.blob, BODY)
    records = np.empty(pulled.count, RECORD)
    records["received_s"] = received_s
    records["due_s"] = bodies["due_s"]
    records["number"] = bodies["number"]
    return records.tobytes()


def make_peer(common: Any) -> Any:
    """The adaptor, a subclass of the harness's ``Peer``."""

    class DelayServerPeer(common.Peer):  # type: ignore[misc]
        name = "delayserver"
        port = PORT

        @property
        def address(self) -> str:
            return f"127.0.0.1:{self.port}"

        def launch(self) -> None:
            command = [sys.executable, "-m", "delayserver", "serve", "--data-dir", f"{self.dir}/data"]
            command += ["--port", str(self.port), "--http-port", "0", "--set", f"storage.durability={self.mode}"]
            with open(f"{common.OUT}/delayserver.log", "ab") as log:
                process = subprocess.Popen(
                    command, stdout=log, stderr=log, env={**os.environ, "PYTHONPATH": python_path()}
                )
            self.pids = [process.pid]

        def serving(self) -> None:
            end = time.monotonic() + SERVING_S_MAX
            while True:
                try:
                    with Client(self.address, retries=0) as client:
                        client.status()
                    return
                except DelayServerError:
                    if time.monotonic() > end:
                        raise
                    time.sleep(0.002)

        def producer(self) -> Producer:
            return Producer(self.address)

        def pending(self) -> int:
            with Client(self.address, timeout_s=120.0) as client:
                return int(client.status()["pending"])

        def consume(self, path: str, stop: Any) -> None:
            recorder = common.Recorder(path)
            previous = None
            with Client(self.address, timeout_s=120.0) as client:
                while not stop.is_set():
                    pulled = client.pull_columns(SUBJECT, GROUP, PULL_MESSAGES_MAX, 0.25, ack=previous)
                    received_s = time.time()
                    previous = pulled if pulled.count else None
                    if pulled.count:
                        os.write(recorder.fd, records_of(pulled, received_s))
                if previous is not None:
                    client.ack(SUBJECT, GROUP, previous)

    return DelayServerPeer


def main(arguments: list[str]) -> None:
    """Takes the folder from the arguments and gives the others to the harness."""
    directory = None
    if "--harness" in arguments:
        place = arguments.index("--harness")
        directory = arguments[place + 1] if place + 1 < len(arguments) else None
        del arguments[place : place + 2]
    try:
        common = load_harness(directory)
    except HarnessMissing as error:
        sys.exit(f"Error: {error}")
    sys.argv[1:] = arguments
    common.main(make_peer(common), list(MODES), LOAD_RATES)


if __name__ == "__main__":
    main(sys.argv[1:])
