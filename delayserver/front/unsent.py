"""Replies that the kernel has not taken yet, in order. Bytes only; sending and waiting are the connection's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

Lost = Callable[[], None]

# A rest that is less than half of its frame is copied, so that memory follows the count. Not for small ones.
COPY_BYTES_MIN = 64 * 1024


class Unsent:
    """A queue of frames, the first of them perhaps sent in part."""

    __slots__ = ("_frames", "bytes")

    def __init__(self) -> None:
        self._frames: deque[tuple[memoryview, Lost | None]] = deque()
        self.bytes = 0

    def add(self, rest: memoryview, lost: Lost | None) -> None:
        """Keep the rest of a frame. `lost` is called if its last byte is never sent."""
        self._frames.append((_alone(rest), lost))
        self.bytes += len(rest)

    def first(self) -> memoryview:
        """What is to be sent next. There is something."""
        return self._frames[0][0]

    def sent(self, count: int) -> None:
        """So many bytes of `first` were sent."""
        rest, lost = self._frames[0]
        self.bytes -= count
        if count == len(rest):
            self._frames.popleft()
        else:
            self._frames[0] = _alone(rest[count:]), lost

    def drop(self) -> list[Lost]:
        """Forget all of it; what is to be called now, since a frame that was sent in part is no reply."""
        lost = [lost for _, lost in self._frames if lost is not None]
        self._frames.clear()
        self.bytes = 0
        return lost

    def check_invariants(self) -> None:
        """The count is that of the frames, and no frame is empty. For tests."""
        sizes = [len(rest) for rest, _ in self._frames]
        assert self.bytes == sum(sizes)
        assert all(sizes)


def _alone(rest: memoryview) -> memoryview:
    whole = len(memoryview(rest.obj))
    return memoryview(bytes(rest)) if whole > COPY_BYTES_MIN and len(rest) <= whole // 2 else rest
