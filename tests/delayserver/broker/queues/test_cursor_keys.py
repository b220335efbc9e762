"""Messages with an order key in a group's cursor, beside messages without one."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.broker.queues.group_cursors import GroupCursors


def group_with(keys: list[int], deadline_us: int = 100) -> GroupCursors:
    """A group that was handed out messages with these keys, 0 for none. What may go out is leased."""
    group = GroupCursors(0, 0)
    look(group, keys, deadline_us)
    return group


def look(group: GroupCursors, keys: list[int], deadline_us: int = 100) -> None:
    cursor = group.main
    cursor.begin_pull()
    start, hashes = cursor.next, np.array(keys, np.uint64)
    cursor.hand_out(start, start + len(keys))
    slots = cursor.key_slots(hashes)
    admitted = cursor.admits(slots)
    (rows,) = hashes.nonzero()
    cursor.add_keys(start + rows, slots[rows], np.zeros(len(rows), np.int64), admitted[rows], deadline_us)
    if len(rows) < len(keys):
        cursor.hold(start, cursor.next, deadline_us)
    group.check_invariants()


def test_a_deadline_is_that_of_the_messages_that_are_left() -> None:
    group = group_with([5, 0])
    look(group, [0, 6], 200)
    assert group.main.next_deadline_us() == 100
    group.main.ack(0, 1, 4)
    assert group.main.next_deadline_us() == 100, "of the one without a key"
    group.main.ack(1, 2, 4)
    assert group.main.next_deadline_us() == 200
    group.main.ack(2, 3, 4)
    assert group.main.next_deadline_us() == 200, "of the one with a key"
    group.main.ack(3, 4, 4)
    assert group.main.next_deadline_us() is None


def test_a_lease_that_only_messages_with_a_key_have_left_ends_with_theirs() -> None:
    group = group_with([5, 0])
    look(group, [5, 0], 100)
    group.main.ack(0, 1, 4)
    group.main.begin_pull()
    group.main.take_free(group.main.free_positions(100), 300)
    group.main.ack(1, 2, 4)
    assert group.main.next_deadline_us() == 100
    group.main.ack(3, 4, 4)
    assert group.main.next_deadline_us() == 300
    assert group.main.retry_expired(299, 10) == []
    assert group.main.retry_expired(300, 10) == [(2, 3)]


def test_counts_distinguish_leased_and_waiting_messages() -> None:
    group = group_with([5, 0, 6])
    look(group, [5, 5, 0])
    main = group.main
    assert (main.leased(), main.in_place(), main.blocked(), main.ready()) == (4, 2, 2, 0)
    assert main.unclaimed(7) == [(3, 5), (6, 7)]
    main.ack(0, 1, 6)
    assert (main.leased(), main.in_place(), main.ready()) == (3, 2, 2)
    (failed,) = main.to_retry(2, 3)
    assert main.recall([failed]) == []
    main.pause(np.array([2]), np.array([50]), 7, alone=True)
    assert (main.leased(), main.in_place()) == (2, 3)
    main.ack(2, 3, 6)
    assert (main.leased(), main.in_place()) == (2, 2), "a late ack of the failed one counts at once"
    group.check_invariants()


@pytest.mark.parametrize("first", [1, 2, 4])
def test_a_message_that_retention_removes_frees_its_key(first: int) -> None:
    group = group_with([5, 0])
    look(group, [5, 5])
    group.main.skip_to(first)
    group.check_invariants()
    group.main.begin_pull()
    assert group.main.free_positions(100).tolist() == list(range(max(first, 2), 4))


def test_a_seek_leaves_no_key_busy_for_the_other_queue() -> None:
    group = group_with([5, 6])
    group.main.move_to(0, 1)
    group.check_invariants()
    group.retry.begin_pull()
    slots = group.retry.key_slots(np.array([5, 6], np.uint64))
    assert group.retry.admits(slots).tolist() == [True, True]
