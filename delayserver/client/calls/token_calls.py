"""Calls about access tokens. No I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from delayserver.client.calls.core import Call
from delayserver.protocol.operations import TOKEN


@dataclass(frozen=True, slots=True)
class WantedToken:
    """A token to be made; `AsyncOperations.token` says what its fields mean."""

    roles: str | Sequence[str]
    subjects: str | Sequence[str]
    name: str
    expires: datetime | int
    rate: int
    bytes_rate: int
    pending_max: int


@dataclass(frozen=True, slots=True)
class Token:
    """A token without its secret. Times are milliseconds since 1970; 0 for never, and a limit of 0 for none.

    ``old_until_ms``: until when the secret from before the last rotation is valid; 0 if there is none.
    """

    id: str
    name: str
    roles: tuple[str, ...]
    subjects: tuple[str, ...]
    created_ms: int
    expires_ms: int
    rate: int
    bytes_rate: int
    pending_max: int
    old_until_ms: int


@dataclass(frozen=True, slots=True)
class MadeToken:
    """A token with its ``text``, which is shown once and never stored by the server. It is not part of the `repr`."""

    token: Token
    text: str

    def __repr__(self) -> str:
        return f"MadeToken({self.token!r})"


def create_call(wanted: WantedToken) -> Call[MadeToken]:
    """Make a token."""
    expires = wanted.expires
    arguments = {
        "action": "create",
        "roles": _list(wanted.roles),
        "subjects": _list(wanted.subjects),
        "name": wanted.name,
        "expires_ms": round(expires.timestamp() * 1000) if isinstance(expires, datetime) else expires,
        "rate": wanted.rate,
        "bytes_rate": wanted.bytes_rate,
        "pending_max": wanted.pending_max,
    }
    return Call(TOKEN, arguments, lambda result, _: _made(result), repeatable=False)


def list_call() -> Call[list[Token]]:
    """All tokens."""
    return Call(TOKEN, {"action": "list"}, lambda result, _: [_token(each) for each in result["tokens"]])


def revoke_call(token_id: str) -> Call[Token]:
    """End a token."""
    return Call(TOKEN, {"action": "revoke", "id": token_id}, lambda result, _: _token(result), repeatable=False)


def rotate_call(token_id: str, overlap: timedelta | float | None) -> Call[MadeToken]:
    """Give a token a new secret. ``overlap`` in seconds, if it is a number."""
    arguments: dict[str, Any] = {"action": "rotate", "id": token_id}
    if overlap is not None:
        seconds = overlap.total_seconds() if isinstance(overlap, timedelta) else overlap
        arguments["overlap_ms"] = round(seconds * 1000)
    return Call(TOKEN, arguments, lambda result, _: _made(result), repeatable=False)


def _list(given: str | Sequence[str]) -> list[str]:
    return [given] if isinstance(given, str) else list(given)


def _made(result: dict[str, Any]) -> MadeToken:
    return MadeToken(_token(result), str(result["token"]))


def _token(row: dict[str, Any]) -> Token:
    return Token(
        str(row["id"]),
        str(row["name"]),
        tuple(row["roles"]),
        tuple(row["subjects"]),
        *[int(row[name]) for name in ("created_ms", "expires_ms", "rate", "bytes_rate", "pending_max", "old_until_ms")],
    )
