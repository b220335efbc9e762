"""The timer of a schedule: an internal record that comes due when the schedule fires next. It holds the whole schedule.

The record that holds a firing holds the next timer as well, which replaces this one. So a schedule is one pending record for
as long as it lives, and a crash leaves either both or none. A schedule that is paused, or has no moment left, has a timer
too, which is due far away. `origin_sequence` is the record that made the schedule, or changed it last. FORMAT.md describes
the body.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64, OWN_SEQUENCE, MessageBatch, StoredBatch
from store.records.column_batch import ragged_offsets

# The subject of timers, a name of a kind of its own in names.log: no client's subject has its code.
SCHEDULES_SUBJECT: Final = "schedules"


class ScheduleTimer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a timer says of its schedule. A field that this program does not know makes the body unreadable."""

    name: str
    definition: bytes
    """The definition of the user: the msgpack map of a request."""
    row: tuple[int, bytes, bytes, int, bytes]
    """What each firing has: code of the subject, body, properties without those of the moment, tag's code, order key."""
    after_ms: int
    """The last moment that was decided."""
    moment_ms: int = 0
    """The moment that comes next; 0: none, or it is farther away than the timer."""
    fired: int = 0
    """How many messages the schedule has made."""
    paused: bool = False
    changed_ms: int = 0
    """When the definition was given."""


_encode: Final = msgspec.msgpack.Encoder().encode
_decoder: Final = msgspec.msgpack.Decoder(ScheduleTimer)


def schedule_timers(
    timers: Sequence[ScheduleTimer],
    due_ms: Sequence[int],
    subject: int,
    origin_sequence: I64 | None,
    replaces: tuple[I64, I64] | None = None,
) -> MessageBatch:
    """Records of n timers. `origin_sequence` i64[n]; None: each timer is the record that makes its schedule.

    `replaces`: sequences and due times, i64[n] each, of the timers in whose place they come."""
    columns: dict[str, Any] = {}
    if replaces is not None:
        columns = {"replaces_sequence": replaces[0], "replaces_due_ms": replaces[1]}
    bodies = [_encode(timer) for timer in timers]
    return MessageBatch.filled(
        len(timers),
        due_ms=np.array(due_ms, np.int64),
        subject=subject,
        origin_sequence=OWN_SEQUENCE if origin_sequence is None else origin_sequence,
        bodies=b"".join(bodies),
        bodies_length=np.array([len(body) for body in bodies], np.uint32),
        **columns,
    )


def read_schedules(batch: MessageBatch | StoredBatch, rows: NDArray[np.intp]) -> list[ScheduleTimer | None]:
    """The timers in some rows of a batch; None where the body is none that this program reads."""
    offsets = ragged_offsets(batch.bodies_length)
    return [read_schedule(batch.bodies[offsets[row] : offsets[row + 1]]) for row in rows.tolist()]


def read_schedule(body: Any) -> ScheduleTimer | None:
    """The timer of a body; None for another body."""
    try:
        return _decoder.decode(body)
    except msgspec.MsgspecError:
        return None
