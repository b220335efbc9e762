"""Draws tokens. `chance` is that of the operating system, except in a simulation."""

from __future__ import annotations

import random

from delayserver.protocol.token_text import ID_BITS, SECRET_BYTES, make_token, parse_token


def new_secret(chance: random.Random) -> tuple[str, str, bytes]:
    """A new token id, the token's text, and the digest of its secret."""
    token_id = f"{chance.getrandbits(ID_BITS):0{ID_BITS // 4}x}"
    return token_id, *new_text(chance, token_id)


def new_text(chance: random.Random, token_id: str) -> tuple[str, bytes]:
    """The text of a token with a new secret, and the digest of that; no digest for an id that no token has."""
    text = make_token(token_id, chance.randbytes(SECRET_BYTES))
    parsed = parse_token(text)
    return text, b"" if parsed is None else parsed.digest
