"""The broadcast groups of one consumer: each is a place in a subject. Nothing of them is on disk."""

from __future__ import annotations

# A consumer has a few subjects. A place takes about 200 bytes.
BROADCASTS_MAX = 1024

Name = tuple[str, str]
"""Subject and group."""


class Broadcasts:
    """Next positions by name. They hold back no message, and end with their consumer. Writer: the pulls of the consumer."""

    __slots__ = ("_ended", "_places")

    def __init__(self) -> None:
        self._places: dict[Name, int] = {}
        self._ended = False

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, name: Name) -> bool:
        return name in self._places

    def place(self, name: Name) -> int | None:
        """The next position of a group; None if there is no such group."""
        return self._places.get(name)

    @property
    def has_room(self) -> bool:
        """Whether there may be one more group."""
        return len(self._places) < BROADCASTS_MAX

    def put(self, name: Name, position: int) -> None:
        """Make a group, or move it on. Does nothing after the end."""
        if not self._ended:
            self._places[name] = position

    def end(self) -> None:
        """The consumer is gone, and its groups with it."""
        self._ended = True
        self._places.clear()
