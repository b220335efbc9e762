"""Transactions by the clients, in every place and with every client."""

from __future__ import annotations

from datetime import timedelta

import pytest

from delayserver import embedded
from delayserver.client import Client, Ended, Message, Outcome, SendResult, check_back_of
from delayserver.protocol.errors import ConnectionLost, InvalidArgument, TooFar, TransactionEnded, TransactionUnknown
from tests.delayserver.embedded.places import subject

HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)


def test_a_block_commits_at_its_end(client: Client) -> None:
    name = subject()
    with client.transaction(name, b"body", group=name, properties={"k": "v"}, tag="t", order_key="o") as transaction:
        assert client.lookup(transaction.receipt).outcome is Outcome.PREPARED
        assert client.pull(name, "g") == []
    assert transaction.ended is not None and transaction.ended.outcome is Outcome.COMMITTED
    (delivery,) = client.pull(name, "g", wait_s=10)
    assert (delivery.body, delivery.properties, delivery.tag, delivery.order_key) == (b"body", {"k": "v"}, "t", "o")
    found = client.lookup(transaction.receipt)
    assert (found.outcome, found.rescheduled_to) == (Outcome.COMMITTED, transaction.ended.new_receipt)


def test_a_block_that_fails_rolls_back_and_its_exception_goes_on(client: Client) -> None:
    name = subject()
    with pytest.raises(KeyError), client.transaction(name, b"body", group=name) as transaction:
        raise KeyError("the database said no")
    assert client.lookup(transaction.receipt).outcome is Outcome.ROLLED_BACK
    assert client.pull(name, "g", wait_s=0.3) == []


def test_a_block_may_end_its_transaction_itself(client: Client) -> None:
    name, due_ms = subject(), client.ping() // 1000 + 3_600_000
    with client.transaction(name, b"later", group=name) as transaction:
        assert transaction.commit(due_ms=due_ms).due_ms == due_ms
    with client.transaction(name, b"never", group=name) as other:
        other.rollback()
    with pytest.raises(TransactionEnded) as caught:
        client.commit(other.receipt)
    assert caught.value.outcome is Outcome.ROLLED_BACK
    assert client.commit(transaction.receipt) == transaction.ended


def test_a_block_whose_commit_fails_rolls_nothing_back(client: Client) -> None:
    name, far_ms = subject(), 1 << 47
    with pytest.raises(TooFar), client.transaction(name, b"body", group=name) as transaction:
        transaction.commit(due_ms=far_ms)
    assert client.lookup(transaction.receipt).outcome is Outcome.PREPARED, "a check-back asks how it ends"
    with client.transaction(name, b"body", group=name) as transaction, pytest.raises(TooFar):
        transaction.commit(due_ms=far_ms)
    assert client.lookup(transaction.receipt).outcome is Outcome.COMMITTED


def test_a_block_whose_rollback_has_no_answer_commits_nothing() -> None:
    def no_answer(_receipt: str) -> Ended:
        raise ConnectionLost("no answer")

    with embedded.open() as here, pytest.MonkeyPatch.context() as patch:
        with here.transaction("s", b"body", group="g") as transaction:
            patch.setattr(here, "rollback", no_answer)
            with pytest.raises(ConnectionLost):
                transaction.rollback()
            patch.undo()
        assert here.lookup(transaction.receipt).outcome is Outcome.ROLLED_BACK
        assert here.pull("s", "g", wait_s=0.3) == []


def test_many_are_prepared_and_ended_at_once(client: Client) -> None:
    name, now_ms = subject(), client.ping() // 1000
    prepared = client.prepare_many([Message(name, b"%d" % n, due_ms=now_ms) for n in range(10)], group=name)
    receipts = [row.receipt for row in prepared if isinstance(row, SendResult)]
    assert len(receipts) == 10
    committed = client.commit_many(receipts[:5])
    assert [getattr(row, "outcome", None) for row in committed] == [Outcome.COMMITTED] * 5
    rows = client.rollback_many(receipts)
    assert [isinstance(row, TransactionEnded) for row in rows] == [True] * 5 + [False] * 5
    bodies: list[bytes] = []
    while len(bodies) < 5:
        bodies += [delivery.body for delivery in client.pull(name, "g", wait_s=10)]
    assert sorted(bodies) == [b"%d" % n for n in range(5)]
    assert client.commit_many([]) == client.rollback_many([]) == client.prepare_many([], group=name) == []


def test_a_check_back_is_answered_once_and_the_second_answer_hears_the_first(client: Client) -> None:
    name = subject()
    client.prepare(name, b"body", group=name, message_id="id", properties={"k": "v"}, check_after=SECOND, checks_max=3)
    (check,) = client.check_backs(name, wait_s=20)
    assert (check.group, check.subject, check.message_id, check.body) == (name, name, "id", b"body")
    assert (check.properties, check.check, check.checks_max) == ({"k": "v"}, 1, 3)
    assert client.answer(check, commit=True) is Outcome.COMMITTED
    assert client.answer(check, commit=False) is Outcome.COMMITTED
    assert [delivery.body for delivery in client.pull(name, "g", wait_s=10)] == [b"body"]
    assert client.check_backs(name, wait_s=1.5) == []


def test_a_message_that_is_no_check_back_keeps_none_away(client: Client) -> None:
    name = subject()
    forged = dict.fromkeys(("transaction", "transaction_subject", "transaction_due_ms", "transaction_check"), "soon")
    client.send(f"{name}.check", b"plain", delay_ms=0)
    client.send(f"{name}.check", b"forged", delay_ms=0, properties=forged | {"transaction_checks_max": "9"})
    client.prepare(name, b"body", group=name, check_after=SECOND, checks_max=9)
    checks = []
    for _ in range(10):
        checks += client.check_backs(name, wait_s=20)
        if checks:
            break
    assert [check.body for check in checks] == [b"body"]
    assert client.answer(checks[0], commit=True) is Outcome.COMMITTED


def test_messages_that_cannot_be_transactions_are_refused(client: Client) -> None:
    name = subject()
    sent = client.send(name, b"ordinary", delay=HOUR)
    for end in (client.commit, client.rollback):
        with pytest.raises(TransactionUnknown):
            end(sent.receipt)
    with pytest.raises(InvalidArgument):
        client.prepare(name, b"", group="")
    with pytest.raises(InvalidArgument):
        client.prepare(name, b"", group=name, policy="keep")
    client.send(name, b"now", delay_ms=0)
    (delivery,) = client.pull(name, "g", wait_s=10)
    with pytest.raises(InvalidArgument):
        check_back_of(delivery)
