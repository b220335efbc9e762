"""Replies that the kernel has not taken yet, in order. Holds bytes only; the connection sends and waits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Lost = Callable[[], None]

# The rest of a larger frame is copied when it is at most half of the frame, which is then freed.
COPY_BYTES_MIN = 64 * 1024


class Unsent:
    """A queue of frames. The first one may be sent in part."""

    __slots__ = ("_frames", "bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[memoryview, Lost | None]] = deque()
        self.bytes = 0

    def add(self, rest: memoryview, lost: Lost | None) -> None:
        """Appends the rest of a frame. `drop` returns `lost` if the last byte was never sent."""
        self._frames.append((_alone(rest), lost))
        self.bytes += len(rest)

    def first(self) -> memoryview:
        """The bytes to send next. The queue must not be empty."""
        return self._frames[0][0]

    def remove_sent(self, count: int) -> None:
        """Removes `count` sent bytes of `first`."""
        rest, lost = self._frames[0]
        self.bytes -= count
        if count == len(rest):
            self._frames.popleft()
        else:
            self._frames[0] = _alone(rest[count:]), lost

    def drop(self) -> list[Lost]:
        """Empties the queue. Returns the `lost` callbacks to call, also of a frame that was sent in part."""
        lost = [lost for _, lost in self._frames if lost is not None]
        self._frames.clear()
        self.bytes = 0
        return lost

    def check_invariants(self) -> None:
        """Asserts that `bytes` is the size of all frames and that no frame is empty. For tests."""
        sizes = [len(rest) for rest, _ in self._frames]
        assert self.bytes == sum(sizes)
        assert all(sizes)


def _alone(rest: memoryview) -> memoryview:
    whole = len(memoryview(rest.obj))
    return memoryview(bytes(rest)) if whole > COPY_BYTES_MIN and len(rest) <= whole // 2 else rest
