# Made by `python -m ops.blocking_client` from asynchronous/transaction_operations.py. Change that file.
"""The operations of the blocking client on transactions: prepare, commit, rollback, list, and answer check-backs.

`python -m ops.blocking_client` makes the blocking twin from this file.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from types import TracebackType
from typing import Any, Self, TypeVar

from delayserver.client.calls import pull_calls, send_calls, transaction_calls
from delayserver.client.calls.core import Call, ClientCore
from delayserver.client.calls.message_calls import only_row
from delayserver.client.calls.retry_policy import RetryPolicy
from delayserver.client.calls.transaction_calls import (
    CHECK_SUFFIX,
    CheckBack,
    check_backs_of,
)
from delayserver.client.values.messages import Delivery, Message, SendResult
from delayserver.client.values.timing import Instant, Seconds, Span, instant_ms
from delayserver.protocol.errors import DelayServerError, TransactionEnded
from delayserver.protocol.outcomes import Outcome
from delayserver.protocol.schema.transactions import Ended, OpenTransaction, OpenTransactionsPage

T = TypeVar("T")


class BlockingTransactionOperations(ABC):
    """Requests about transactions."""

    _core: ClientCore
    _retries: RetryPolicy

    @abstractmethod
    def _run(self, call: Call[T], close_count: int | None = None) -> T:
        """The result of a call, after as many attempts as it needs."""

    @abstractmethod
    def _shard_prefix(self) -> str:
        """The begin of an id that the client makes now."""

    @abstractmethod
    def _learn_clock(self) -> None:
        """Make the server's clock fit to resolve a delay."""

    @abstractmethod
    def resolve_due_ms(
        self, due_ms: Instant | None, delay_ms: Span | None, at: datetime | None, delay: timedelta | None
    ) -> int:
        """The absolute due time of exactly one of the four, by the server's clock."""

    @abstractmethod
    def pull(self, subject: str, group: str, max_messages: int = 100, wait_s: Seconds = 0.0) -> list[Delivery]:
        """Up to ``max_messages`` deliveries."""

    def prepare(
        self,
        subject: str,
        body: bytes | str,
        *,
        group: str,
        due_ms: Instant | None = None,
        delay_ms: Span | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        check_after: timedelta | None = None,
        check_after_ms: Span | None = None,
        checks_max: int | None = None,
        policy: str | None = None,
    ) -> SendResult:
        """Store a message that consumers do not see until `commit` makes it visible. The message is durable on return.

        Without a due time it is due at its commit. ``group`` is the producer's group: without a commit or a rollback the
        server asks it (see `check_backs`) after ``check_after`` or ``check_after_ms``, ``checks_max`` times. Then ``policy``
        decides, ``"rollback"`` or ``"commit"``. The server has defaults for the three. Ids are made as by `send`.
        """
        if due_ms is None and delay_ms is None and at is None and delay is None:
            delay_ms = 0
        due_ms = self.resolve_due_ms(due_ms, delay_ms, at, delay)
        if message_id is None and self._retries.retries:
            message_id = send_calls.new_message_id(self._shard_prefix())
        send = send_calls.send_call(
            subject,
            body,
            due_ms,
            message_id=message_id,
            properties=properties,
            expires_ms=expires_ms,
            tag=tag,
            order_key=order_key,
        )
        terms = transaction_calls.terms(
            group, check_after if check_after_ms is None else check_after_ms, checks_max, policy
        )
        return self._run(transaction_calls.prepare_call(send, terms))

    def prepare_many(
        self,
        messages: Sequence[Message],
        *,
        group: str,
        check_after: timedelta | None = None,
        check_after_ms: Span | None = None,
        checks_max: int | None = None,
        policy: str | None = None,
    ) -> list[SendResult | DelayServerError]:
        """Prepare up to ``batch_messages_max`` messages in one frame: a result or an error for each, in order.

        Each message is a transaction of its own, and needs a due time.
        """
        if not messages:
            return []
        terms = transaction_calls.terms(
            group, check_after if check_after_ms is None else check_after_ms, checks_max, policy
        )
        if any(m.delay_ms is not None or m.delay is not None for m in messages):
            self._learn_clock()
        make_ids = self._retries.retries > 0
        send = send_calls.send_many_call(messages, self._core.clock, make_ids=make_ids, prefix=self._shard_prefix())
        return self._run(transaction_calls.prepare_call(send, terms))

    def commit(self, receipt: str, *, due_ms: Instant | None = None) -> Ended:
        """Make the message of a transaction visible, due as it was prepared, or at ``due_ms``. Durable on return.

        Again for a transaction that is committed it gives the same result. Raises `TransactionEnded` if it ended otherwise
        before, and `TransactionUnknown`.
        """
        rows = self._run(transaction_calls.commit_call([receipt], None if due_ms is None else instant_ms(due_ms)))
        return only_row(rows)

    def commit_many(self, receipts: Sequence[str]) -> list[Ended | DelayServerError]:
        """Commit many transactions: a result or an error for each, in order."""
        return self._run(transaction_calls.commit_call(receipts)) if receipts else []

    def rollback(self, receipt: str) -> Ended:
        """End a transaction, so that no consumer ever sees its message. Durable on return. Raises the errors of `commit`."""
        rows = self._run(transaction_calls.rollback_call([receipt]))
        return only_row(rows)

    def rollback_many(self, receipts: Sequence[str]) -> list[Ended | DelayServerError]:
        """Roll many transactions back: a result or an error for each, in order."""
        return self._run(transaction_calls.rollback_call(receipts)) if receipts else []

    def transactions_page(
        self, after: str | None = None, max_transactions: int | None = None
    ) -> OpenTransactionsPage:
        """A page of the open transactions, behind the ``next`` of another page. A page may be empty and not the last one."""
        return self._run(transaction_calls.transactions_call(after, max_transactions))

    def transactions(self, max_transactions: int = 1_000) -> list[OpenTransaction]:
        """The first ``max_transactions`` transactions that are neither committed nor rolled back, the next check first as a
        rule. A token of some subjects sees those of its subjects.
        """
        found: dict[str, OpenTransaction] = {}
        after = None
        while len(found) < max_transactions:
            page = self.transactions_page(after)
            found |= {each.receipt: each for each in page.transactions}
            after = page.next
            if after is None:
                break
        return list(found.values())[:max_transactions]

    def transaction(
        self,
        subject: str,
        body: bytes | str,
        *,
        group: str,
        due_ms: Instant | None = None,
        delay_ms: Span | None = None,
        at: datetime | None = None,
        delay: timedelta | None = None,
        message_id: str | None = None,
        properties: Mapping[str, str] | None = None,
        expires_ms: Instant | None = None,
        tag: str | None = None,
        order_key: str | None = None,
        check_after: timedelta | None = None,
        check_after_ms: Span | None = None,
        checks_max: int | None = None,
        policy: str | None = None,
    ) -> Transaction:
        """A block that prepares the message at its begin, commits it at its end, and rolls it back on an exception.

        Commit your own database within the block. A program that dies, or whose request has no answer, is asked by a
        check-back. So is one whose block is cancelled. The arguments are those of `prepare`.
        """
        return Transaction(
            self,
            subject,
            body,
            {
                "group": group,
                "due_ms": due_ms,
                "delay_ms": delay_ms,
                "at": at,
                "delay": delay,
                "message_id": message_id,
                "properties": properties,
                "expires_ms": expires_ms,
                "tag": tag,
                "order_key": order_key,
                "check_after": check_after,
                "check_after_ms": check_after_ms,
                "checks_max": checks_max,
                "policy": policy,
            },
        )

    # --- check-backs

    def check_backs(self, group: str, max_messages: int = 100, wait_s: Seconds = 0.0) -> list[CheckBack]:
        """The questions of the server to a producer's group; waits up to ``wait_s`` for the first. Give each to `answer`.

        One that is not answered comes again after the ack timeout, or with the next check-back. Messages of the subject
        that are no check-backs are nacked.
        """
        subject = group + CHECK_SUFFIX
        checks, others = check_backs_of(self.pull(subject, group, max_messages, wait_s))
        if others:
            with suppress(DelayServerError):  # those come again after the ack timeout, and the checks can be answered
                self._run(pull_calls.nack_call(subject, group, others, None, reason="it is no check-back"))
        return checks

    def answer(self, check: CheckBack, *, commit: bool) -> Outcome:
        """Commit or roll back what a check-back asks about, and ack it. Gives the outcome that the transaction has: it may
        be another one, if somebody else decided before.
        """
        end = self.commit if commit else self.rollback
        try:
            ended = end(check.receipt)
            outcome = ended.outcome
        except TransactionEnded as error:
            outcome = error.outcome
        self._run(pull_calls.ack_call(check.group + CHECK_SUFFIX, check.group, [check.delivery]))
        return outcome


class Transaction:
    """One transaction, as a block. ``prepared`` is there within it, ``ended`` behind it."""

    def __init__(
        self, operations: BlockingTransactionOperations, subject: str, body: bytes | str, arguments: Mapping[str, Any]
    ) -> None:
        self._operations = operations
        self._subject = subject
        self._body = body
        self._arguments = arguments
        self.prepared: SendResult | None = None
        self.ended: Ended | None = None
        self._commit_asked = False
        self._rollback_asked = False

    def __enter__(self) -> Self:
        self.prepared = self._operations.prepare(self._subject, self._body, **self._arguments)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.ended is not None:
            return
        if kind is None and not self._rollback_asked:
            self.commit()
            return
        if self._commit_asked:
            return  # it has no answer, and what it goes with may be committed: a check-back asks
        with suppress(DelayServerError):  # the exception of the block counts; the server asks about the transaction
            self.rollback()

    @property
    def receipt(self) -> str:
        """The name of the transaction."""
        assert self.prepared is not None, "within its block only"
        return self.prepared.receipt

    def commit(self, *, due_ms: Instant | None = None) -> Ended:
        """Commit before the end of the block, maybe with another due time. See `BlockingTransactionOperations.commit`.

        Where it fails, the block rolls nothing back.
        """
        self._commit_asked = True
        self.ended = self._operations.commit(self.receipt, due_ms=due_ms)
        return self.ended

    def rollback(self) -> Ended:
        """Roll back without an exception. Where it fails, the end of the block tries it again and commits nothing."""
        self._rollback_asked = True
        self.ended = self._operations.rollback(self.receipt)
        return self.ended
