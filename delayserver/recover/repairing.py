"""Repair as a whole: under the lock, with the counts put right behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

import numpy as np

from delayserver.recover.capture import Capture, capture
from delayserver.recover.due_range import Range
from delayserver.recover.file_read import FileRead
from delayserver.recover.findings import Findings
from delayserver.recover.log_check import first_kept_sequence, log_parts
from delayserver.recover.repair import apply_repair, recount
from delayserver.recover.repair_plan import Step
from delayserver.recover.units import Units
from delayserver.recover.window_check import Visited, WindowCheck
from store.batches import MessageBatch
from store.columns import MalformedColumnsError
from store.filesystem import FileSystem
from store.identity import LOCK


@contextmanager
def locked(fs: FileSystem, path: str) -> Iterator[None]:
    """The directory for us alone. Raises LockedError: a server or another tool works on it."""
    lock = fs.lock(f"{path}/{LOCK}", b"delayserver recover")
    try:
        yield
    finally:
        lock.close()


def carry_out(taken: Capture, steps: Sequence[Step], tell: Callable[[str], None] = lambda _text: None) -> None:
    """Do the steps of a plan that was made of the same capture, and count again what the files hold."""
    apply_repair(taken, steps, tell)
    after = capture(taken.fs, taken.path, Findings())
    try:
        if not after.checkpoint_lost:
            recount(after, count_accepted(after))
    finally:
        after.close()


def count_accepted(taken: Capture) -> int:
    """Messages of the balance up to the replayed sequence: in the files, and in the ledger of retired windows."""
    units = Units(taken)
    windows = WindowCheck(
        taken,
        units,
        first_kept_sequence(taken),
        Range(),
        Findings(),
        _ignore,
        lambda _tier, _start, _balance: None,
        _see,
    )
    windows.run()
    ledger = int(taken.ledger.totals().accepted.sum()) if taken.ledger is not None else 0
    return windows.accepted_before + ledger - _retired_waiting(taken, units)


def _retired_waiting(taken: Capture, units: Units) -> int:
    """Messages that the ledger counts and that the next start replays, which counts them again."""
    waiting = 0
    for part, expected in log_parts(taken):
        if part.base + part.size <= taken.checkpoint.replay_offset:
            continue
        read = FileRead(taken, part.path, part.size, expected, Findings(), _ignore)
        for records in read.records(blobs=False):
            mine = records.of_kind(MessageBatch.schema.kind)
            if not len(mine):
                continue
            with suppress(MalformedColumnsError):
                columns = mine.columns(MessageBatch, ("sequence", "due_ms", "origin_sequence"))
                again = units.is_retired(columns["due_ms"], columns["sequence"]) & (columns["origin_sequence"] == 0)
                again &= part.base + mine.row_offsets() >= taken.checkpoint.replay_offset
                waiting += int(np.count_nonzero(again))
    return waiting


def _see(_visited: Visited) -> None:
    pass


def _ignore(_bytes: int) -> None:
    pass
