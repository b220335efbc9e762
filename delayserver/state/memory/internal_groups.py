"""Internal groups: for records of the server itself, which a task of this server takes when they are due.

Such records stand in the files like messages, and wheel, queue and retries are those of a broker group. In the place of a
node stands a queue, `DueRecords`. The task takes batches from it and answers them. So nothing below the task knows it.
An internal group is in no settings. It has a subject of its own in names.log, and no name there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from store.records.schedule_timer import SCHEDULES_SUBJECT
from store.records.transaction_timer import TIMER, TIMERS_SUBJECT
from store.tables.names import OWN, SCHEDULING


@dataclass(frozen=True, slots=True)
class InternalGroup:
    """`code` is that of no broker group: those count from 1. Its `route_number` is that of no route of the settings.
    `name_kind` is that of the subject in names.log.

    At most `batches_max` batches of `records_max` records of `record_bytes` wait for the task or are with it."""

    subject: str
    name_kind: int
    code: int
    route_number: int
    batches_max: int
    records_max: int
    record_bytes: int


# A check-back carries a whole message, so a batch of timers is small, and one is asked while the next one is read.
TIMERS: Final = InternalGroup(
    TIMERS_SUBJECT, OWN, 0xFFFF_FFFF, 1, batches_max=2, records_max=256, record_bytes=TIMER.itemsize
)
# A batch is decided while the next one is read.
SCHEDULES: Final = InternalGroup(
    SCHEDULES_SUBJECT, SCHEDULING, 0xFFFF_FFFE, 2, batches_max=2, records_max=256, record_bytes=1024
)

INTERNAL_GROUPS: Final = (TIMERS, SCHEDULES)
INTERNAL_CODES: Final = frozenset(group.code for group in INTERNAL_GROUPS)
# Route numbers: 0 stands for no route. Those of internal groups follow, then those of the settings.
ROUTE_NUMBER_FIRST: Final = 1 + len(INTERNAL_GROUPS)
