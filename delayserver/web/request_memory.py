"""Memory that many requests share, and the bound of their sum."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from delayserver.protocol.errors import QueueFull


class RequestMemory:
    """A number of bytes for all, half of it for the requests of one token: no tenant shuts the others out."""

    def __init__(self, whose: str, bytes_max: int, small_bytes: int) -> None:
        """`whose`: what takes the room, for an error. Each of them has `small_bytes` beside the room."""
        self._whose = whose
        self._bytes_max = bytes_max
        self._of_token_bytes_max = bytes_max // 2
        self.small_bytes = small_bytes
        self._held_bytes = 0
        self._of_tokens: dict[str, int] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes that count against the room now."""
        return self._held_bytes

    @contextmanager
    def holding(self, token: str) -> Iterator[Holding]:
        """What one request of a token holds, until the end of the block."""
        holding = Holding(self, token)
        try:
            yield holding
        finally:
            holding.hold(0)

    def take(self, token: str, size: int) -> None:
        """Count bytes more for a token; give them back if `size` is negative. Raises `QueueFull`."""
        of_token = self._of_tokens.get(token, 0) + size
        if size > 0:
            if self._held_bytes + size > self._bytes_max:
                raise QueueFull(f"{self._whose} take all memory", retry_after_ms=1000)
            if token and of_token > self._of_token_bytes_max:
                raise QueueFull(f"{self._whose} take the memory of this token", retry_after_ms=1000)
        self._held_bytes += size
        if of_token:
            self._of_tokens[token] = of_token
        else:
            self._of_tokens.pop(token, None)


class Holding:
    """The room that one request takes."""

    def __init__(self, room: RequestMemory, token: str) -> None:
        self._room = room
        self._token = token
        self._held_bytes = 0

    def hold(self, size: int) -> None:
        """Hold so many bytes now. Raises `QueueFull`, and holds what it held before."""
        held_bytes = max(size - self._room.small_bytes, 0)
        if held_bytes != self._held_bytes:
            self._room.take(self._token, held_bytes - self._held_bytes)
            self._held_bytes = held_bytes
