"""The bound over all connections: who waits, who is let through, and that the counts are right after every step."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.state.connections.connection_memory import PROGRESS_BYTES, ConnectionMemory, Share

MIB = 1 << 20


def memory_of(bytes_max: int = 100, allowance_bytes: int = 10, unsent_bytes_max: int = 20) -> ConnectionMemory:
    return ConnectionMemory(bytes_max, allowance_bytes, unsent_bytes_max)


def begin(memory: ConnectionMemory, share: Share, length: int, granted: list[Share]) -> bool:
    return memory.begin_frame(share, length, min(length, 4), lambda: granted.append(share))


def test_frames_above_the_allowance_wait_for_their_whole_length_in_order() -> None:
    memory = memory_of()
    shares = [memory.join() for _ in range(4)]
    granted: list[Share] = []
    assert begin(memory, shares[0], 70, granted)  # 60 beyond the allowance
    assert not begin(memory, shares[1], 60, granted)
    assert not begin(memory, shares[2], 20, granted), "a smaller one does not overtake"
    assert memory.short and memory.frames_waiting == 2
    memory.end_frame(shares[0])
    assert granted == shares[1:3]
    memory.check_invariants()
    for share in shares:
        memory.leave(share)
    assert memory.used_bytes == 0


def test_a_frame_within_the_allowance_never_waits() -> None:
    memory = memory_of()
    greedy, waiting, small = memory.join(), memory.join(), memory.join()
    assert begin(memory, greedy, 110, [])
    assert not begin(memory, waiting, 11, [])
    assert begin(memory, small, 10, [])
    assert memory.may_begin(small) and memory.reply_bytes(small) == memory.allowance_bytes
    memory.check_invariants()


def test_the_first_frame_goes_on_although_unread_replies_hold_all() -> None:
    memory = memory_of()
    unread, first, second = memory.join(), memory.join(), memory.join()
    memory.hold_unsent(unread, 500)
    granted: list[Share] = []
    assert begin(memory, first, 50, granted)
    assert not begin(memory, second, 50, granted)
    memory.end_frame(first)
    assert granted == [second]
    memory.check_invariants()


def test_a_frame_larger_than_all_memory_goes_alone() -> None:
    memory = memory_of()
    first, second = memory.join(), memory.join()
    granted: list[Share] = []
    assert begin(memory, first, 1_000, granted)
    assert not begin(memory, second, 1_000, granted)
    memory.leave(first)
    assert granted == [second]


def test_a_connection_that_ends_while_it_waits_is_not_granted_anything() -> None:
    memory = memory_of()
    first, second, third = memory.join(), memory.join(), memory.join()
    granted: list[Share] = []
    assert begin(memory, first, 110, granted)
    assert not begin(memory, second, 110, granted) and not begin(memory, third, 110, granted)
    memory.leave(second)
    memory.leave(first)
    memory.leave(first)
    assert granted == [third]
    memory.check_invariants()


def test_the_next_request_waits_until_replies_are_read_and_for_all_of_them_while_memory_is_short() -> None:
    memory = memory_of()
    share, other = memory.join(), memory.join()
    memory.hold_unsent(share, 20)
    assert memory.may_begin(share)
    memory.hold_unsent(share, 21)
    assert not memory.may_begin(share) and memory.reply_bytes(share) == 0
    memory.hold_unsent(share, 1)
    memory.hold_unsent(other, 110)
    assert memory.short and not memory.may_begin(share)
    memory.hold_unsent(share, 0)
    assert memory.may_begin(share) and memory.reply_bytes(share) == 10


def test_while_memory_is_short_only_connections_that_hold_it_must_move_more() -> None:
    memory = memory_of(10 * MIB, 10, 20)
    slow, small, other = memory.join(), memory.join(), memory.join()
    assert begin(memory, slow, 8 * MIB, [])
    assert memory.progress_bytes(slow, 7 * MIB) == 1
    assert not begin(memory, other, 8 * MIB, [])
    assert memory.progress_bytes(slow, 7 * MIB) == PROGRESS_BYTES
    assert memory.progress_bytes(slow, 100) == 100
    assert memory.progress_bytes(small, 7) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_are_right_after_every_step_and_no_connection_waits_for_ever(seed: int) -> None:
    chance = Random(seed)
    memory = memory_of()
    shares: list[Share] = []
    waiting: set[Share] = set()
    for _ in range(400):
        kind = chance.randrange(6)
        if kind == 0 and len(shares) < 30:
            shares.append(memory.join())
        if shares:
            share = chance.choice(shares)
            if kind == 1 and not share.frame_bytes:
                length = chance.choice([5, 10, 40, 90, 300])
                if not memory.begin_frame(share, length, min(length, 12), lambda each=share: waiting.discard(each)):  # type: ignore[misc]
                    waiting.add(share)
            elif kind == 2 and share not in waiting:
                memory.end_frame(share)
            elif kind == 3:
                memory.hold_unsent(share, chance.choice([0, 0, 5, 30, 200]))
            elif kind == 4:
                memory.hold_ready(share, chance.choice([0, 0, 5, 30]))
            elif kind == 5 and chance.random() < 0.2:
                memory.leave(share)
                shares.remove(share)
                waiting.discard(share)
        memory.check_invariants()
        assert memory.frames_waiting == len(waiting)
    while waiting:  # those that may go on end, one after the other
        running = [share for share in shares if share not in waiting and share.granted]
        assert running, "frames wait and none is going on"
        memory.end_frame(chance.choice(running))
        memory.check_invariants()
