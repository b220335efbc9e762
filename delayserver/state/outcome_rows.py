"""Outcome rows that no attempt makes: of cancels, and of suppressed duplicates. And the cancels in reschedules."""

from __future__ import annotations

import numpy as np

from delayserver.protocol.outcomes import Outcome
from store.indexes.schedule_index import ScheduleIndex
from store.records.batches import CancelBatch, MessageBatch, OutcomeBatch


def suppressed_outcomes(copies: ScheduleIndex, now_us: int) -> OutcomeBatch:
    """Outcome rows for suppressed copies: `deduplicated`, with the sequence of the original."""
    return OutcomeBatch.filled(
        len(copies),
        sequence=copies.sequence,
        due_ms=copies.due_ms,
        accepted_us=copies.accepted_us,
        settled_us=now_us,
        origin_sequence=copies.duplicate_of,
        subject=copies.subject,
        outcome=int(Outcome.DEDUPLICATED),
    )


def cancelled_outcomes(batch: CancelBatch, now_us: int) -> OutcomeBatch:
    """Outcome rows of cancels."""
    return OutcomeBatch.filled(
        len(batch),
        sequence=batch.sequence,
        due_ms=batch.due_ms,
        settled_us=now_us,
        subject=batch.subject,
        outcome=int(Outcome.CANCELLED),
        replaced_by_sequence=batch.replaced_by_sequence,
        replaced_by_due_ms=batch.replaced_by_due_ms,
    )


def replaced_messages(batch: MessageBatch) -> CancelBatch:
    """The cancels that lie in rescheduling messages."""
    rows = np.flatnonzero(batch.replaces_sequence)
    return CancelBatch.filled(
        len(rows),
        sequence=batch.replaces_sequence[rows],
        due_ms=batch.replaces_due_ms[rows],
        requested_us=batch.accepted_us[rows],
        subject=batch.subject[rows],
        replaced_by_sequence=batch.sequence[rows],
        replaced_by_due_ms=batch.due_ms[rows],
    )
