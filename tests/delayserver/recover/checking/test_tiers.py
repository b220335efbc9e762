"""Coarse days on their way to minutes: each message counts once, whichever files hold it."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.client import Client
from store.disk.filesystem import RealFileSystem
from store.logs.due_windows import DAY_MS, window_starts
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.tables.days import DayTable
from tests.delayserver.recover.directories import SMALL, Made, ServerProcess, in_process


def seal_and_drain(made: Made, rows_drained: int) -> None:
    """Leave the directory as a server that was killed while it drained the far day."""
    fs, path = RealFileSystem(), str(made.path)
    log = ScheduleLog(fs, f"{path}/schedule_log", int(made.server_id, 16), 60_000)
    log.recover_all({})
    [day] = [key for key in log.keys() if key.source == ScheduleSource.DAY]
    DayTable.open(fs, f"{path}/days", 0).seal(day.start_ms + DAY_MS, 398, [day.start_ms])
    [(_, batch)] = log.batches(day)
    drained = batch.slice(0, rows_drained)
    starts = window_starts(drained.due_ms, 60_000)
    for start in np.unique(starts).tolist():
        log.append(ScheduleKey(start, ScheduleSource.FROM_DAY), drained.take(np.flatnonzero(starts == start)))
    log.sync()
    log.close()


@pytest.mark.parametrize("rows_drained", [1, 20, 50])
def test_a_day_that_is_half_drained_counts_every_message_once(made: Made, rows_drained: int) -> None:
    seal_and_drain(made, rows_drained)
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["findings"]) == (0, [])
    assert (done.last["accepted"], done.last["pending"], done.last["cancelled"]) == (397, 92, 3)
    assert len(in_process("pending", str(made.path), "--list", "--json").rows) == 92


def test_a_check_finds_a_minute_that_lacks_messages_of_its_day(made: Made) -> None:
    seal_and_drain(made, 50)
    foreign = sorted(made.path.rglob("*.day.log"))
    day = next(made.path.rglob("schedule_log/*/day.log"))
    assert foreign
    day.unlink()
    foreign[7].unlink()
    done = in_process("check", str(made.path), "--json")
    assert done.code == 1
    assert "missing" in done.kinds()


def test_a_drained_day_balances_and_can_be_rebuilt(made: Made) -> None:
    wide = ("--set", "storage.fine_horizon_ms=30d")
    with ServerProcess(made.path, *SMALL, *wide) as server, Client(server.address) as client:
        for _ in range(200):
            if list(made.path.rglob("*.day.log")) and not list(made.path.rglob("schedule_log/*/day.log")):
                break
            client.pull("nobody", "waits", 1, 0.1)
        server.stop()
    assert len(list(made.path.rglob("*.day.log"))) >= 49
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["findings"]) == (0, [])
    assert (done.last["accepted"], done.last["pending"], done.last["cancelled"]) == (397, 92, 3)
    for path in sorted(made.path.rglob("*.day.log"))[:10]:
        path.unlink()
    lost = in_process("check", str(made.path), "--json")
    assert (lost.code, lost.kinds()) == (1, ["missing"])
    assert in_process("rebuild", str(made.path), "--yes").code == 0
    done = in_process("check", str(made.path), "--json")
    assert (done.code, done.last["findings"], done.last["pending"]) == (0, [], 92)
