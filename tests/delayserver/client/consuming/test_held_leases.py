"""Which leases of a consumer's caller are extended, and that those of dropped deliveries cost nothing."""

from __future__ import annotations

from delayserver.client.consuming.held_leases import Held, HeldLeases


def test_a_lease_is_extended_while_the_caller_keeps_its_delivery_and_has_not_settled_it() -> None:
    leases = HeldLeases("a", 30, 3600)
    kept, dropped, settled = [Held(number, 30) for number in range(3)]
    leases.add([kept, dropped, settled], 1, 0)
    assert leases.due(11) == [], "they wait for the caller"
    for held in (kept, dropped, settled):
        held.begin(0)
    assert leases.due(9) == []
    assert leases.due(11) == [kept, dropped, settled]
    del dropped, held
    settled.settle()
    assert leases.due(12) == [kept] and kept.in_work and settled.settled and not settled.in_work
    kept.extend(42)
    assert leases.due(13) == [] and leases.due(23) == [kept]
    assert leases.due(43) == [], "the lease has ended"


def test_a_caller_that_hangs_is_extended_for_a_bounded_time() -> None:
    leases = HeldLeases("a", 10, 25)
    held, now_s = Held(1, 10), 0.0
    leases.add([held], 1, 0)
    held.begin(0)
    while now_s < 100:
        now_s += 0.5
        for each in leases.due(now_s):
            each.extend(now_s + 10)
    assert 25 <= held.ends_s <= 25 + 10


def test_dropped_deliveries_take_no_memory() -> None:
    leases = HeldLeases("a", 30, 3600)
    for number in range(10_000):
        leases.add([Held(number, 30)], 1, 0)
    assert len(leases) < 1000


def test_another_connection_takes_over_what_waits_and_what_the_caller_has_not_had_for_too_long() -> None:
    leases = HeldLeases("a", 10, 0)
    waits, new, old, ended = [Held(number, 60) for number in range(4)]
    leases.add([waits, new, old, ended], 1, 0)
    old.begin(5)
    new.begin(6)
    ended.extend(15)
    assert leases.known(15.5) == [waits, new]
    assert leases.connection == 1
    leases.add([Held(5, 60)], 2, 15)
    assert leases.connection == 1, "those of before are still to be taken over"
    leases.belong(2)
    assert leases.connection == 2
