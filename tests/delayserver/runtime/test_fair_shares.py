"""The order in which connections get their turns, without an event loop."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.runtime.fair_shares import HALF_LIFE_US, Account, FairShares


def nothing() -> None:
    """The work of a ticket that is only looked at."""


def test_the_connection_that_used_least_goes_first_and_equals_go_in_their_order() -> None:
    shares = FairShares()
    accounts = [Account() for _ in range(4)]
    for account, used_us in zip(accounts, (300, 100, 0, 0), strict=True):
        shares.charge(account, used_us, 0)
    for account in accounts:
        shares.join(account, nothing)
    order = [shares.next() for _ in accounts]
    assert [ticket.account for ticket in order if ticket] == [accounts[2], accounts[3], accounts[1], accounts[0]]
    assert shares.next() is None and len(shares) == 0


@pytest.mark.parametrize(("later_half_lives", "used_us"), [(0, 800.0), (1, 400.0), (3, 100.0), (100_000, 0.0)])
def test_used_time_decays(later_half_lives: int, used_us: float) -> None:
    shares, account = FairShares(), Account()
    shares.charge(account, 800, 5 * HALF_LIFE_US)
    now_us = (5 + later_half_lives) * HALF_LIFE_US
    assert shares.used_us(account, now_us) == pytest.approx(used_us)
    shares.charge(account, 50, now_us)
    assert shares.used_us(account, now_us) == pytest.approx(used_us + 50)


def test_an_old_burst_is_forgiven() -> None:
    shares = FairShares()
    old, fresh = Account(), Account()
    shares.charge(old, 1_000_000, 0)
    shares.charge(fresh, 1_000, 20 * HALF_LIFE_US)
    shares.join(fresh, nothing)
    shares.join(old, nothing)
    first = shares.next()
    assert first is not None and first.account is old


def test_time_that_a_connection_uses_while_it_waits_counts() -> None:
    shares = FairShares()
    busy, other = Account(), Account()
    shares.join(busy, nothing)
    shares.charge(other, 10, 0)
    shares.join(other, nothing)
    shares.charge(busy, 100, 0)
    first = shares.next()
    assert first is not None and first.account is other


def test_two_connections_with_as_much_to_do_share_by_cost_and_not_by_count() -> None:
    shares = FairShares()
    cheap, dear = Account(), Account()
    turns = {cheap: 0, dear: 0}
    for account in turns:
        shares.join(account, nothing)
    for _ in range(1_100):
        ticket = shares.next()
        assert ticket is not None
        turns[ticket.account] += 1
        shares.charge(ticket.account, 100 if ticket.account is cheap else 1_000, 0)
        shares.join(ticket.account, nothing)
    assert turns[cheap] == pytest.approx(1_000, abs=12)


def test_fair_shares_keep_their_invariants_after_any_steps() -> None:
    random, shares, now_us = Random(7), FairShares(), 0
    accounts = [Account() for _ in range(5)]
    tickets = []
    for _ in range(5_000):
        now_us += random.randrange(100_000)
        match random.randrange(4):
            case 0:
                tickets.append(shares.join(random.choice(accounts), nothing))
            case 1:
                shares.charge(random.choice(accounts), random.randrange(2_000), now_us)
            case 2 if tickets:
                shares.leave(tickets.pop(random.randrange(len(tickets))))
            case _:
                shares.next()
        shares.check_invariants()
