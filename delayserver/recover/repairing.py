"""Repair as a whole: under the lock, with the counts put right behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from delayserver.recover.capture import Capture, capture
from delayserver.recover.findings import Findings
from delayserver.recover.log_check import first_kept_sequence
from delayserver.recover.repair import apply_repair, recount
from delayserver.recover.repair_plan import Step
from delayserver.recover.units import Units
from delayserver.recover.window_check import Range, Visited, WindowCheck
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
    return windows.accepted_before + ledger


def _see(_visited: Visited) -> None:
    pass


def _ignore(_bytes: int) -> None:
    pass
