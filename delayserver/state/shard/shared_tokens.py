"""The access tokens of a cluster, as far as this process has read the map. They are the same for all shards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from delayserver.runtime.marks import Bell, Mark
from store.tables.stored_tokens import StoredToken


@dataclass(frozen=True, slots=True)
class TokenChange:
    """A token is made (`before` is None), gets a new secret, or is revoked (`after` is None)."""

    before: StoredToken | None
    after: StoredToken | None


class SharedTokens:
    """The table, for all lives of a process, and the changes that a life of it wants. Writer of the table: `MapReading`.
    Writer of the changes: `TokenBook`; `MapReading` takes them.

    A change counts when it comes back with the map: a token is made once, and one that was revoked gets no new secret.
    """

    def __init__(self) -> None:
        # None: no token was made since the founding.
        self.table: tuple[StoredToken, ...] | None = None
        # How far the map was read.
        self.read = Mark(0)
        self.offered = Bell()
        # Each change once: whoever asks again while the map is away offers the same tokens again.
        self._changes: dict[TokenChange, None] = {}

    def take(self, table: tuple[StoredToken, ...] | None, version: int) -> None:
        """A later map has this table."""
        self.table = table
        self.read.advance(version)

    def offer(self, changes: Sequence[TokenChange]) -> None:
        """Have these changes written into the map."""
        self._changes.update(dict.fromkeys(changes))
        self.offered.ring()

    def take_offered(self) -> list[TokenChange]:
        """The changes that are not on their way yet."""
        changes, self._changes = list(self._changes), {}
        return changes

    def has(self, change: TokenChange) -> bool:
        """Whether the map has taken a change, and no later one of the same token."""
        known = {token.token_id: token for token in self.table or ()}
        if change.after is None:
            return change.before is not None and change.before.token_id not in known and self.table is not None
        return known.get(change.after.token_id) == change.after
