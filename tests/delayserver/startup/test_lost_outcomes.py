"""When all outcomes that a dispatch file lost are known from other files, and when its window is held back."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.protocol.outcomes import Outcome
from delayserver.startup.lost_outcomes import LoggedCancels, is_restored
from store.logs.dispatch_log import OUTCOMES
from store.logs.window_state import FileMark, Loss, loss_between
from store.records.batches import CancelBatch


def lost(internal: int = 0, **outcomes: int) -> Loss:
    counts = [0] * (2 * OUTCOMES)
    for name, count in outcomes.items():
        counts[int(Outcome[name.upper()])] = count
    counts[OUTCOMES] = internal
    return Loss(64, 0, sum(counts), 0, tuple(counts))


def logged(*sequences: int, covered: bool = True, whole: bool = True) -> LoggedCancels:
    batch = CancelBatch.filled(len(sequences), sequence=np.array(sequences, np.int64))
    return LoggedCancels(batch, np.full(len(sequences), covered), whole)


@pytest.mark.parametrize(
    ("loss", "cancels", "left", "restored"),
    [
        (lost(cancelled=2), logged(1, 2), [], True),
        (lost(cancelled=2), logged(1, 2, 3), [3], True),
        (lost(cancelled=2), logged(1, 2), [2], False),
        (lost(cancelled=2), logged(1, whole=False), [], False),
        (lost(cancelled=1), logged(1, whole=False), [], True),
        # The one that message_log still has may not be the one that the file lost.
        (lost(cancelled=1), logged(1, whole=False, covered=False), [], False),
        (lost(cancelled=1, deduplicated=3), logged(1), [], True),
        (lost(deduplicated=3), logged(), [], True),
        (lost(cancelled=1, delivered=1), logged(1), [], False),
        (lost(cancelled=1, expired=1), logged(1), [], False),
        (lost(dead_lettered=1), logged(1), [], False),
        (lost(cancelled=1, internal=1), logged(1), [], False),
    ],
)
def test_only_cancels_and_copies_are_known_from_other_files(
    loss: Loss, cancels: LoggedCancels, left: list[int], restored: bool
) -> None:
    assert is_restored(loss, cancels, np.array(left, np.int64)) == restored


def test_losses_of_one_file_add_up() -> None:
    first = loss_between(FileMark(900, 50, 10, (7, 3)), FileMark(500, 30, 6, (6, 0)), None)
    assert first == Loss(500, 50, 10, 6, (1, 3)) and first.lost_rows == 4
    again = loss_between(FileMark(800, 70, 9, (9, 0)), FileMark(0), first)
    assert again == Loss(0, 70, 13, 0, (10, 3)) and again.lost_rows == 13
    assert loss_between(FileMark(900, 50, 10, (7, 3)), FileMark(896, 50, 10, (7, 3)), first) is first
