"""The broadcast groups of connections: each is a place in a subject, and ends with its connection."""

from __future__ import annotations

# A connection has a few subjects. A place takes about 200 bytes.
BROADCASTS_MAX = 1024

Name = tuple[str, str]
"""Subject and group."""


class Broadcasts:
    """Places by connection number. Nothing of them is on disk, and they hold back no message."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, dict[Name, int]] = {}

    @property
    def count(self) -> int:
        """How many broadcast groups there are."""
        return sum([len(places) for places in self._of.values()])

    def has(self, connection: int, name: Name) -> bool:
        """Whether a connection has a broadcast group."""
        return name in self._of.get(connection, ())

    def place(self, connection: int, name: Name) -> int | None:
        """The next position of a group; None if the connection has no such group."""
        places = self._of.get(connection)
        return None if places is None else places.get(name)

    def has_room(self, connection: int) -> bool:
        """Whether the connection may have one more group."""
        return len(self._of.get(connection, ())) < BROADCASTS_MAX

    def put(self, connection: int, name: Name, position: int) -> None:
        """Make a group, or move it on."""
        self._of.setdefault(connection, {})[name] = position

    def ended(self, connection: int) -> None:
        """The connection is gone, and its groups with it."""
        self._of.pop(connection, None)
