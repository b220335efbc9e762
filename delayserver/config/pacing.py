"""How much one step may do. Where several broker groups share the event loop, a step of one makes the others wait.

So their steps are smaller, and the throughput of each group is a little lower.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from delayserver.config.settings import DispatchSettings, Settings

# Outcomes of a burst of one group are written this much later, because the writing thread competes for the GIL. With
# several groups they are written at once: large late writes would delay the other groups.
OUTCOMES_LATE_MS = 100
# Messages that are read before they are due and not handed over, of all groups: about 400,000 of 100 bytes.
READ_EARLY_BYTES = 64 << 20
# One read of the broker's store: large enough for the disk, small for its cache.
READ_AHEAD_BYTES = 1 << 20
# One record of a broker that shares the event loop: reading it back takes half a millisecond.
SHARED_READ_AHEAD_BYTES = 128 * 1024
_NO_BOUND = 1 << 31


@dataclass(frozen=True, slots=True)
class Pacing:
    """The bounds of steps that depend on the number of broker groups.

    `slice_rows`: rows that leave the wheel in one step. `pulled_rows_max`: messages that one step hands out to consumers.
    `read_ahead_bytes`: one read of the broker's store. `read_early_bytes_max`: bodies that each group reads early.
    `outcomes_late_ms_max`: how long the outcomes of a burst may gather. `dispatch`: the settings of every group.
    """

    slice_rows: int
    pulled_rows_max: int
    read_ahead_bytes: int
    read_early_bytes_max: int
    outcomes_late_ms_max: int
    dispatch: DispatchSettings

    @classmethod
    def of(cls, settings: Settings) -> Pacing:
        """The pacing of a server with the broker groups of its settings."""
        wheel, dispatch, groups = settings.wheel, settings.dispatch, len(settings.groups)
        if groups == 1:
            return cls(wheel.slice_rows, _NO_BOUND, READ_AHEAD_BYTES, READ_EARLY_BYTES, OUTCOMES_LATE_MS, dispatch)
        rows = wheel.shared_slice_rows
        batch_rows = min(dispatch.batch_messages_max, rows)
        return cls(
            slice_rows=rows,
            pulled_rows_max=rows,
            read_ahead_bytes=SHARED_READ_AHEAD_BYTES,
            read_early_bytes_max=READ_EARLY_BYTES // groups,
            outcomes_late_ms_max=0,
            dispatch=replace(dispatch, batch_messages_max=batch_rows),
        )
