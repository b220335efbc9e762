"""An ordinary client in a process of its own. It sends a message, waits for it and acks it, and says how long that took.

In the process of the shop it would measure that process, which is busy with a whole shop.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time

from delayserver.client import Client, DelayServerError
from ops.torture.shop.figures import Probes

PAUSE_S = 1.0
AGAIN_S = 0.2


class Prober:
    """The process, and a thread that reads its times, until `stop`."""

    def __init__(self, probes: Probes) -> None:
        self._probes = probes

    def start(self, address: str) -> None:
        """Starts both."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ops.torture.shop.prober", address], stdout=subprocess.PIPE, text=True
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def stop(self) -> None:
        """Ends both."""
        self._process.kill()
        self._reader.join()
        self._process.wait()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self._probes.add(float(line))


def main(address: str) -> None:
    """Goes on for ever, through refusals, restarts and lost connections."""
    with Client(address, timeout_s=60.0) as client:
        while True:
            try:
                started = time.perf_counter()
                client.send("probe", b"0 probe", delay_ms=0)
                client.ack("probe", "probe", client.pull("probe", "probe", 10, wait_s=10.0))
                print((time.perf_counter() - started) * 1000, flush=True)
                time.sleep(PAUSE_S)
            except DelayServerError:
                time.sleep(AGAIN_S)


if __name__ == "__main__":
    main(sys.argv[1])
