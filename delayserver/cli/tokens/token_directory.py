"""The tokens of a data directory on which no server runs."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from delayserver.cli.tokens.token_changes import TokenChanges
from delayserver.runtime.chance import random_server_id
from store.disk.filesystem import RealFileSystem
from store.tables.identity import DataDirectory
from store.tables.stored_tokens import StoredToken, read_tokens, write_tokens


class TokenDirectory(TokenChanges):
    """Locks the directory for its ``with`` block, and makes it if there is none yet."""

    def __init__(self, path: str) -> None:
        """Raises LockedError (a server runs on it), FormatError, CorruptionError."""
        super().__init__()
        self._fs = RealFileSystem()
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

    def _read(self) -> tuple[StoredToken, ...]:
        return read_tokens(self._fs, self._directory.path, self._directory.server_id) or ()

    def _write(self, token: StoredToken, tokens: list[StoredToken]) -> None:
        write_tokens(self._fs, self._directory.path, self._directory.server_id, tokens)

    _make = _renew = _end = _write
