"""The tokens of a cluster, in its map: for who may write to Kafka. No member need run."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Self

from delayserver.cli.kafka.on_kafka import read_map, write_note
from delayserver.cli.tokens.token_changes import TokenChanges
from delayserver.protocol.errors import InvalidArgument
from store.tables.stored_tokens import StoredToken

if TYPE_CHECKING:
    from delayserver.members.member_map import Note


class TokenCluster(TokenChanges):
    """The tokens of the cluster of a file. The ``with`` block holds nothing."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self._path = path

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def _read(self) -> tuple[StoredToken, ...]:
        found = read_map(self._path)
        if found.founded is None:
            raise InvalidArgument("there is no cluster yet: delayserver cluster init")
        return found.token_table() or ()

    def _make(self, token: StoredToken, tokens: list[StoredToken]) -> None:
        from delayserver.members.member_map import TokenNote

        self._write(TokenNote(token, made=True), token)

    def _renew(self, token: StoredToken, tokens: list[StoredToken]) -> None:
        from delayserver.members.member_map import TokenNote

        self._write(TokenNote(token, made=False), token)

    def _end(self, token: StoredToken, tokens: list[StoredToken]) -> None:
        from delayserver.members.member_map import TokenRevoked

        write_note(self._path, TokenRevoked(token.token_id))

    def _write(self, note: Note, token: StoredToken) -> None:
        if token not in (write_note(self._path, note).token_table() or ()):
            raise InvalidArgument("another change of the tokens came first: list them")
