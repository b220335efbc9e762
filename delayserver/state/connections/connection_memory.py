"""The memory of all connections together: unfinished frames, requests not begun, and replies not sent.

Counts only. It knows no stream, no clock and no task. Each connection has an allowance of its own, which is always there:
a small request of one client gets through whatever the others hold. Bytes beyond the allowances come from one pool.

- A frame above the allowance is given its whole length before more of it is read. Frames wait for it in the order in which
  they came. So frames that have begun can end, and half frames cannot hold all of the pool against each other.
- Replies are not refused, since their work is done. While the pool is used up, or frames wait for it, a connection with
  unread replies begins no request, and a pull hands out no more than the allowance.
"""

from __future__ import annotations

from collections.abc import Callable

Granted = Callable[[], None]

# While memory is short, a client must move this much in the time in which others must move anything at all.
PROGRESS_BYTES = 1 << 20


class Share:
    """The memory of one connection, in bytes. Only `ConnectionMemory` changes it."""

    __slots__ = ("frame_bytes", "granted", "ready_bytes", "unsent_bytes")

    def __init__(self) -> None:
        # Of the unfinished frame: its whole length once it is granted, before that what has come.
        self.frame_bytes = 0
        self.granted = False
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

    def grant(self) -> None:
        """Its frame has room until it ends."""
        self.granted = True

    def end_grant(self) -> None:
        """The frame that had room has ended."""
        self.granted = False


class ConnectionMemory:
    """The shares of all connections, and the pool for what goes beyond their allowances. One for a server."""

    def __init__(self, bytes_max: int, allowance_bytes: int, unsent_bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.allowance_bytes = allowance_bytes
        self._unsent_bytes_max = unsent_bytes_max
        # Bytes taken from the pool. Replies, and one frame at a time, may exceed `bytes_max`.
        self.used_bytes = 0
        self._shares: set[Share] = set()
        self._waiting: dict[Share, tuple[int, Granted]] = {}
        self._granted = 0

    @property
    def frames_waiting(self) -> int:
        """Frames that are not read on until there is room for them."""
        return len(self._waiting)

    @property
    def short(self) -> bool:
        """Whether the pool is used up, or frames wait for it."""
        return bool(self._waiting) or self.used_bytes >= self.bytes_max

    def join(self) -> Share:
        """A new connection."""
        share = Share()
        self._shares.add(share)
        return share

    def leave(self, share: Share) -> None:
        """The connection has ended and holds nothing; idempotent."""
        if share in self._shares:
            self._waiting.pop(share, None)
            self._hold(share, 0, 0, 0)
            self._shares.remove(share)
            self._grant()

    # -- frames

    def begin_frame(self, share: Share, length: int, come: int, granted: Granted) -> bool:
        """`come` bytes of a frame of this length have come. True: the rest may be read. False: only when `granted` is
        called."""
        if share in self._waiting:
            return False
        if share.granted or share.held_bytes - share.frame_bytes + length <= self.allowance_bytes:
            self._hold(share, length, share.ready_bytes, share.unsent_bytes)
            return True
        self._hold(share, come, share.ready_bytes, share.unsent_bytes)
        if not self._waiting and self._has_room(share, length):
            self._give(share, length)
            return True
        self._waiting[share] = (length, granted)
        return False

    def end_frame(self, share: Share) -> None:
        """The frame is whole, or given up."""
        if share.frame_bytes:
            self._waiting.pop(share, None)
            self._hold(share, 0, share.ready_bytes, share.unsent_bytes)
            self._grant()

    def _has_room(self, share: Share, length: int) -> bool:
        """Whether a frame may have room. While no frame has any, one gets it anyway: unread replies must not block all."""
        more = self._beyond(share.held_bytes - share.frame_bytes + length) - self._beyond(share.held_bytes)
        return self.used_bytes + more <= self.bytes_max or not self._granted

    def _give(self, share: Share, length: int) -> None:
        self._hold(share, length, share.ready_bytes, share.unsent_bytes)
        share.grant()
        self._granted += 1

    def _grant(self) -> None:
        while self._waiting:
            share, (length, granted) = next(iter(self._waiting.items()))
            if not self._has_room(share, length):
                return
            del self._waiting[share]
            self._give(share, length)
            granted()

    # -- requests and replies

    def hold_ready(self, share: Share, ready_bytes: int) -> None:
        """So many bytes of whole requests wait to be begun."""
        less = ready_bytes < share.ready_bytes
        self._hold(share, share.frame_bytes, ready_bytes, share.unsent_bytes)
        if less:
            self._grant()

    def hold_unsent(self, share: Share, unsent_bytes: int) -> None:
        """So many bytes of replies wait to be sent."""
        less = unsent_bytes < share.unsent_bytes
        self._hold(share, share.frame_bytes, share.ready_bytes, unsent_bytes)
        if less:
            self._grant()

    def may_begin(self, share: Share) -> bool:
        """Whether the connection may begin its next request."""
        unsent_bytes = share.unsent_bytes
        return not unsent_bytes or (unsent_bytes <= self._unsent_bytes_max and not self.short)

    def reply_bytes(self, share: Share) -> int:
        """How large a reply may be whose size is free to choose; 0: none is to be made now."""
        if not share.unsent_bytes and not self.used_bytes:  # so no frame waits either
            return self.bytes_max
        if not self.may_begin(share):
            return 0
        return self.allowance_bytes if self.short else max(self.bytes_max - self.used_bytes, self.allowance_bytes)

    def progress_bytes(self, share: Share, bytes_left: int) -> int:
        """The part of so many bytes that must move in the time after which a client is cut."""
        hurry = self.short and share.held_bytes > self.allowance_bytes
        return min(PROGRESS_BYTES, bytes_left) if hurry else 1

    # -- counting

    def _beyond(self, held_bytes: int) -> int:
        return held_bytes - self.allowance_bytes if held_bytes > self.allowance_bytes else 0

    def _hold(self, share: Share, frame_bytes: int, ready_bytes: int, unsent_bytes: int) -> None:
        before = self._beyond(share.held_bytes)
        share.hold(frame_bytes, ready_bytes, unsent_bytes)
        self.used_bytes += self._beyond(share.held_bytes) - before
        if share.granted and not frame_bytes:
            share.end_grant()
            self._granted -= 1

    def check_invariants(self) -> None:
        """Each sum is that of the shares, and no frame waits while there is room for it. O(connections); for tests."""
        assert self.used_bytes == sum([self._beyond(share.held_bytes) for share in self._shares])
        assert self._granted == sum([share.granted for share in self._shares])
        for share in self._shares:
            assert min(share.frame_bytes, share.ready_bytes, share.unsent_bytes) >= 0
            assert not share.granted or share.frame_bytes, "room is kept for a frame that has ended"
        for share in self._waiting:
            assert share in self._shares and not share.granted
        if self._waiting:
            first, (length, _) = next(iter(self._waiting.items()))
            assert not self._has_room(first, length), "a frame waits although there is room"
