"""One direction of a connection inside a process: bytes from one task or thread to another, with a bound.

A pipe takes no lock: a deque hands the bytes over, and each count has one writer. So a signal handler may call any method
although it has interrupted another one.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

PIPE_BYTES_MAX: Final = 1024 * 1024
"""A writer waits while this many bytes are unread. A frame of a thousand small messages goes in one piece, and a client
that reads nothing holds no more."""


class PipeBell(Protocol):
    """Wakes the one that waits for a pipe."""

    def ring(self) -> None:
        """Wake it, now or when it next waits. From any thread."""


class Pipe:
    """Bytes in order. One writer and one reader, each in any thread; each has a bell that the other end rings."""

    __slots__ = ("_chunks", "_read_bytes", "_reader", "_writer", "_writer_waits", "_written_bytes", "broken", "ended")

    def __init__(self, reader: PipeBell, writer: PipeBell) -> None:
        self._chunks: deque[bytes] = deque()
        self._written_bytes = 0  # The writer's count.
        self._read_bytes = 0  # The reader's count.
        self._reader = reader
        self._writer = writer
        self._writer_waits = False
        self.ended = False
        """The writer has closed: there is nothing behind what is unread."""
        self.broken = False
        """The reader has closed: nothing will be read any more."""

    @property
    def unread_bytes(self) -> int:
        """The bytes that were written and not read yet."""
        return self._written_bytes - self._read_bytes

    def lacks_room(self) -> bool:
        """For the writer before it waits: whether `write` would take nothing. If so, the reader rings when it has read."""
        self._writer_waits = True
        return self.unread_bytes >= PIPE_BYTES_MAX and not self.broken and not self.ended

    @property
    def has_news(self) -> bool:
        """Whether `read` has bytes, the end or an error to give."""
        return bool(self._chunks) or self.ended or self.broken

    def write(self, data: bytes | memoryview) -> int:
        """Takes the bytes that there is room for; returns how many. Raises ConnectionResetError if an end has closed."""
        if self.broken or self.ended:
            raise ConnectionResetError("the connection inside this process is closed")
        room = PIPE_BYTES_MAX - self.unread_bytes
        if room <= 0:
            return 0
        chunk = bytes(data) if len(data) <= room else bytes(data[:room])
        self._written_bytes += len(chunk)
        self._chunks.append(chunk)
        self._reader.ring()
        return len(chunk)

    def read(self, bytes_max: int) -> bytes | None:
        """At most so many bytes. Empty at the end of the stream, None if nothing has come. Raises ConnectionResetError if
        this end was closed."""
        if self.broken:
            raise ConnectionResetError("closed here")
        # The writer ends behind its last byte. So only a look after the end was seen says that nothing is left.
        if not self._chunks and not self.ended:
            return None
        if not self._chunks:
            return b""
        chunk = self._chunks.popleft()
        if len(chunk) > bytes_max:
            self._chunks.appendleft(chunk[bytes_max:])
            chunk = chunk[:bytes_max]
        self._read_bytes += len(chunk)
        if self._writer_waits:
            self._writer_waits = False
            self._writer.ring()
        return chunk

    def end(self) -> None:
        """The writer closes."""
        self.ended = True
        self._reader.ring()

    def abandon(self) -> None:
        """The reader closes. Unread bytes go with the pipe."""
        self.broken = True
        self._reader.ring()
        self._writer.ring()
