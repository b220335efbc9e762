"""The round step that counts: messages, internal records, and both by subject (rule 3)."""

from __future__ import annotations

import numpy as np

from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.state.counts.balance import Balance
from delayserver.state.replay_round import Round
from delayserver.state.windows.windows import Windows
from store.logs.due_windows import window_starts
from store.records.batches import MessageBatch
from store.records.column_batch import has_any


class RoundCounts:
    """Round → balance."""

    def __init__(self, balance: Balance, windows: Windows, outcomes: RoundOutcomes) -> None:
        self._balance = balance
        self._retired = windows.retired
        self._window_ms = windows.book.window_ms
        self._outcomes = outcomes

    def publish(self, done: Round) -> None:
        """Count a round."""
        self._balance.place(done.accepted, done.internal, done.replaced)
        if done.messages is None:
            return
        subjects = self._balance.subjects
        subjects.place(done.messages)
        self._note_timers(done.messages)
        if self._outcomes.recovering and subjects.is_found and self._has_retired(done.messages):
            subjects.doubt()

    def _note_timers(self, messages: MessageBatch) -> None:
        """Timers are internal records for no group. A few other records that look so make the time too late, not wrong."""
        if has_any(messages.origin_sequence):
            timers = (messages.origin_sequence != 0) & (messages.target_group == 0)
            if timers.any():
                self._balance.extend_timers(int(messages.due_ms[timers].max()))

    def _has_retired(self, messages: MessageBatch) -> bool:
        """Whether a window of these messages is retired: its outcomes are not in its files any more."""
        starts = np.unique(window_starts(messages.due_ms, self._window_ms)).tolist()
        return any(self._retired.has(start) for start in starts)
