"""The shop's book says no to each promise that can break."""

from __future__ import annotations

from ops.torture.shop.ledger import Ledger

DUE_MS = 1_800_000_000_000


def test_a_message_that_comes_early_is_a_violation() -> None:
    ledger = Ledger()
    number = ledger.number()
    ledger.sending(number, DUE_MS)
    ledger.accepted(number, DUE_MS)
    ledger.arrived(number, DUE_MS - 1)
    assert ledger.violations == [f"message {number} came 1 ms early"]


def test_a_message_that_comes_on_time_is_none() -> None:
    ledger = Ledger()
    number = ledger.number()
    ledger.sending(number, DUE_MS)
    ledger.accepted(number, DUE_MS)
    ledger.arrived(number, DUE_MS)
    ledger.handled(number)
    assert (ledger.violations, ledger.missing(DUE_MS + 1), ledger.pending()) == ([], [], 0)


def test_a_cancelled_message_that_comes_is_a_violation() -> None:
    ledger = Ledger()
    number = ledger.number()
    ledger.sending(number, DUE_MS)
    ledger.accepted(number, DUE_MS)
    ledger.cancelling(number)
    ledger.cancelled(number)
    ledger.arrived(number, DUE_MS)
    assert ledger.violations_total == 1


def test_an_acknowledged_message_that_does_not_come_is_missing() -> None:
    ledger = Ledger()
    answered, unanswered, expiring = ledger.number(), ledger.number(), ledger.number()
    for number in (answered, unanswered):
        ledger.sending(number, DUE_MS)
    ledger.sending(expiring, DUE_MS, DUE_MS + 1)
    ledger.accepted(answered, DUE_MS)
    ledger.accepted(expiring, DUE_MS)
    assert ledger.missing(DUE_MS - 1) == []
    assert ledger.missing(DUE_MS) == [answered]


def test_a_message_may_come_at_the_earlier_time_while_a_move_is_under_way() -> None:
    ledger = Ledger()
    number = ledger.number()
    ledger.sending(number, DUE_MS)
    ledger.accepted(number, DUE_MS)
    ledger.moving(number, DUE_MS + 5000)
    ledger.arrived(number, DUE_MS)
    assert ledger.violations == []
    ledger.accepted(number, DUE_MS + 5000)
    ledger.arrived(number, DUE_MS + 4999)
    assert ledger.violations_total == 1


def test_a_message_that_is_handled_after_it_died_is_counted() -> None:
    ledger = Ledger()
    number = ledger.number()
    ledger.sending(number, DUE_MS)
    ledger.dead(number)
    ledger.dead(number)
    ledger.handled(number)
    assert (ledger.counts["dead again"], ledger.counts["again"]) == (1, 1)
