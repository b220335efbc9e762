"""The tokens of a data directory on which no server runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from delayserver.client.calls.token_calls import MadeToken
from delayserver.protocol.schema.tokens import CreateToken, Token
from delayserver.runtime.chance import random_server_id, system_chance
from delayserver.runtime.clock import SystemClock
from delayserver.tokens.changes import created, revoked, rotated
from delayserver.tokens.making import new_secret, new_text
from delayserver.tokens.shown import shown
from store.disk.filesystem import RealFileSystem
from store.tables.identity import DataDirectory
from store.tables.stored_tokens import StoredToken, read_tokens, write_tokens


class TokenDirectory:
    """Locks the directory for its ``with`` block, and makes it if there is none yet."""

    def __init__(self, path: str) -> None:
        """Raises LockedError (a server runs on it), FormatError, CorruptionError."""
        self._fs = RealFileSystem()
        self._chance = system_chance()
        self._clock = SystemClock()
        self._directory = DataDirectory.open(
            self._fs,
            path,
            random_server_id=lambda: random_server_id(self._chance),
            holder="delayserver token",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._directory.close()

    def tokens(self) -> list[Token]:
        """All tokens. Raises CorruptionError, FormatError."""
        return [shown(token) for token in self._read()]

    def create(self, wanted: CreateToken) -> MadeToken:
        """Makes a token. Raises InvalidArgument."""
        tokens = self._read()
        token_id, text, digest = new_secret(self._chance)
        token = created(tokens, wanted, token_id, digest, self._clock.now_ms())
        self._write([*tokens, token])
        return MadeToken(shown(token), text)

    def revoke(self, token_id: str) -> Token:
        """Ends a token. Raises InvalidArgument."""
        token, rest = revoked(self._read(), token_id)
        self._write(rest)
        return shown(token)

    def rotate(self, token_id: str, overlap_ms: int) -> MadeToken:
        """Gives a token a new secret. Raises InvalidArgument."""
        text, digest = new_text(self._chance, token_id)
        now_ms = self._clock.now_ms()
        token, tokens = rotated(self._read(), token_id, digest, now_ms, now_ms + overlap_ms)
        self._write(tokens)
        return MadeToken(shown(token), text)

    def _read(self) -> list[StoredToken]:
        return list(read_tokens(self._fs, self._directory.path, self._directory.server_id) or ())

    def _write(self, tokens: list[StoredToken]) -> None:
        write_tokens(self._fs, self._directory.path, self._directory.server_id, tokens)
