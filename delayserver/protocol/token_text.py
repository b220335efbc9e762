"""The form of an access token: ``dst_<id>_<secret>``. The prefix lets scanners of source code recognise a leaked one.

The id has 12 hex digits and names the token in lists and logs. The secret has 256 random bits. So one round of SHA-256 is
enough for its digest: such secrets cannot be tried in turn as passwords can.
"""

from __future__ import annotations

import base64
import hashlib
import re
from typing import Final, NamedTuple

PREFIX: Final = "dst_"
SECRET_BYTES: Final = 32
ID_BITS: Final = 48

SEND, CONSUME, LOOK, ADMIN = "send", "consume", "look", "admin"
ROLES: Final = (SEND, CONSUME, LOOK, ADMIN)
"""The roles of tokens. `admin` includes the others."""

NAME_CHARACTERS_MAX: Final = 100
SUBJECTS_MAX: Final = 64
"""Patterns of a token. A new subject is compared with each once."""
LIMIT_MAX: Final = 1 << 40
OVERLAP_MS_DEFAULT: Final = 3_600_000
"""After a rotation the old secret stays valid for so long, unless the operator says otherwise."""

_FORM: Final = re.compile(r"dst_([0-9a-f]{12})_([A-Za-z0-9_-]{43})")
_TOKEN_CHARACTERS: Final = 60


class ParsedToken(NamedTuple):
    """The id of a token, and the digest of its secret."""

    token_id: str
    digest: bytes


def make_token(token_id: str, secret: bytes) -> str:
    """The text of a token."""
    return f"{PREFIX}{token_id}_{base64.urlsafe_b64encode(secret).rstrip(b'=').decode()}"


def parse_token(text: object) -> ParsedToken | None:
    """The parts of a token, or None if it has not the form of one."""
    if type(text) is not str or len(text) != _TOKEN_CHARACTERS:
        return None
    match = _FORM.fullmatch(text)
    if match is None:
        return None
    return ParsedToken(match[1], hashlib.sha256(match[2].encode()).digest())
