"""The operation `prepare`: stores messages that consumers do not see until their transaction is committed.

A prepared message lies in the files like any other, at the due time that the sender wants, and is never loaded. Beside it,
in the same record, stands its timer: an internal record that comes due when the producer is to be asked.

Both stand in one record, for one sync. The message lies at the due time of the visible one, so deduplication, lookup
and retention work as for any message. The visible message is due when it was prepared for, or at its commit if that
is later. So a late commit needs no window of the past, and its lateness counts from the commit.

A transaction is accepted and pending when it is prepared. A commit accepts the visible message and ends the prepared
one as cancelled, in one record, so each counts once. Timers and check-backs are internal records and do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from delayserver.config.settings import TransactionSettings
from delayserver.names.name_desk import NameDesk
from delayserver.operations.sending.admission import Admission
from delayserver.operations.sending.placed_intake import ChecksMessages
from delayserver.operations.sending.send import Send, SentColumns, SentRows
from delayserver.protocol.arguments import invalid
from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.message_columns import MessageColumns
from delayserver.receive.group_commit import GroupCommit
from delayserver.runtime.clock import Clock
from delayserver.state.positions.gathering import Committed
from store.records.batches import FLAG_PREPARED, MessageBatch
from store.records.message_rows import MessageRows, to_batch
from store.records.transaction_timer import COMMIT, ROLL_BACK, TIMER, TIMERS_SUBJECT, timer_batch
from store.tables.names import OWN

# A producer that is at work answers within this; an earlier check-back would ask about what it is still doing.
CHECK_AFTER_MS_MIN: Final = 1_000
# Each check-back is a message. With the default pause this many take most of a day.
CHECKS_MAX: Final = 1_000
POLICIES: Final = {"rollback": ROLL_BACK, "commit": COMMIT}
# Check-backs of a producer's group are messages of the subject with its name and this end.
CHECK_SUFFIX: Final = ".check"


@dataclass(frozen=True, slots=True)
class TransactionTerms:
    """The terms of a request's transactions: the producer's `group`, and its policy. Unchecked; None for a default."""

    group: object
    check_after_ms: object = None
    checks_max: object = None
    policy: object = None


@dataclass(frozen=True, slots=True)
class Terms:
    """The checked terms of prepared messages. `check_subject` is the code of the subject that gets the check-backs,
    `timers_subject` that of the timers."""

    timers_subject: int
    check_subject: int
    check_after_ms: int
    checks_max: int
    policy: int


class TermsDesk:
    """Checks the terms that clients ask for, and fills in the defaults."""

    def __init__(self, names: NameDesk, defaults: TransactionSettings, delay_ms_max: int) -> None:
        """`delay_ms_max`: the longest delay of a message, which is that of a check as well."""
        self._names = names
        self._defaults = defaults
        self._delay_ms_max = delay_ms_max

    def terms(self, asked: TransactionTerms) -> Terms:
        """The terms of prepared messages. Raises InvalidArgument, SubjectInvalid, and the errors of `NameDesk.intern`."""
        defaults = self._defaults
        group = self._names.check_subject(asked.group, "producer group")
        after_ms = defaults.check_after_ms if asked.check_after_ms is None else asked.check_after_ms
        if type(after_ms) is not int or not CHECK_AFTER_MS_MIN <= after_ms <= self._delay_ms_max:
            raise invalid(
                "check_after_ms",
                f"milliseconds from {CHECK_AFTER_MS_MIN} to {self._delay_ms_max}",
                asked.check_after_ms,
            )
        checks_max = defaults.checks_max if asked.checks_max is None else asked.checks_max
        if type(checks_max) is not int or not 0 <= checks_max <= CHECKS_MAX:
            raise invalid("checks_max", f"a number from 0 to {CHECKS_MAX}", asked.checks_max)
        policy = defaults.policy if asked.policy is None else asked.policy
        if type(policy) is not str or policy not in POLICIES:
            raise invalid("policy", "rollback or commit", asked.policy)
        timers = int(self._names.intern(OWN, [TIMERS_SUBJECT])[0])
        return Terms(timers, self._names.subject(group + CHECK_SUFFIX), after_ms, checks_max, POLICIES[policy])


class Prepare:
    """Checks messages as for `send` and hands them to the group commit with their timers."""

    def __init__(
        self,
        send: Send,
        admission: Admission,
        intake: ChecksMessages,
        commit: GroupCommit,
        terms: TermsDesk,
        clock: Clock,
    ) -> None:
        self._send = send
        self._admission = admission
        self._intake = intake
        self._commit = commit
        self._terms = terms
        self._clock = clock

    def under(self, asked: TransactionTerms) -> PreparedSend:
        """A sender of messages under these terms. Raises the errors of `TermsDesk.terms`."""
        self._admission.require()
        return PreparedSend(self._send, self._intake, self._commit, self._terms.terms(asked), self._clock)


class PreparedSend:
    """Takes messages in rows or in columns, with the answers of `Send`."""

    def __init__(self, send: Send, intake: ChecksMessages, commit: GroupCommit, terms: Terms, clock: Clock) -> None:
        self._send = send
        self._intake = intake
        self._commit = commit
        self._terms = terms
        self._clock = clock

    def rows(self, messages: list[Any], answer: Callable[[SentRows | DelayServerError], None]) -> None:
        """Prepares messages in rows. As `Send.rows`."""
        rows, rejections = self._intake.rows(messages)
        if not rows:
            answer(SentRows([], rejections))
            return

        def done(result: Committed | DelayServerError) -> None:
            if isinstance(result, DelayServerError):
                answer(result)
            else:
                answer(SentRows(self._send.answer_for(rows, result.first_sequence), rejections))

        self._commit.submit(self._with_timers(to_batch([MessageRows(rows, 1, 0)])), done)

    def columns(self, messages: MessageColumns, answer: Callable[[SentColumns | DelayServerError], None]) -> None:
        """Prepares messages in columns. As `Send.columns`."""
        batch, rejections = self._intake.columns(messages)
        if batch is None:
            answer(SentColumns(np.empty(0, np.int64), 0, rejections))
            return
        due_ms = batch.due_ms

        def done(result: Committed | DelayServerError) -> None:
            answer(
                result
                if isinstance(result, DelayServerError)
                else SentColumns(due_ms, result.first_sequence, rejections)
            )

        self._commit.submit(self._with_timers(batch), done)

    def _with_timers(self, batch: MessageBatch) -> MessageBatch:
        """The messages as transactions, and a timer of each behind them: the k-th message has the k-th timer."""
        terms, count = self._terms, len(batch)
        timers = np.zeros(count, TIMER)
        timers["due_ms"] = batch.due_ms
        timers["check_after_ms"] = terms.check_after_ms
        timers["check"] = 1
        timers["checks_max"] = terms.checks_max
        timers["check_subject"] = terms.check_subject
        timers["policy"] = terms.policy
        due_ms = (self._clock.now_us() + 999) // 1000 + terms.check_after_ms
        prepared = batch.with_columns(flags=FLAG_PREPARED)
        return MessageBatch.concatenate([prepared, timer_batch(timers, due_ms, terms.timers_subject, -count)])
