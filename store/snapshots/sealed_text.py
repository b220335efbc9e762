"""A JSON text with a first line that has its kind, its version and its checksum. People can read it, and damage shows."""

from __future__ import annotations

import hashlib
from typing import TypeVar

import msgspec

from store.errors import CorruptionError, FormatError

T = TypeVar("T", bound=msgspec.Struct)


def seal(kind: str, version: int, value: msgspec.Struct) -> bytes:
    """The bytes of the file: `kind version sha256`, and behind this line the value. The checksum covers all but itself."""
    body = msgspec.json.encode(value) + b"\n"
    return f"{kind} {version} {_checksum(kind, str(version), body)}\n".encode() + body


def _checksum(kind: str, version: str, body: bytes) -> str:
    return hashlib.sha256(f"{kind} {version}\n".encode() + body).hexdigest()


def unseal(data: bytes, path: str, kind: str, version: int, wanted: type[T]) -> T:
    """The value. Raises CorruptionError, and FormatError for a newer version. `path` is for the error."""
    head, _, body = data.partition(b"\n")
    words = head.decode("ascii", "replace").split(" ")
    if len(words) != 3 or words[0] != kind or not words[1].isdecimal():
        raise CorruptionError(path, 0, f"the first line is not that of a {kind} file")
    if int(words[1]) > version:
        raise FormatError(path, f"format version {words[1]} is newer than this program's {version}; upgrade it")
    if _checksum(words[0], words[1], body) != words[2]:
        raise CorruptionError(path, len(head) + 1, "checksum")
    try:
        return msgspec.json.decode(body, type=wanted)
    except msgspec.DecodeError as error:
        raise CorruptionError(path, len(head) + 1, f"its content makes no sense: {error}") from None
