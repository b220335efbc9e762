"""Calls of transactions: prepare, commit and rollback, the list of open ones, and what a check-back says. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from delayserver.client.calls.core import Call, described_call
from delayserver.client.calls.message_calls import rows_call
from delayserver.client.values.messages import Delivery
from delayserver.client.values.timing import Span, span_ms
from delayserver.protocol.errors import DelayServerError, InvalidArgument
from delayserver.protocol.operation_names import COMMIT, PREPARE, ROLLBACK, TRANSACTIONS
from delayserver.protocol.schema.structs import arguments_of
from delayserver.protocol.schema.transactions import (
    OPEN_AT_ONCE_MAX,
    Ended,
    EndTransactions,
    ItemToEnd,
    ListTransactions,
    OpenTransactionsPage,
)

T = TypeVar("T")

CHECK_SUFFIX: Final = ".check"
_TRANSACTION: Final = "transaction"
_OWN: Final = (
    _TRANSACTION,
    "transaction_subject",
    "transaction_due_ms",
    "transaction_check",
    "transaction_checks_max",
)


@dataclass(frozen=True, slots=True)
class CheckBack:
    """A question of the server: is the transaction ``receipt`` to be committed or rolled back?

    ``subject``, ``due_ms``, ``message_id``, ``body`` and ``properties`` are those of the prepared message. This is check
    number ``check`` of ``checks_max``. ``group`` is the producer's group, ``delivery`` names the check-back for an ack.
    """

    group: str
    receipt: str
    subject: str
    due_ms: int
    message_id: str
    body: bytes
    properties: dict[str, str]
    check: int
    checks_max: int
    delivery: int


def terms(group: str, check_after: Span | None, checks_max: int | None, policy: str | None) -> dict[str, Any]:
    """The arguments of a prepare beside its messages."""
    if not isinstance(group, str) or not group:
        raise InvalidArgument("group is the producer's group, a text that is not empty")
    arguments: dict[str, Any] = {"group": group}
    if check_after is not None:
        arguments["check_after_ms"] = span_ms(check_after)
    if checks_max is not None:
        arguments["checks_max"] = checks_max
    if policy is not None:
        arguments["policy"] = policy
    return arguments


def prepare_call(send: Call[T], arguments: dict[str, Any]) -> Call[T]:
    """A call that sends, as one that prepares the same messages."""
    return replace(send, operation=PREPARE, arguments=send.arguments | arguments)


def commit_call(receipts: Sequence[str], due_ms: int | None = None) -> Call[list[Ended | DelayServerError]]:
    """Commit transactions, with ``due_ms`` for all of them if it is given. Repeatable: the answer is the same again."""
    if due_ms is None:
        asked = EndTransactions(receipts=list(receipts))
    else:
        asked = EndTransactions(items=[arguments_of(ItemToEnd(receipt=each, due_ms=due_ms)) for each in receipts])
    return rows_call(COMMIT, arguments_of(asked), len(receipts), Ended)


def rollback_call(receipts: Sequence[str]) -> Call[list[Ended | DelayServerError]]:
    """Roll transactions back. Repeatable."""
    return rows_call(ROLLBACK, arguments_of(EndTransactions(receipts=list(receipts))), len(receipts), Ended)


def transactions_call(after: str | None, max_transactions: int | None) -> Call[OpenTransactionsPage]:
    """A page of the open transactions."""
    count_max = OPEN_AT_ONCE_MAX if max_transactions is None else max_transactions
    return described_call(TRANSACTIONS, ListTransactions(after=after, max=count_max), OpenTransactionsPage)


def check_back_of(delivery: Delivery) -> CheckBack:
    """The question in a message of the subject ``GROUP.check``. Raises `InvalidArgument` if it is no check-back."""
    properties = delivery.properties
    if not delivery.subject.endswith(CHECK_SUFFIX) or any(name not in properties for name in _OWN):
        raise InvalidArgument(f"a message of the subject {delivery.subject} is no check-back")
    receipt, subject, *numbers = [properties[name] for name in _OWN]
    try:
        due_ms, check, checks_max = map(int, numbers)
    except ValueError as error:
        raise InvalidArgument(f"a message of the subject {delivery.subject} is no check-back: {error}") from error
    return CheckBack(
        group=delivery.subject.removesuffix(CHECK_SUFFIX),
        receipt=receipt,
        subject=subject,
        due_ms=due_ms,
        message_id=delivery.message_id,
        body=delivery.body,
        properties={name: value for name, value in properties.items() if name not in _OWN},
        check=check,
        checks_max=checks_max,
        delivery=delivery.delivery,
    )


def check_backs_of(deliveries: Sequence[Delivery]) -> tuple[list[CheckBack], list[Delivery]]:
    """The questions in messages of the subject ``GROUP.check``, and those messages that are none: others may send there."""
    checks: list[CheckBack] = []
    others: list[Delivery] = []
    for delivery in deliveries:
        try:
            checks.append(check_back_of(delivery))
        except InvalidArgument:
            others.append(delivery)
    return checks, others
