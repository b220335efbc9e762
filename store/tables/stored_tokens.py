"""The table `tokens`: the access tokens of a data directory, by id, with the digests of their secrets.

A secret itself is never stored. The file is small, checksummed and replaced atomically. Where it exists, the server asks
every client for a token, also if the table is empty: the last token that is revoked opens nothing. FORMAT.md draws it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import msgpack

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import CorruptionError
from store.tables.sealed_map import HEADER_BYTES, SealedMap, require_of, seal, unseal

FILE_NAME: Final = "tokens"
FORMAT_VERSION: Final = 1
TOKENS_MAX: Final = 10_000
"""A token is some 300 bytes. The file is written whole at every change, and a start reads it whole: 3 MB."""
DIGEST_BYTES: Final = 32

_MAGIC = b"DELAYTOK"


@dataclass(frozen=True, slots=True)
class StoredSecret:
    """The SHA-256 of a secret, and until when it is valid, in milliseconds since 1970; 0: for as long as the token."""

    digest: bytes
    until_ms: int = 0


@dataclass(frozen=True, slots=True)
class StoredToken:
    """A token. The newest secret comes first. `expires_ms` 0: never. A limit of 0 is none: `rate` in messages a second,
    `bytes_rate` in bytes of messages a second, `pending_max` in messages that wait at a time."""

    token_id: str
    name: str
    roles: tuple[str, ...]
    subjects: tuple[str, ...]
    secrets: tuple[StoredSecret, ...]
    created_ms: int
    expires_ms: int = 0
    rate: int = 0
    bytes_rate: int = 0
    pending_max: int = 0


def read_tokens(fs: FileSystem, directory: str, server_id: int) -> tuple[StoredToken, ...] | None:
    """The tokens of a data directory, without change; None if it has no table. Raises CorruptionError, FormatError (of
    another server, newer)."""
    path = f"{directory}/{FILE_NAME}"
    if not fs.exists(path):
        return None
    return decode_tokens(read_whole(fs, path), path, server_id)


def decode_tokens(data: bytes, path: str, server_id: int) -> tuple[StoredToken, ...]:
    """The tokens of a table. Raises CorruptionError, FormatError (of another server, newer)."""
    content = unseal(data, path, _MAGIC, FORMAT_VERSION, "table of tokens")
    require_of(content, path, server_id)
    try:
        tokens = tuple(_unpacked(row) for row in msgpack.unpackb(content.payload))
        if len(tokens) != content.count or len({token.token_id for token in tokens}) != content.count:
            raise ValueError(f"{len(tokens)} rows, {content.count} announced, each with an id of its own")
    except (ValueError, KeyError, TypeError, AttributeError, msgpack.UnpackException) as error:
        raise CorruptionError(path, HEADER_BYTES, f"the table of tokens makes no sense: {error!r}") from error
    return tokens


def write_tokens(fs: FileSystem, directory: str, server_id: int, tokens: Iterable[StoredToken]) -> None:
    """Replaces the table. Durable when this returns. Raises DiskFullError, SyncFailedError: the old one stands."""
    write_atomically(fs, f"{directory}/{FILE_NAME}", encode_tokens(server_id, tokens))


def encode_tokens(server_id: int, tokens: Iterable[StoredToken]) -> bytes:
    """The bytes of the table."""
    rows = [_packed(token) for token in tokens]
    return seal(_MAGIC, FORMAT_VERSION, SealedMap(server_id, len(rows), msgpack.packb(rows)))


def _packed(token: StoredToken) -> dict[str, Any]:
    return {
        "id": token.token_id,
        "name": token.name,
        "roles": list(token.roles),
        "subjects": list(token.subjects),
        "secrets": [[secret.digest, secret.until_ms] for secret in token.secrets],
        "created_ms": token.created_ms,
        "expires_ms": token.expires_ms,
        "rate": token.rate,
        "bytes_rate": token.bytes_rate,
        "pending_max": token.pending_max,
    }


def _unpacked(row: dict[str, Any]) -> StoredToken:
    """Raises ValueError, KeyError, TypeError, AttributeError."""
    token = StoredToken(
        _text(row["id"]),
        _text(row["name"]),
        tuple(_text(role) for role in row["roles"]),
        tuple(_text(subject) for subject in row["subjects"]),
        tuple(StoredSecret(_digest(digest), _number(until_ms)) for digest, until_ms in row["secrets"]),
        *[_number(row[name]) for name in ("created_ms", "expires_ms", "rate", "bytes_rate", "pending_max")],
    )
    if not token.token_id or not token.roles or not token.subjects or not token.secrets:
        raise ValueError("a token has an id, a role, a pattern of subjects and a secret")
    return token


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError(f"{value!r:.40} is no text")
    return value


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r:.40} is no number of 0 or more")
    return value


def _digest(value: object) -> bytes:
    if type(value) is not bytes or len(value) != DIGEST_BYTES:
        raise ValueError("a digest has 32 bytes")
    return value
