"""The timer of a prepared transaction: an internal record that comes due when the transaction is to be asked about.

Its `origin_sequence` is the transaction. Its body, of 32 bytes, says where the transaction is and what is to be done. The
record that makes a check-back holds the next timer as well, which replaces this one. FORMAT.md draws the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64, U32, MessageBatch
from store.records.column_batch import ragged_offsets

# The subject of timers, a name of the server's own in names.log: no client's subject has its code.
TIMERS_SUBJECT: Final = "transactions"

ROLL_BACK, COMMIT = 0, 1

TIMER: Final = np.dtype(
    [
        ("due_ms", "<i8"),
        ("check_after_ms", "<i8"),
        ("check", "<u4"),
        ("checks_max", "<u4"),
        ("check_subject", "<u4"),
        ("policy", "<u4"),
    ]
)
"""`due_ms` of the transaction, the pause between two checks, the number of the check that the timer makes (from 1), the
number of the last one, the code of the subject that gets the check-back, and what happens after the last one."""


def timer_batch(
    timers: NDArray[Any], due_ms: int, subject: int, origin_sequence: I64 | int, replaces: tuple[I64, I64] | None = None
) -> MessageBatch:
    """Records of n timers, due together. `origin_sequence` below 0 counts back from the timer's own sequence.

    `replaces`: sequences and due times, i64[n] each, of the timers in whose place they come."""
    columns: dict[str, Any] = {}
    if replaces is not None:
        columns = {"replaces_sequence": replaces[0], "replaces_due_ms": replaces[1]}
    return MessageBatch.filled(
        len(timers),
        due_ms=due_ms,
        subject=subject,
        origin_sequence=origin_sequence,
        bodies=timers.tobytes(),
        bodies_length=TIMER.itemsize,
        **columns,
    )


def read_timers(bodies: memoryview, lengths: U32) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The timers of n bodies, and True where a body is one, bool[n]. Other bodies give zeros."""
    sound = lengths == TIMER.itemsize
    if bool(sound.all()):
        return np.frombuffer(bodies, TIMER), sound
    timers = np.zeros(len(lengths), TIMER)
    offsets = ragged_offsets(lengths)[:-1]
    parts: Sequence[bytes] = [
        bytes(bodies[offset : offset + TIMER.itemsize]) for offset in offsets[np.flatnonzero(sound)].tolist()
    ]
    timers[sound] = np.frombuffer(b"".join(parts), TIMER)
    return timers, sound
