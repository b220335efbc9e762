"""What a check holds in memory does not grow with what the logs hold."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np

from delayserver.recover.balance import ACCEPTED, Balance
from delayserver.recover.capture import capture
from delayserver.recover.due_range import Range
from delayserver.recover.findings import Findings
from delayserver.recover.log_check import LogCheck
from delayserver.recover.outcome_rows import OutcomeRows
from delayserver.recover.units import Units
from store.batches import I64, CancelBatch
from store.filesystem import RealFileSystem
from store.message_log import MessageLog
from tests.delayserver.recover.directories import Made, copy, in_process

MIB = 1 << 20


def log_cancels(made: Made, number: int, rows: int) -> None:
    """Cancels behind all that the log has, of messages that nobody sent, as records of so many rows."""
    log = MessageLog.open(RealFileSystem(), f"{made.path}/message_log", int(made.server_id, 16), segment_bytes=64 << 10)
    for first in range(0, number, rows):
        sequence = np.arange(1 << 40, (1 << 40) + rows) + first
        log.append([CancelBatch.filled(rows, sequence=sequence, due_ms=sequence % 600_000, subject=1)])
    log.sync()
    log.close()


def settled(made: Made, cancels_max: int) -> list[tuple[I64, I64, I64]]:
    """What a pass over the log hands on, with everything counted as replayed."""
    taken = capture(RealFileSystem(), str(made.path), Findings())
    taken.checkpoint = type(taken.checkpoint)(taken.server_id, replay_offset=1 << 62)
    lots: list[tuple[I64, I64, I64]] = []

    def settle(sequence: I64, due_ms: I64, offset: I64) -> None:
        lots.append((sequence, due_ms, offset))

    log = LogCheck(
        taken, Units(taken), OutcomeRows.empty(), Range(), Findings(), lambda _bytes: None,
        settle=settle, cancels_max=cancels_max,
    )  # fmt: skip
    log.run()
    taken.close()
    return lots


def test_cancels_are_looked_up_a_bounded_number_at_a_time_and_each_once(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    log_cancels(made, 1000, 30)
    lots = settled(made, 64)
    assert max(len(sequence) for sequence, _, _ in lots) <= 64
    [everything] = settled(made, 1 << 20)
    assert len(everything[0]) > 1000
    for index in range(3):
        assert np.concatenate([lot[index] for lot in lots]).tolist() == everything[index].tolist()


def test_a_pass_over_many_cancels_holds_a_lot_of_them_and_no_more(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    log_cancels(made, 1_200_000, 40_000)
    peaks = []
    taken = capture(RealFileSystem(), str(made.path), Findings())
    taken.checkpoint = type(taken.checkpoint)(taken.server_id, replay_offset=1 << 62)
    for cancels_max in (1 << 16, 1 << 22):
        log = LogCheck(
            taken, Units(taken), OutcomeRows.empty(), Range(), Findings(), lambda _bytes: None,
            settle=lambda _sequence, _due_ms, _offset: None, cancels_max=cancels_max,
        )  # fmt: skip
        tracemalloc.start()
        log.run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    taken.close()
    # 24 bytes a cancel, and as much again while they are joined: 58 MB that the bound keeps away.
    assert peaks[1] - peaks[0] > 24 * 1_000_000, peaks


def test_a_check_of_a_directory_with_cancels_beyond_its_lot_finds_what_it_found(stopped: Made, tmp_path: Path) -> None:
    made = copy(stopped, tmp_path / "data")
    log_cancels(made, 90, 30)
    done = in_process("check", str(made.path), "--json")
    assert done.last["accepted"] == stopped.accepted


def test_a_subject_code_that_no_table_holds_costs_an_entry_and_not_a_table_up_to_it() -> None:
    balance, other = Balance(), Balance()
    tracemalloc.start()
    balance.add(ACCEPTED, np.array([3, 0xFFFF_FFF0, 3, 0xFFFF_FFFF], np.uint32))
    other.add(ACCEPTED, np.full(5, 0xFFFF_FFFF, np.uint32))
    balance.merge(other)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    subjects, counts = balance.rows()
    assert subjects.tolist() == [3, 0xFFFF_FFF0, 0xFFFF_FFFF]
    assert counts[:, ACCEPTED].tolist() == [2, 1, 6]
    assert int(balance.totals()[ACCEPTED]) == 9
    assert peak < MIB
