"""The memory of all connections together: unfinished frames, requests not begun, and replies not sent.

Counts only. It knows no stream, no clock and no task. Each connection has an allowance of its own, which is always there:
a small request of one client gets through whatever the others hold. Bytes beyond the allowances come from one pool.

- A frame above the allowance is given its whole length before more of it is read. So frames that have begun can end, and
  half frames cannot hold all of the pool against each other.
- A client has a share of the pool for all its connections. Its frames first wait for room in that share, in their order.
- Then frames wait for room in the pool. A small one goes before a large one that came at the same time. If the rests of
  larger frames keep its room, these give back what has not come of them, and wait again.
- Large frames leave a part of the pool to the others.
- Replies are not refused, since their work is done. While the pool is used up, or frames wait for it, a connection with
  unread replies begins no request, and a pull hands out no more than the allowance. The same counts for a client whose share
  is used up.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from typing import Final

from delayserver.state.connections.parties import Party

PROGRESS_BYTES: Final = 1 << 20
"""While memory is short, a client must read this much in the time in which others must read anything at all."""
HURRY_BYTES: Final = 4 << 20
"""While frames wait for the pool, a frame that has room must bring this much, or its rest, in the time of one look."""
LARGE_BYTES: Final = 1 << 20
"""A frame above this size is large. Large frames get no more than LARGE_PART of the pool."""
LARGE_PART: Final = 3 / 4
SIZE_WEIGHT: Final = 8
"""A frame goes before one that came earlier, if that is larger by an eighth of the bytes that got room in between."""


class FrameTurns:
    """How a connection is told that its frame may come, or may not any more."""

    __slots__ = ("granted", "withdrawn")

    def __init__(self, granted: Callable[[], None], withdrawn: Callable[[], None]) -> None:
        self.granted = granted
        self.withdrawn = withdrawn


def _nobody() -> None:
    """A connection that has ended."""


_NO_TURNS: Final = FrameTurns(_nobody, _nobody)


class MemoryShare:
    """The memory of one connection, in bytes. Only `ConnectionMemory` changes it."""

    __slots__ = (
        "come_bytes",
        "frame_bytes",
        "granted",
        "key",
        "length",
        "party",
        "ready_bytes",
        "turns",
        "unsent_bytes",
    )

    def __init__(self, party: Party, turns: FrameTurns) -> None:
        self.party = party
        self.turns = turns
        # Of the unfinished frame: its whole length once it is granted, before that what has come.
        self.frame_bytes = 0
        self.granted = False
        # Of a frame above the allowance: its length, what has come of it, and its place in line.
        self.length = 0
        self.come_bytes = 0
        self.key = 0
        # Of whole requests that are not begun.
        self.ready_bytes = 0
        # Of replies that the kernel did not take.
        self.unsent_bytes = 0

    @property
    def held_bytes(self) -> int:
        """All of it."""
        return self.frame_bytes + self.ready_bytes + self.unsent_bytes

    def hold(self, frame_bytes: int, ready_bytes: int, unsent_bytes: int) -> None:
        """It holds this much from now on."""
        self.frame_bytes, self.ready_bytes, self.unsent_bytes = frame_bytes, ready_bytes, unsent_bytes

    def begin(self, length: int, key: int) -> None:
        """A frame of this length begins to wait, with this place in line."""
        self.length, self.key = length, key

    def note_come(self, come_bytes: int) -> None:
        """Keeps how many bytes of the frame have come."""
        self.come_bytes = come_bytes

    def grant(self, *, granted: bool) -> None:
        """Whether its frame has room until it ends."""
        self.granted = granted

    def belong(self, party: Party) -> None:
        """It counts for this client from now on."""
        self.party = party

    def end(self) -> None:
        """Its connection has ended, and is told nothing more. They must not refer to each other."""
        self.turns = _NO_TURNS


class ConnectionMemory:
    """The shares of all connections, and the pool for what goes beyond their allowances. One for a server. Writers: the
    connections."""

    def __init__(self, bytes_max: int, allowance_bytes: int, unsent_bytes_max: int, client_bytes_max: int) -> None:
        """`client_bytes_max`: the share of one client in the pool of `bytes_max`."""
        self.bytes_max = bytes_max
        self.allowance_bytes = allowance_bytes
        self._unsent_bytes_max = unsent_bytes_max
        self._client_bytes_max = client_bytes_max
        # Bytes taken from the pool. Replies, and one frame at a time, may exceed `bytes_max`.
        self.used_bytes = 0
        self._shares: set[MemoryShare] = set()
        # Frames that wait for room in the share of their client, in their order.
        self._behind: dict[Party, dict[MemoryShare, None]] = {}
        # Frames that wait for the pool. The heap also has entries of frames that wait no more.
        self._waiting: set[MemoryShare] = set()
        self._line: list[tuple[int, int, MemoryShare]] = []
        self._numbers = itertools.count()
        # Frames that have room; bytes of the pool that large ones have.
        self._granted: set[MemoryShare] = set()
        self._large_bytes = 0
        # The sum of the lengths of all frames that got room so far: the time by which frames stand in line.
        self._passed_bytes = 0

    @property
    def frames_waiting(self) -> int:
        """Frames that are not read on until there is room for them."""
        return len(self._waiting) + sum([len(behind) for behind in self._behind.values()])

    @property
    def short(self) -> bool:
        """Whether the pool is used up, or frames wait for it."""
        return bool(self._waiting) or self.used_bytes >= self.bytes_max

    @property
    def crowded(self) -> bool:
        """Whether a frame that begins now may have to wait."""
        return self.used_bytes > 0 and (self.short or bool(self._behind))

    def at_once_bytes(self, bytes_max: int, connections: int) -> int:
        """How many bytes so many connections may read at once, each. They must not fill the pool before one can wait."""
        left_bytes = self.bytes_max
        if self.used_bytes:  # else nothing waits
            if self.crowded:
                return self.allowance_bytes
            left_bytes -= self.used_bytes
        if left_bytes >= bytes_max * connections:  # the usual case, in each step of the event loop
            return bytes_max
        return min(bytes_max, max(left_bytes // connections, self.allowance_bytes))

    def join(self, party: Party, turns: FrameTurns) -> MemoryShare:
        """A new connection of a client."""
        share = MemoryShare(party, turns)
        self._shares.add(share)
        return share

    def move(self, share: MemoryShare, party: Party) -> None:
        """The connection counts for this client from now on, with all that it holds."""
        before = share.party
        if party is before:
            return
        waits = share in self._waiting
        used_bytes = self._beyond(share.held_bytes) + (self._more(share) if waits else 0)
        frames = int(waits or share.granted)
        behind = self._behind.get(before)
        if behind is not None and share in behind:
            self._leave_behind(share)
            self._behind.setdefault(party, {})[share] = None
        for each, sign in ((before, -1), (party, 1)):
            each.use(sign * used_bytes)
            each.admit(sign * frames)
        share.belong(party)
        self._advance(before)
        self._grant(party)

    def leave(self, share: MemoryShare) -> None:
        """The connection has ended and holds nothing; idempotent."""
        if share in self._shares:
            self._give_up(share)
            self._hold(share, 0, 0, 0)
            share.end()
            self._shares.remove(share)
            self._grant(share.party)

    # -- frames

    def begin_frame(self, share: MemoryShare, length: int, come: int) -> bool:
        """`come` bytes of a frame of this length have come. True: the rest may be read. False: only when the connection is
        told."""
        if self._waits(share):
            return False
        if share.granted:
            share.note_come(come)
            return True
        if share.held_bytes - share.frame_bytes + length <= self.allowance_bytes:
            self._hold(share, length, share.ready_bytes, share.unsent_bytes)
            return True
        self._hold(share, come, share.ready_bytes, share.unsent_bytes)
        share.begin(length, self._passed_bytes + SIZE_WEIGHT * length)
        share.note_come(come)
        party = share.party
        self._behind.setdefault(party, {})[share] = None
        self._advance(party)
        self._serve()
        return share.granted

    def end_frame(self, share: MemoryShare) -> None:
        """The frame is whole, or given up."""
        if share.frame_bytes:
            self._give_up(share)
            self._hold(share, 0, share.ready_bytes, share.unsent_bytes)
            self._grant(share.party)

    def _waits(self, share: MemoryShare) -> bool:
        return share in self._waiting or share in self._behind.get(share.party, ())

    def _give_up(self, share: MemoryShare) -> None:
        """Its frame has no room any more, and waits for none."""
        party = share.party
        if share in self._behind.get(party, ()):
            self._leave_behind(share)
        elif share in self._waiting:
            self._waiting.remove(share)
            party.admit(-1)
            party.use(-self._more(share))
        elif share.granted:
            self._granted.remove(share)
            if share.length > LARGE_BYTES:
                self._large_bytes -= share.length
            share.grant(granted=False)
            party.admit(-1)

    def _leave_behind(self, share: MemoryShare) -> None:
        behind = self._behind[share.party]
        del behind[share]
        if not behind:
            del self._behind[share.party]

    def _more(self, share: MemoryShare) -> int:
        """The bytes of the pool that its frame still needs. They are counted for its client while it waits for the pool."""
        before = share.come_bytes + share.ready_bytes + share.unsent_bytes
        return self._beyond(before - share.come_bytes + share.length) - self._beyond(before)

    def _grant(self, party: Party) -> None:
        """Room has become free, of this client and of the pool."""
        self._advance(party)
        self._serve()

    def _advance(self, party: Party) -> None:
        """Lets frames of a client stand in line for the pool, as far as its share goes. One may always: its own unread
        replies must not block them all."""
        behind = self._behind.get(party)
        while behind:
            share = next(iter(behind))
            more = self._more(share)
            if party.frames and party.used_bytes + more > self._client_bytes_max:
                return
            self._leave_behind(share)
            party.admit(1)
            self._stand(share)
            behind = self._behind.get(party)

    def _stand(self, share: MemoryShare) -> None:
        self._waiting.add(share)
        share.party.use(self._more(share))
        if len(self._line) > 2 * len(self._waiting) + 16:
            self._line = [entry for entry in self._line if entry[2] in self._waiting and entry[2].key == entry[0]]
            heapq.heapify(self._line)
        heapq.heappush(self._line, (share.key, next(self._numbers), share))

    def _serve(self) -> None:
        """Gives room to the frames at the head of the line."""
        while (share := self._head()) is not None:
            if not self._has_room(share) and not self._take_back(share):
                return
            self._waiting.remove(share)
            heapq.heappop(self._line)
            share.party.use(-self._more(share))
            self._hold(share, share.length, share.ready_bytes, share.unsent_bytes)
            share.grant(granted=True)
            self._granted.add(share)
            self._passed_bytes += share.length
            if share.length > LARGE_BYTES:
                self._large_bytes += share.length
            share.turns.granted()

    def _head(self) -> MemoryShare | None:
        """The first frame in line."""
        while self._line:
            key, _, share = self._line[0]
            if share in self._waiting and share.key == key:
                return share
            heapq.heappop(self._line)
        return None

    def _has_room(self, share: MemoryShare) -> bool:
        """Whether a frame may have room. While no frame has any, one gets it anyway: unread replies must not block all."""
        if not self._granted:
            return True
        if share.length > LARGE_BYTES and self._large_bytes + share.length > self.bytes_max * LARGE_PART:
            return False
        return self.used_bytes + self._more(share) <= self.bytes_max

    def _take_back(self, share: MemoryShare) -> bool:
        """Takes from frames that stand behind this one what has not come of them, if that gives it room. The last one in
        line goes first."""
        wanted = self.used_bytes + self._more(share) - self.bytes_max
        if share.length > LARGE_BYTES:
            wanted = max(wanted, self._large_bytes + share.length - int(self.bytes_max * LARGE_PART))
        slow: list[MemoryShare] = []
        for each in sorted(self._granted, key=lambda each: each.key, reverse=True):
            if wanted <= 0 or each.key <= share.key:
                break
            if each.length > each.come_bytes:
                slow.append(each)
                wanted -= each.length - each.come_bytes
        if wanted > 0:
            return False
        for each in slow:
            self._granted.remove(each)
            if each.length > LARGE_BYTES:
                self._large_bytes -= each.length
            each.grant(granted=False)
            self._hold(each, each.come_bytes, each.ready_bytes, each.unsent_bytes)
            self._stand(each)
            each.turns.withdrawn()
        return self._has_room(share)

    # -- requests and replies

    def hold_ready(self, share: MemoryShare, ready_bytes: int) -> None:
        """So many bytes of whole requests wait to be begun."""
        self._hold_beside(share, ready_bytes, share.unsent_bytes)

    def hold_unsent(self, share: MemoryShare, unsent_bytes: int) -> None:
        """So many bytes of replies wait to be sent."""
        self._hold_beside(share, share.ready_bytes, unsent_bytes)

    def _hold_beside(self, share: MemoryShare, ready_bytes: int, unsent_bytes: int) -> None:
        less = ready_bytes + unsent_bytes < share.ready_bytes + share.unsent_bytes
        waits = share in self._waiting
        if waits:
            share.party.use(-self._more(share))
        self._hold(share, share.frame_bytes, ready_bytes, unsent_bytes)
        if waits:
            share.party.use(self._more(share))
        if less and (self._behind or self._waiting):
            self._grant(share.party)

    def may_begin(self, share: MemoryShare) -> bool:
        """Whether the connection may begin its next request."""
        unsent_bytes = share.unsent_bytes
        return not unsent_bytes or (
            unsent_bytes <= self._unsent_bytes_max
            and not self.short
            and share.party.used_bytes < self._client_bytes_max
        )

    def reply_bytes(self, share: MemoryShare) -> int:
        """How large a reply may be whose size is free to choose; 0: none is to be made now."""
        if not share.unsent_bytes and not self.used_bytes:  # so no frame waits either
            return self._client_bytes_max
        if not self.may_begin(share):
            return 0
        left = min(self.bytes_max - self.used_bytes, self._client_bytes_max - share.party.used_bytes)
        return self.allowance_bytes if self.short else max(left, self.allowance_bytes)

    def progress_bytes(self, share: MemoryShare, bytes_left: int) -> int:
        """The part of so many unread bytes of replies that a client must read in the time after which it is cut."""
        hurry = self.short and share.held_bytes > self.allowance_bytes
        return min(PROGRESS_BYTES, bytes_left) if hurry else 1

    def hurry_bytes(self, share: MemoryShare) -> int:
        """How many bytes of its frame must come in the time of one look. 0: the frame has time."""
        if not share.granted or not self._waiting:
            return 0
        return min(HURRY_BYTES, share.length - share.come_bytes)

    # -- counting

    def _beyond(self, held_bytes: int) -> int:
        return held_bytes - self.allowance_bytes if held_bytes > self.allowance_bytes else 0

    def _hold(self, share: MemoryShare, frame_bytes: int, ready_bytes: int, unsent_bytes: int) -> None:
        before = self._beyond(share.held_bytes)
        share.hold(frame_bytes, ready_bytes, unsent_bytes)
        more = self._beyond(share.held_bytes) - before
        if more:
            self.used_bytes += more
            share.party.use(more)

    def check_invariants(self) -> None:
        """Each sum is that of the shares, and no frame waits while there is room for it. O(connections); for tests."""
        assert self.used_bytes == sum([self._beyond(share.held_bytes) for share in self._shares])
        assert self._granted == {share for share in self._shares if share.granted}
        assert self._large_bytes == sum([share.length for share in self._granted if share.length > LARGE_BYTES])
        used: dict[Party, int] = {}
        frames: dict[Party, int] = {}
        for share in self._shares:
            assert min(share.frame_bytes, share.ready_bytes, share.unsent_bytes) >= 0
            assert not share.granted or share.frame_bytes, "room is kept for a frame that has ended"
            assert not (share.granted and self._waits(share))
            party = share.party
            more = self._more(share) if share in self._waiting else 0
            used[party] = used.get(party, 0) + self._beyond(share.held_bytes) + more
            frames[party] = frames.get(party, 0) + (share.granted or share in self._waiting)
        assert all((party.used_bytes, party.frames) == (used[party], frames[party]) for party in used)
        assert self._waiting <= self._shares
        assert all(behind.keys() <= self._shares for behind in self._behind.values())
        for party in self._behind:
            assert party.frames, "a client's frames wait although none has room"
        head = self._head()
        assert head is None or not self._has_room(head), "a frame waits although there is room"
