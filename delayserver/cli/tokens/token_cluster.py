"""The tokens of a cluster, in its map: for who may write to Kafka. No member need run."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from delayserver.cli.kafka.on_kafka import read_map, write_note
from delayserver.client.calls.token_calls import MadeToken
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.tokens import CreateToken, Token
from delayserver.runtime.chance import system_chance
from delayserver.runtime.clock import SystemClock
from delayserver.tokens.changes import created, revoked, rotated
from delayserver.tokens.making import new_secret, new_text
from delayserver.tokens.shown import shown
from store.tables.stored_tokens import StoredToken

if TYPE_CHECKING:
    from delayserver.members.member_map import Note


class TokenCluster:
    """The tokens of the cluster of a file. The ``with`` block holds nothing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._chance = system_chance()
        self._clock = SystemClock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def tokens(self) -> list[Token]:
        """All tokens. Raises LogUnusable, LogUnavailable."""
        return [shown(token) for token in self._read()]

    def create(self, wanted: CreateToken) -> MadeToken:
        """Makes a token. Raises InvalidArgument."""
        from delayserver.members.member_map import TokenNote

        tokens = self._read()
        token_id, text, digest = new_secret(self._chance)
        token = created(tokens, wanted, token_id, digest, self._clock.now_ms())
        self._write(TokenNote(token, made=True), token)
        return MadeToken(shown(token), text)

    def revoke(self, token_id: str) -> Token:
        """Ends a token. Raises InvalidArgument."""
        from delayserver.members.member_map import TokenRevoked

        token, _ = revoked(self._read(), token_id)
        write_note(self._path, TokenRevoked(token_id))
        return shown(token)

    def rotate(self, token_id: str, overlap_ms: int) -> MadeToken:
        """Gives a token a new secret. Raises InvalidArgument."""
        from delayserver.members.member_map import TokenNote

        text, digest = new_text(self._chance, token_id)
        now_ms = self._clock.now_ms()
        token, _ = rotated(self._read(), token_id, digest, now_ms, now_ms + overlap_ms)
        self._write(TokenNote(token, made=False), token)
        return MadeToken(shown(token), text)

    def _read(self) -> tuple[StoredToken, ...]:
        found = read_map(self._path)
        if found.founded is None:
            raise InvalidArgument("there is no cluster yet: delayserver cluster init")
        return found.token_table() or ()

    def _write(self, note: Note, token: StoredToken) -> None:
        if token not in (write_note(self._path, note).token_table() or ()):
            raise InvalidArgument("another change of the tokens came first: list them")
