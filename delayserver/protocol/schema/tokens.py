"""The operation `token`: makes, lists, revokes and rotates access tokens."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from delayserver.protocol.schema.structs import Reply, Request, says
from delayserver.protocol.schema.words import DUE_MS
from delayserver.protocol.token_text import LIMIT_MAX, OVERLAP_MS_DEFAULT, ROLES

OVERLAP_MS_MAX: Final = 366 * 86_400_000
"""A year: a secret that is valid for longer beside its successor was not rotated."""
_TIME_MS_MAX: Final = (1 << 62) - 1

Roles: TypeAlias = Annotated[
    tuple[str, ...],
    says("Some of `send`, `consume`, `look`, `admin`.", ["send"], expected=f"a list of some of {', '.join(ROLES)}"),
]
Subjects: TypeAlias = Annotated[
    tuple[str, ...],
    says("Shell-style patterns of subjects, at most 64; `*` for all.", ["orders*"], expected="a list of patterns"),
]
Name: TypeAlias = Annotated[str, says("Whose it is, for people.", "shop")]
ExpiresMs: TypeAlias = Annotated[
    int, says("The token ends then, in milliseconds since 1970; 0: never.", DUE_MS, ge=0, le=_TIME_MS_MAX)
]
Rate: TypeAlias = Annotated[int, says("At most so many messages a second; 0: no limit.", 100, ge=0, le=LIMIT_MAX)]
BytesRate: TypeAlias = Annotated[
    int,
    says(
        "At most so many bytes of messages a second: bodies, ids, order keys and properties; 0: no limit.",
        1 << 20,
        ge=0,
        le=LIMIT_MAX,
    ),
]
PendingMax: TypeAlias = Annotated[
    int, says("At most so many messages that wait; 0: no limit.", 1_000, ge=0, le=LIMIT_MAX)
]
Id: TypeAlias = Annotated[str, says("The 12 hex digits behind `dst_`.", "0a1b2c3d4e5f")]


class CreateToken(Request, frozen=True, tag_field="action", tag="create"):
    """Makes a token."""

    roles: Roles
    subjects: Subjects = ("*",)
    name: Name = ""
    expires_ms: ExpiresMs = 0
    rate: Rate = 0
    bytes_rate: BytesRate = 0
    pending_max: PendingMax = 0


class ListTokens(Request, frozen=True, tag_field="action", tag="list"):
    """All tokens."""


class RevokeToken(Request, frozen=True, tag_field="action", tag="revoke"):
    """Ends a token."""

    id: Id


class RotateToken(Request, frozen=True, tag_field="action", tag="rotate"):
    """Gives a token a new secret."""

    id: Id
    overlap_ms: Annotated[
        int,
        says("The old secret stays valid for so long; an hour if it is missing.", 3_600_000, ge=0, le=OVERLAP_MS_MAX),
    ] = OVERLAP_MS_DEFAULT


class Token(Reply, frozen=True):
    """A token without its secret. Times are milliseconds since 1970; 0 for never, and a limit of 0 for none."""

    id: Id
    name: Name
    roles: Roles
    subjects: Subjects
    created_ms: Annotated[int, says("When it was made, in milliseconds since 1970.", DUE_MS)]
    expires_ms: ExpiresMs
    rate: Rate
    bytes_rate: BytesRate
    pending_max: PendingMax
    old_until_ms: Annotated[
        int, says("Until when the secret from before the last rotation is valid; 0: there is none.", DUE_MS)
    ]


class TokenWithText(Token, frozen=True):
    """A token that was made or rotated."""

    token: Annotated[str, says("The text that a client gives. The server cannot show it again.")]


class TokenList(Reply, frozen=True):
    """All tokens, in the order in which they were made."""

    tokens: Annotated[list[Token], says("The tokens.")]
