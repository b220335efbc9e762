"""Stored tokens as lists show them: never a secret, nor its digest."""

from __future__ import annotations

from msgspec.structs import asdict

from delayserver.protocol.schema.tokens import Token, TokenWithText
from store.tables.tokens import StoredToken


def shown(token: StoredToken) -> Token:
    """A token of the table."""
    return Token(
        id=token.token_id,
        name=token.name,
        roles=token.roles,
        subjects=token.subjects,
        created_ms=token.created_ms,
        expires_ms=token.expires_ms,
        rate=token.rate,
        bytes_rate=token.bytes_rate,
        pending_max=token.pending_max,
        old_until_ms=max([secret.until_ms for secret in token.secrets]),
    )


def with_text(token: StoredToken, text: str) -> TokenWithText:
    """A token that was just made or rotated, with its text."""
    return TokenWithText(**asdict(shown(token)), token=text)
