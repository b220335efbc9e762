"""Changes of tokens that the command makes itself, wherever they are stored."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from delayserver.client.calls.token_calls import MadeToken
from delayserver.protocol.schema.tokens import CreateToken, Token
from delayserver.runtime.chance import system_chance
from delayserver.runtime.clock import SystemClock
from delayserver.tokens.changes import created, revoked, rotated
from delayserver.tokens.making import new_secret, new_text
from delayserver.tokens.shown import shown
from store.tables.stored_tokens import StoredToken


class TokenChanges(ABC):
    """Makes, ends and renews tokens, which a subclass reads and stores."""

    def __init__(self) -> None:
        self._chance = system_chance()
        self._clock = SystemClock()

    @abstractmethod
    def _read(self) -> Sequence[StoredToken]:
        """All tokens that are stored."""

    @abstractmethod
    def _make(self, token: StoredToken, tokens: list[StoredToken]) -> None:
        """Store a new token. `tokens`: all that there are then."""

    @abstractmethod
    def _renew(self, token: StoredToken, tokens: list[StoredToken]) -> None:
        """Store a token with a new secret. `tokens`: all that there are then."""

    @abstractmethod
    def _end(self, token: StoredToken, tokens: list[StoredToken]) -> None:
        """Remove a token. `tokens`: those that are left."""

    def tokens(self) -> list[Token]:
        """All tokens. Raises what reading them raises."""
        return [shown(token) for token in self._read()]

    def create(self, wanted: CreateToken) -> MadeToken:
        """Makes a token. Raises InvalidArgument."""
        tokens = list(self._read())
        token_id, text, digest = new_secret(self._chance)
        token = created(tokens, wanted, token_id, digest, self._clock.now_ms())
        self._make(token, [*tokens, token])
        return MadeToken(shown(token), text)

    def revoke(self, token_id: str) -> Token:
        """Ends a token. Raises InvalidArgument."""
        token, rest = revoked(self._read(), token_id)
        self._end(token, rest)
        return shown(token)

    def rotate(self, token_id: str, overlap_ms: int) -> MadeToken:
        """Gives a token a new secret. Raises InvalidArgument."""
        text, digest = new_text(self._chance, token_id)
        now_ms = self._clock.now_ms()
        token, tokens = rotated(self._read(), token_id, digest, now_ms, now_ms + overlap_ms)
        self._renew(token, tokens)
        return MadeToken(shown(token), text)
