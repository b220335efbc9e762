"""Calls about access tokens. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from delayserver.client.calls.core import Call, described_call
from delayserver.protocol.operation_names import TOKEN
from delayserver.protocol.schema.structs import arguments_of, read_reply
from delayserver.protocol.schema.tokens import CreateToken, ListTokens, RevokeToken, RotateToken, Token, TokenList
from delayserver.protocol.token_text import OVERLAP_MS_DEFAULT


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A token with its ``text``, which is shown once and never stored by the server. It is not part of the `repr`."""

    token: Token
    text: str

    def __repr__(self) -> str:
        return f"MadeToken({self.token!r})"


def wanted_token(
    roles: str | Sequence[str], subjects: str | Sequence[str], expires: datetime | int, **rest: Any
) -> CreateToken:
    """A token to be made; `AsyncOperations.token` says what its fields mean."""
    expires_ms = round(expires.timestamp() * 1000) if isinstance(expires, datetime) else expires
    return CreateToken(roles=_texts(roles), subjects=_texts(subjects), expires_ms=expires_ms, **rest)


def making_call(asked: CreateToken | RotateToken) -> Call[MadeToken]:
    """Make a token, or give it a new secret."""

    def read(result: dict[str, Any], _: object) -> MadeToken:
        return MadeToken(read_reply(result, Token), str(result["token"]))

    return Call(TOKEN, arguments_of(asked), read, repeatable=False)


def list_call() -> Call[TokenList]:
    """All tokens."""
    return described_call(TOKEN, ListTokens(), TokenList)


def revoke_call(token_id: str) -> Call[Token]:
    """End a token."""
    return described_call(TOKEN, RevokeToken(id=token_id), Token, repeatable=False)


def rotate_call(token_id: str, overlap: timedelta | float | None) -> Call[MadeToken]:
    """Give a token a new secret. ``overlap`` in seconds, if it is a number."""
    seconds = overlap.total_seconds() if isinstance(overlap, timedelta) else overlap
    return making_call(
        RotateToken(id=token_id, overlap_ms=OVERLAP_MS_DEFAULT if seconds is None else round(seconds * 1000))
    )


def _texts(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)
