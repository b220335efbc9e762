"""Row `backup-beside-ingest`: what a backup costs the senders beside it."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from typing import Final

from ops.bench.children import run_together
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import ingest, rate_of
from ops.bench.server_process import ServerProcess, fresh_directory, python_path

PAIRS: Final = 3
TURN_S: Final = 6.0


def measure_backup(options: Options) -> Run:
    """Turns of senders without and with a backup, which begins with its turn and copies all that was sent since the one
    before. The value is the median ratio of neighbouring turns; `backup_s` is the longest backup."""
    seconds = options.seconds or TURN_S
    ratios, took_s = [], []
    with (
        fresh_directory(options.data_dir) as directory,
        fresh_directory(options.data_dir) as place,
        ServerProcess(directory) as server,
    ):
        for _ in range(PAIRS):
            alone = _turn(server, seconds)
            begin_s = time.perf_counter()
            backup = subprocess.Popen(
                [sys.executable, "-m", "delayserver", "backup", "--server", server.address, "--to", place],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdout=subprocess.DEVNULL,
            )
            beside = _turn(server, seconds)
            expect(backup.wait() == 0, "the backup failed")
            took_s.append(time.perf_counter() - begin_s)
            ratios.append(beside / alone)
        stall_ms = int(server.status()["event_loop"]["longest_stall_ms"])
    return Run(statistics.median(ratios), {"backup_s": rounded(max(took_s)), "longest_stall_ms": stall_ms})


def _turn(server: ServerProcess, seconds: float) -> float:
    rate = rate_of(run_together([(ingest, server.address, 1000, seconds, 0)] * 8))
    server.wait_replayed()
    return rate
