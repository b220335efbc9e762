"""Rows of replies about messages, as the client reads them."""

from __future__ import annotations

from typing import Any

import pytest

from delayserver.client.calls.core import ClientCore
from delayserver.client.calls.message_calls import cancel_call, lookup_call
from delayserver.client.calls.transaction_calls import commit_call
from delayserver.protocol.errors import MalformedFrame, TransactionEnded
from delayserver.protocol.frames import ReplyFrame
from delayserver.protocol.outcomes import Outcome


def reply(*rows: dict[str, Any]) -> ReplyFrame:
    return ReplyFrame(1, {"results": list(rows)}, None)


def test_an_outcome_that_the_client_does_not_know_is_a_malformed_frame() -> None:
    eaten = reply({"receipt": "a", "outcome": "eaten"})
    with pytest.raises(MalformedFrame, match="'eaten'"):
        ClientCore("test").finish(cancel_call(["a"]), eaten)
    with pytest.raises(MalformedFrame, match="'eaten'"):
        ClientCore("test").finish(lookup_call(["a"]), eaten)


def test_a_row_has_its_outcome_and_the_fields_of_a_later_server_are_left_out() -> None:
    (row,) = ClientCore("test").finish(lookup_call(["a"]), reply({"receipt": "a", "outcome": "pending", "mood": 3}))
    assert not isinstance(row, Exception)
    assert (row.receipt, row.outcome, row.due_ms) == ("a", Outcome.PENDING, None)


def test_a_transaction_that_ended_otherwise_says_how() -> None:
    row = {"error": "transaction_ended", "message": "it has ended", "outcome": "cancelled"}
    (ended,) = ClientCore("test").finish(commit_call(["a"]), reply(row))
    assert isinstance(ended, TransactionEnded)
    assert ended.outcome is Outcome.CANCELLED
