"""The changes of a table of tokens when one is made, revoked or rotated. Pure: no clock, no disk, no chance."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from dataclasses import replace

from delayserver.protocol.arguments import shown
from delayserver.protocol.errors import InvalidArgument
from delayserver.protocol.schema.structs import arguments_of, read_request
from delayserver.protocol.schema.tokens import CreateToken
from delayserver.protocol.token_text import NAME_CHARACTERS_MAX, ROLES, SUBJECTS_MAX, ParsedToken
from store.tables.stored_tokens import TOKENS_MAX, StoredSecret, StoredToken

PATTERN_BYTES_MAX = 255


def created(
    tokens: Sequence[StoredToken], wanted: CreateToken, token_id: str, digest: bytes, now_ms: int
) -> StoredToken:
    """The checked token. Raises InvalidArgument."""
    wanted = read_request(arguments_of(wanted), CreateToken)
    if len(tokens) >= TOKENS_MAX:
        raise InvalidArgument(f"there are {TOKENS_MAX} tokens already: revoke unused ones")
    roles = _texts(wanted.roles, "role", f"one or more of {', '.join(ROLES)}", len(ROLES))
    unknown = [role for role in roles if role not in ROLES]
    if unknown:
        raise InvalidArgument(f"a role is one of {', '.join(ROLES)}, not {shown(unknown[0])}")
    subjects = _texts(wanted.subjects, "subject", "one or more patterns, such as orders* or *", SUBJECTS_MAX)
    if any(len(pattern.encode()) > PATTERN_BYTES_MAX for pattern in subjects):
        raise InvalidArgument(f"a pattern of subjects has at most {PATTERN_BYTES_MAX} bytes")
    if len(wanted.name) > NAME_CHARACTERS_MAX or not wanted.name.isprintable():
        raise InvalidArgument(f"the name of a token is a printable text of at most {NAME_CHARACTERS_MAX} characters")
    if wanted.expires_ms and wanted.expires_ms <= now_ms:
        raise InvalidArgument(f"expires_ms {wanted.expires_ms} has passed; now it is {now_ms}")
    limits = (wanted.rate, wanted.bytes_rate, wanted.pending_max)
    secrets = (StoredSecret(digest),)
    return StoredToken(token_id, wanted.name, roles, subjects, secrets, now_ms, wanted.expires_ms, *limits)


def revoked(tokens: Sequence[StoredToken], token_id: str) -> tuple[StoredToken, list[StoredToken]]:
    """The token with this id, and the others. Raises InvalidArgument."""
    token = _find(tokens, token_id)
    return token, [each for each in tokens if each is not token]


def rotated(
    tokens: Sequence[StoredToken], token_id: str, digest: bytes, now_ms: int, old_until_ms: int
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


def _find(tokens: Sequence[StoredToken], token_id: str) -> StoredToken:
    for token in tokens:
        if token.token_id == token_id:
            return token
    raise InvalidArgument(f"no token has the id {shown(token_id)}; `delayserver token list` shows them")


def _texts(texts: tuple[str, ...], what: str, expected: str, count_max: int) -> tuple[str, ...]:
    if not 0 < len(texts) <= count_max:
        raise InvalidArgument(f"{what}: give {expected} (at most {count_max})")
    if not all(text and text.isprintable() for text in texts):
        raise InvalidArgument(f"{what}: give {expected}, each a printable text that is not empty")
    return tuple(dict.fromkeys(texts))
