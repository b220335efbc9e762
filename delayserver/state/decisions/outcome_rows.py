"""Outcome rows that no attempt makes: of cancels, rollbacks and suppressed duplicates. And the cancels in reschedules and
commits."""

from __future__ import annotations

import numpy as np

from delayserver.protocol.outcomes import Outcome
from store.indexes.schedule_index import ScheduleIndex
from store.records.batches import U8, CancelBatch, MessageBatch, OutcomeBatch
from store.records.column_batch import has_any


def suppressed_outcomes(copies: ScheduleIndex | MessageBatch, now_us: int) -> OutcomeBatch:
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
    """Outcome rows of cancels and rollbacks."""
    return OutcomeBatch.filled(
        len(batch),
        sequence=batch.sequence,
        due_ms=batch.due_ms,
        settled_us=now_us,
        origin_sequence=batch.origin_sequence,
        subject=batch.subject,
        outcome=_outcome_codes(batch),
        replaced_by_sequence=batch.replaced_by_sequence,
        replaced_by_due_ms=batch.replaced_by_due_ms,
    )


def _outcome_codes(batch: CancelBatch) -> U8 | int:
    if not has_any(batch.outcome):
        return int(Outcome.CANCELLED)
    return np.where(batch.outcome == 0, np.uint8(Outcome.CANCELLED), batch.outcome)


def cancels_of_replacements(batch: MessageBatch) -> CancelBatch:
    """The cancels that lie in messages which replace others: those of a reschedule or a commit, and timers."""
    rows = np.flatnonzero(batch.replaces_sequence)
    return CancelBatch.filled(
        len(rows),
        sequence=batch.replaces_sequence[rows],
        due_ms=batch.replaces_due_ms[rows],
        requested_us=batch.accepted_us[rows],
        subject=batch.subject[rows],
        replaced_by_sequence=batch.sequence[rows],
        replaced_by_due_ms=batch.due_ms[rows],
        origin_sequence=batch.origin_sequence[rows],
    )
