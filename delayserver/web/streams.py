"""The bound of long streams: each keeps a connection and a task for as long as its client listens."""

from __future__ import annotations

from types import TracebackType

from delayserver.protocol.errors import QueueFull


class Streams:
    """Counts the streams that run."""

    class Place:
        """The place of one stream: a context manager for the time in which it runs."""

        def __init__(self, streams: Streams) -> None:
            self._streams = streams

        def __enter__(self) -> None:
            self._streams.count(1)

        def __exit__(
            self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
        ) -> None:
            self._streams.count(-1)

    def __init__(self, streams_max: int) -> None:
        self._streams_max = streams_max
        self._running = 0

    @property
    def running(self) -> int:
        """How many streams run."""
        return self._running

    def count(self, change: int) -> None:
        """One stream more, or less."""
        self._running += change

    def begin(self) -> Place:
        """A place for one more stream. Raises `QueueFull`."""
        if self._running >= self._streams_max:
            raise QueueFull(f"{self._streams_max} streams run already (http.streams_max)", retry_after_ms=5000)
        return Streams.Place(self)
