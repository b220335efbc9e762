"""The changes of a table of tokens when one is made, revoked or rotated. Pure: no clock, no disk, no chance."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.tokens import LIMIT_MAX, NAME_CHARACTERS_MAX, ROLES, SUBJECTS_MAX, ParsedToken
from store.tables.tokens import TOKENS_MAX, StoredSecret, StoredToken

PATTERN_BYTES_MAX = 255


@dataclass(frozen=True, slots=True)
class NewToken:
    """A token as somebody wants it, unchecked. Times are milliseconds since 1970; 0 is no limit, and no end."""

    roles: object
    subjects: object
    name: object = ""
    expires_ms: object = 0
    rate: object = 0
    bytes_rate: object = 0
    pending_max: object = 0


def created(tokens: Sequence[StoredToken], wanted: NewToken, token_id: str, digest: bytes, now_ms: int) -> StoredToken:
    """The checked token. Raises InvalidArgument."""
    if len(tokens) >= TOKENS_MAX:
        raise InvalidArgument(f"there are {TOKENS_MAX} tokens already: revoke unused ones")
    roles = _texts(wanted.roles, "role", f"one or more of {', '.join(ROLES)}", len(ROLES))
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise InvalidArgument(f"a role is one of {', '.join(ROLES)}, not {shown(unknown[0])}")
    subjects = _texts(wanted.subjects, "subject", "one or more patterns, such as orders* or *", SUBJECTS_MAX)
    if any(len(pattern.encode()) > PATTERN_BYTES_MAX for pattern in subjects):
        raise InvalidArgument(f"a pattern of subjects has at most {PATTERN_BYTES_MAX} bytes")
    name = wanted.name
    if type(name) is not str or len(name) > NAME_CHARACTERS_MAX or not (name.isprintable() or not name):
        raise InvalidArgument(f"the name of a token is a printable text of at most {NAME_CHARACTERS_MAX} characters")
    expires_ms = _number(wanted.expires_ms, "expires_ms")
    if expires_ms and expires_ms <= now_ms:
        raise InvalidArgument(f"expires_ms {expires_ms} has passed; now it is {now_ms}")
    limits = [_number(getattr(wanted, what), what, LIMIT_MAX) for what in ("rate", "bytes_rate", "pending_max")]
    return StoredToken(token_id, name, roles, subjects, (StoredSecret(digest),), now_ms, expires_ms, *limits)


def revoked(tokens: Sequence[StoredToken], token_id: object) -> tuple[StoredToken, list[StoredToken]]:
    """The token with this id, and the others. Raises InvalidArgument."""
    token = _find(tokens, token_id)
    return token, [each for each in tokens if each is not token]


def rotated(
    tokens: Sequence[StoredToken], token_id: object, digest: bytes, now_ms: int, old_until_ms: int
) -> tuple[StoredToken, list[StoredToken]]:
    """The token with a new secret, and all tokens. The secret before stays valid for a while, an older one does not.
    Raises InvalidArgument."""
    token = _find(tokens, token_id)
    before = [replace(token.secrets[0], until_ms=old_until_ms)] if old_until_ms > now_ms else []
    new = replace(token, secrets=(StoredSecret(digest), *before))
    return new, [new if each is token else each for each in tokens]


def is_valid(token: StoredToken, given: ParsedToken, now_ms: int) -> bool:
    """Whether a client that gives this secret may use the token now. The time it takes does not depend on the secret."""
    valid = False
    for secret in token.secrets:
        same = hmac.compare_digest(secret.digest, given.digest)
        valid |= same and (not secret.until_ms or now_ms < secret.until_ms)
    return valid and (not token.expires_ms or now_ms < token.expires_ms)


def _find(tokens: Sequence[StoredToken], token_id: object) -> StoredToken:
    for token in tokens:
        if token.token_id == token_id:
            return token
    raise InvalidArgument(f"no token has the id {shown(token_id)}; `delayserver token list` shows them")


def _texts(given: object, what: str, expected: str, count_max: int) -> tuple[str, ...]:
    texts: list[Any] = [given] if type(given) is str else list(given) if isinstance(given, list | tuple) else []
    if not texts or len(texts) > count_max:
        raise InvalidArgument(f"{what}: give {expected} (at most {count_max})")
    if not all(type(text) is str and text and text.isprintable() for text in texts):
        raise InvalidArgument(f"{what}: give {expected}, each a printable text that is not empty")
    return tuple(dict.fromkeys(texts))


def _number(value: object, what: str, maximum: int = (1 << 62) - 1) -> int:
    if type(value) is not int or not 0 <= value <= maximum:
        raise InvalidArgument(f"{what} is a whole number from 0 to {maximum}, not {shown(value)}")
    return value
