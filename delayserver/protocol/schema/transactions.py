"""The operation `transactions`: transactions that are neither committed nor rolled back."""

from __future__ import annotations

from typing import Annotated, Final

from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS, DueMs, Subject

OPEN_AT_ONCE_MAX: Final = 1_024
"""Transactions of a reply. With names of 255 bytes that is half a megabyte."""


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

    receipt: Annotated[
        str,
        says(
            "The name of the transaction, for `commit`, `rollback` and `lookup`.",
            "5f3a9c0d2b71-01a3185c5000-00000000002e",
        ),
    ]
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
