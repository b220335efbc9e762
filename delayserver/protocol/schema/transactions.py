"""The operations `commit`, `rollback` and `transactions`: how transactions end, and those that have not."""

from __future__ import annotations

from typing import Annotated, Any, Final, TypeAlias

from delayserver.protocol.arguments import one_form
from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS, RECEIPT, DueMs, Subject, WithOutcome

OPEN_AT_ONCE_MAX: Final = 1_024
"""Transactions of a reply. With names of 255 bytes that is half a megabyte."""


_ITEMS: Final = "a list of at least one item"
Transaction: TypeAlias = Annotated[
    str, says("The name of the transaction, for `commit`, `rollback` and `lookup`.", RECEIPT)
]


class ItemToEnd(Request, frozen=True):
    """A transaction to commit, and another due time for its message than that of the prepare."""

    receipt: Transaction
    due_ms: Annotated[int, says("When the message is due, in milliseconds since 1970.", DUE_MS)] | None = None
    delay_ms: Annotated[int, says("Milliseconds from now. Give this or `due_ms`.", 60_000)] | None = None


class EndTransactions(Request, frozen=True):
    """Transactions to commit or to roll back, in exactly one of the two forms. Raises InvalidArgument."""

    # The server refuses a wrong item alone, so it reads each by itself.
    receipts: (
        Annotated[list[Any], says("Their receipts.", [RECEIPT], expected=_ITEMS, written="[text]", min_length=1)] | None
    ) = None
    items: (
        Annotated[list[Any], says("The same, and due times.", expected=_ITEMS, written="[row]", min_length=1)] | None
    ) = None

    def __post_init__(self) -> None:
        one_form({"receipts": self.receipts, "items": self.items}, ("receipts", "items"))


class Ended(WithOutcome, frozen=True, kw_only=True):
    """The end of a transaction. ``outcome`` is `committed` or `rolled_back`. The last three fields are those of the visible
    message; a rollback has none."""

    receipt: Transaction
    new_receipt: Annotated[str, says("The receipt of the visible message.", RECEIPT, left_out=True)] | None = None
    due_ms: Annotated[int, says("When it is due, in milliseconds since 1970.", DUE_MS, left_out=True)] | None = None
    sequence: Annotated[int, says("The number that the server gave it.", 46, left_out=True)] | None = None


class ListTransactions(Request, frozen=True):
    """Some open transactions."""

    after: (
        Annotated[str, says("The `next` of the reply before.", "1800000000000.2.46", expected="the `next` of a reply")]
        | None
    ) = None
    max: Annotated[int, says("At most so many transactions.", 100, ge=1, le=OPEN_AT_ONCE_MAX)] = OPEN_AT_ONCE_MAX


class OpenTransaction(Reply, frozen=True):
    """A transaction that is neither committed nor rolled back.

    The server has made ``checks`` check-backs of ``checks_max`` to the producer's ``group``. At ``next_check_ms`` comes the
    next one, or after the last one the decision of the ``policy``.
    """

    receipt: Transaction
    subject: Subject
    due_ms: DueMs
    group: Annotated[str, says("The producer's group, which the server asks about the transaction.", "shop")]
    accepted_us: Annotated[
        int, says("When it was prepared, in microseconds since 1970. It is 0 where damage hides it.", DUE_MS * 1000)
    ]
    next_check_ms: Annotated[
        int,
        says(
            "When the server asks the group again, or after the last check ends it by the policy: milliseconds since 1970.",
            DUE_MS,
        ),
    ]
    checks: Annotated[int, says("How often the server has asked the producer's group so far.", 2)]
    checks_max: Annotated[int, says("How often the server asks the producer's group.", 5)]
    policy: Annotated[
        str,
        # Words of the document alone: a client reads a later server's word too.
        says(
            "`rollback` or `commit`: what the server does where the producer's group does not answer.",
            "rollback",
            extra_json_schema={"enum": ["commit", "rollback"]},
        ),
    ]


class OpenTransactionsPage(Reply, frozen=True):
    """Some open transactions. It may be empty. The next page comes behind ``next``, and the last one has none."""

    transactions: Annotated[list[OpenTransaction], says("The open transactions.")]
    next: Annotated[str, says("From where to ask for more. The last page has none.", "1800000000000.2.46")] | None
