"""Stored tokens as lists show them: never a secret, nor its digest."""

from __future__ import annotations

from dataclasses import asdict

import msgspec

from delayserver.protocol.schema.tokens import Token, TokenWithText
from store.tables.stored_tokens import StoredToken


def shown(token: StoredToken) -> Token:
    """A token of the table."""
    fields = asdict(token)
    until_ms = max([secret["until_ms"] for secret in fields.pop("secrets")])
    return Token(id=fields.pop("token_id"), old_until_ms=until_ms, **fields)


def with_text(token: StoredToken, text: str) -> TokenWithText:
    """A token that was just made or rotated, with its text."""
    return TokenWithText(**msgspec.structs.asdict(shown(token)), token=text)
