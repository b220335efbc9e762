"""The bound over all connections: who waits, who is let through, and that the counts are right after every step."""

from __future__ import annotations

from random import Random

import pytest

from delayserver.runtime.fair_shares import Account
from delayserver.state.connections.connection_memory import (
    HURRY_BYTES,
    LARGE_BYTES,
    PROGRESS_BYTES,
    ConnectionMemory,
    FrameTurns,
    MemoryShare,
)
from delayserver.state.connections.parties import Party

MIB = 1 << 20


class Memory(ConnectionMemory):
    """A pool whose connections note what they are told."""

    def __init__(self, bytes_max: int, allowance_bytes: int, unsent_bytes_max: int, client_bytes_max: int) -> None:
        super().__init__(bytes_max, allowance_bytes, unsent_bytes_max, client_bytes_max)
        self.granted: list[MemoryShare] = []
        self.withdrawn: list[MemoryShare] = []
        self.told: dict[MemoryShare, bool] = {}

    def connect(self, party: Party | None = None) -> MemoryShare:
        """A new connection, of a client of its own by default."""
        made: list[MemoryShare] = []
        turns = FrameTurns(lambda: self._tell(made[0], may=True), lambda: self._tell(made[0], may=False))
        made.append(self.join(client() if party is None else party, turns))
        return made[0]

    def _tell(self, share: MemoryShare, *, may: bool) -> None:
        self.told[share] = may
        (self.granted if may else self.withdrawn).append(share)

    def begin(self, share: MemoryShare, length: int, come: int = 4) -> bool:
        """Some bytes of a frame come."""
        return self.begin_frame(share, length, min(length, come))


def client() -> Party:
    return Party("", Account())


def memory_of(
    bytes_max: int = 100, allowance_bytes: int = 10, unsent_bytes_max: int = 20, client_bytes_max: int = 1_000_000_000
) -> Memory:
    return Memory(bytes_max, allowance_bytes, unsent_bytes_max, client_bytes_max)


def test_frames_above_the_allowance_wait_for_their_whole_length() -> None:
    memory = memory_of()
    shares = [memory.connect() for _ in range(4)]
    assert memory.begin(shares[0], 70, 70)  # 60 beyond the allowance
    assert not memory.begin(shares[1], 60)
    assert not memory.begin(shares[2], 70)
    assert memory.short and memory.frames_waiting == 2
    memory.end_frame(shares[0])
    assert memory.granted == shares[:2]
    memory.check_invariants()
    for share in shares:
        memory.leave(share)
    assert memory.used_bytes == 0


def test_a_small_frame_goes_before_larger_ones_that_wait() -> None:
    memory = memory_of()
    first, large, small = [memory.connect() for _ in range(3)]
    assert memory.begin(first, 100, 100) and not memory.begin(large, 90)
    assert memory.begin(small, 20), "there is room for it"
    assert not memory.begin(small := memory.connect(), 30)
    memory.end_frame(first)
    assert memory.granted[-2:] == [small, large] or memory.granted[-1:] == [small]
    memory.check_invariants()


def test_frames_of_which_little_came_give_their_room_to_smaller_ones_and_wait_again() -> None:
    memory = memory_of()
    slow, small = memory.connect(), memory.connect()
    assert memory.begin(slow, 110, 4)
    assert memory.begin(small, 30), "what was announced and did not come holds nothing against it"
    assert memory.withdrawn == [slow]
    assert not memory.begin(slow, 110, 5)
    memory.check_invariants()
    memory.end_frame(small)
    assert memory.granted == [slow, small, slow]
    memory.check_invariants()


def test_a_large_frame_is_not_overtaken_for_ever() -> None:
    memory = memory_of()
    large = memory.connect()
    assert memory.begin(large, 110, 4)
    overtaken = 0
    for _ in range(100):
        small = memory.connect()
        if not memory.begin(small, 30):
            break
        overtaken += 1
        memory.end_frame(small)
        memory.leave(small)
    assert 0 < overtaken < 30 and large.granted
    memory.check_invariants()


def test_frames_of_one_client_get_its_share_and_leave_the_rest_to_others() -> None:
    memory = memory_of(client_bytes_max=50)
    party = client()
    greedy = [memory.connect(party) for _ in range(20)]
    assert [memory.begin(share, 40, 10) for share in greedy] == [True] + [False] * 19
    assert memory.crowded and not memory.short, "others have room"
    other = memory.connect()
    assert memory.begin(other, 50) and memory.granted == [greedy[0], other]
    memory.check_invariants()
    memory.end_frame(greedy[0])
    assert greedy[1].granted and not greedy[2].granted
    memory.check_invariants()


def test_a_client_with_unread_replies_of_its_whole_share_begins_no_request_and_others_do() -> None:
    memory = memory_of(client_bytes_max=50, unsent_bytes_max=100)
    party = client()
    full, same, other = memory.connect(party), memory.connect(party), memory.connect()
    for share in (same, other):
        memory.hold_unsent(share, 1)
    memory.hold_unsent(full, 60)
    assert not memory.may_begin(same) and memory.may_begin(other)
    assert memory.reply_bytes(same) == 0 and memory.reply_bytes(other) == 50
    memory.check_invariants()


def test_large_frames_leave_a_part_of_the_pool_to_others() -> None:
    memory = memory_of(16 * LARGE_BYTES)
    large = [memory.connect() for _ in range(9)]
    assert [memory.begin(share, 2 * LARGE_BYTES, 10) for share in large] == [True] * 6 + [False] * 3
    assert memory.begin(memory.connect(), LARGE_BYTES)
    memory.check_invariants()


def test_a_frame_hurries_only_while_others_wait_for_the_pool() -> None:
    memory = memory_of(64 * LARGE_BYTES)
    slow = [memory.connect() for _ in range(3)]
    length, come = 16 * LARGE_BYTES, 16 * LARGE_BYTES - 7
    assert all(memory.begin(share, length, come) for share in slow)
    assert memory.hurry_bytes(slow[0]) == 0
    assert not memory.begin(waiting := memory.connect(), 16 * LARGE_BYTES)
    assert memory.hurry_bytes(slow[0]) == 7 and memory.hurry_bytes(waiting) == 0
    memory.leave(slow[1])
    assert waiting.granted
    assert not memory.begin(memory.connect(), 16 * LARGE_BYTES)
    assert memory.hurry_bytes(waiting) == HURRY_BYTES


def test_what_a_connection_holds_moves_with_it_to_another_client() -> None:
    memory = memory_of(client_bytes_max=50)
    before, after = client(), client()
    shares = [memory.connect(before) for _ in range(3)]
    assert [memory.begin(share, 50, 20) for share in shares] == [True, False, False]
    for share in (shares[2], shares[0], shares[1]):
        memory.move(share, after)
        memory.check_invariants()
    assert (before.used_bytes, before.frames) == (0, 0)
    for share in shares:
        memory.leave(share)
    assert (after.used_bytes, after.frames, memory.used_bytes) == (0, 0, 0)


def test_a_frame_within_the_allowance_never_waits() -> None:
    memory = memory_of()
    greedy, waiting, small = memory.connect(), memory.connect(), memory.connect()
    assert memory.begin(greedy, 110, 110)
    assert not memory.begin(waiting, 11)
    assert memory.begin(small, 10)
    assert memory.may_begin(small) and memory.reply_bytes(small) == memory.allowance_bytes
    memory.check_invariants()


def test_the_first_frame_goes_on_although_unread_replies_hold_all() -> None:
    memory = memory_of()
    unread, first, second = memory.connect(), memory.connect(), memory.connect()
    memory.hold_unsent(unread, 500)
    assert memory.begin(first, 50)
    assert not memory.begin(second, 50)
    memory.end_frame(first)
    assert memory.granted == [first, second]
    memory.check_invariants()


def test_a_frame_larger_than_all_memory_goes_alone() -> None:
    memory = memory_of()
    first, second = memory.connect(), memory.connect()
    assert memory.begin(first, 1_000)
    assert not memory.begin(second, 1_000)
    memory.leave(first)
    assert memory.granted == [first, second]


def test_a_connection_that_ends_while_it_waits_is_not_granted_anything() -> None:
    memory = memory_of()
    first, second, third = memory.connect(), memory.connect(), memory.connect()
    assert memory.begin(first, 110, 110)
    assert not memory.begin(second, 110) and not memory.begin(third, 110)
    memory.leave(second)
    memory.leave(first)
    memory.leave(first)
    assert memory.granted == [first, third]
    memory.check_invariants()


def test_the_next_request_waits_until_replies_are_read_and_for_all_of_them_while_memory_is_short() -> None:
    memory = memory_of()
    share, other = memory.connect(), memory.connect()
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
    slow, small, other = memory.connect(), memory.connect(), memory.connect()
    assert memory.begin(slow, 8 * MIB)
    assert memory.progress_bytes(slow, 7 * MIB) == 1
    assert not memory.begin(other, 8 * MIB)
    assert memory.progress_bytes(slow, 7 * MIB) == PROGRESS_BYTES
    assert memory.progress_bytes(slow, 100) == 100
    assert memory.progress_bytes(small, 7) == 1


@pytest.mark.parametrize("seed", range(20))
def test_the_counts_are_right_after_every_step_and_no_connection_waits_for_ever(seed: int) -> None:
    chance = Random(seed)
    memory = memory_of(client_bytes_max=60)
    parties = [client() for _ in range(4)]
    shares: list[MemoryShare] = []

    def waits(share: MemoryShare) -> bool:
        """Whether the last thing that the connection was told is to wait."""
        return memory.told.get(share) is False

    for _ in range(400):
        kind = chance.randrange(8)
        if kind == 0 and len(shares) < 30:
            shares.append(memory.connect(chance.choice(parties)))
        if shares:
            share = chance.choice(shares)
            if kind == 1 and not share.frame_bytes:
                length = chance.choice([5, 10, 40, 90, 300])
                memory.told[share] = memory.begin_frame(share, length, chance.randrange(1, length))
            elif kind == 2 and not waits(share):
                memory.end_frame(share)
            elif kind == 3:
                memory.hold_unsent(share, chance.choice([0, 0, 5, 30, 200]))
            elif kind == 4:
                memory.hold_ready(share, chance.choice([0, 0, 5, 30]))
            elif kind == 5 and chance.random() < 0.2:
                memory.leave(share)
                shares.remove(share)
            elif kind == 6:
                memory.move(share, chance.choice(parties))
            elif kind == 7 and share.granted:
                memory.begin_frame(share, share.length, chance.randrange(share.come_bytes, share.length + 1))
        memory.check_invariants()
        assert memory.frames_waiting == sum(map(waits, shares))
    while memory.frames_waiting:  # those that may go on end, one after the other
        running = [share for share in shares if share.granted]
        assert running, "frames wait and none is going on"
        memory.end_frame(chance.choice(running))
        memory.check_invariants()
    for share in shares:
        memory.leave(share)
    assert all((party.used_bytes, party.frames) == (0, 0) for party in parties)
