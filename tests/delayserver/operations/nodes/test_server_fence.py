"""Which process of a server may deliver to a node: the newest one, as long as it is there."""

from __future__ import annotations

import contextlib
from random import Random

import pytest

from delayserver.operations.nodes.server_fence import HOLD_MS, ServerFence
from delayserver.protocol.errors import DuplicateServerId, InvalidArgument, Superseded

HOLD_US = HOLD_MS * 1000


def test_a_process_delivers_over_its_newest_connection_alone() -> None:
    fence = ServerFence()
    assert not fence.admit(1, "a", 5, 0)
    assert not fence.admit(1, "a", 7, 0)
    with pytest.raises(Superseded):
        fence.admit(1, "a", 5, 0)
    assert not fence.admit(2, "a", 5, 0), "another server has connections of its own"
    assert fence.duplicates(0) == []


def test_a_newer_process_takes_the_place_at_once_and_keeps_it_while_it_is_connected() -> None:
    fence = ServerFence()
    fence.admit(1, "old", 5, 0)
    assert not fence.admit(1, "new", 6, 0)
    with pytest.raises(Superseded):
        fence.admit(1, "old", 5, 1), "what was on its way is no sign of two processes"
    assert fence.duplicates(1) == []
    for connection, now_us in ((8, 2), (10, HOLD_US), (12, 100 * HOLD_US)):
        with pytest.raises(DuplicateServerId):
            fence.admit(1, "old", connection, now_us)
        assert fence.admit(1, "new", connection + 1, now_us), "the process in its place learns of it as well"
    assert fence.duplicates(100 * HOLD_US) == [{"server_id": "000000000001", "refused": 3, "now": True}]
    fence.check_invariants()


def test_an_older_process_comes_back_when_the_newer_one_was_gone_for_a_minute() -> None:
    fence = ServerFence()
    fence.admit(1, "old", 5, 0)
    fence.admit(1, "new", 6, 10)
    fence.close_connection(6, 20)
    with pytest.raises(DuplicateServerId):
        fence.admit(1, "old", 7, 20 + HOLD_US - 1)
    assert fence.admit(1, "old", 7, 20 + HOLD_US), "the operator may not have seen it yet"
    assert not fence.admit(1, "old", 7, 20 + 2 * HOLD_US)
    assert [found["now"] for found in fence.duplicates(20 + 2 * HOLD_US)] == [False]
    with pytest.raises(DuplicateServerId):
        fence.admit(1, "new", 8, 20 + 2 * HOLD_US), "now the other one is the older"
    with pytest.raises(Superseded):
        fence.admit(1, "old", 6, 20 + 9 * HOLD_US), "never over a connection of before"


def test_a_server_that_says_no_instance_is_judged_by_its_connections() -> None:
    fence = ServerFence()
    for connection in (3, 4, 6):
        assert not fence.admit(1, "", connection, 0)
    with pytest.raises(InvalidArgument):
        fence.admit(1, "", 5, 0)
    assert not fence.admit(1, "upgraded", 7, 0)
    assert not fence.admit(1, "", 8, 0), "and downgraded"


def test_the_fence_stays_bounded_and_consistent_under_any_requests() -> None:
    chance, fence, now_us = Random(5), ServerFence(), 0
    for connection in range(1, 6_000):
        now_us += chance.choice([0, 1_000, HOLD_US])
        server_id = chance.choice([1, 2, chance.randrange(1, 1 << 48)])
        instance = chance.choice(["", f"{chance.randrange(40)}", "steady"])
        with contextlib.suppress(Superseded, DuplicateServerId, InvalidArgument):
            fence.admit(server_id, instance, connection - chance.choice([0, 0, 1, 50]), now_us)
        if chance.random() < 0.5:
            fence.close_connection(connection - chance.randrange(3), now_us)
        if not connection % 97:
            fence.check_invariants()
    fence.check_invariants()
