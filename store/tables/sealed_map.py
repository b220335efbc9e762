"""A small file of a data directory: a header with a checksum over all, and a msgpack payload. It is replaced atomically.
`tokens` and `cluster` are such files; FORMAT.md draws them."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import google_crc32c

from store.errors import CorruptionError, FormatError

_HEADER = struct.Struct("<8sHHIQII")
_CRC_BYTES = 4
HEADER_BYTES = _HEADER.size


@dataclass(frozen=True, slots=True)
class SealedMap:
    """The content of such a file. `count` is that of the rows in the payload; 0 where it has none."""

    server_id: int
    count: int
    payload: bytes


def seal(magic: bytes, version: int, content: SealedMap) -> bytes:
    """The bytes of the file."""
    head = _HEADER.pack(magic, version, 0, content.count, content.server_id, len(content.payload), 0)[:-_CRC_BYTES]
    return head + _checksum(head + content.payload).to_bytes(_CRC_BYTES, "little") + content.payload


def unseal(data: bytes, path: str, magic: bytes, version: int, what: str) -> SealedMap:
    """What `seal` made. `what` names the content in errors: "table of tokens". Raises CorruptionError, FormatError (newer
    than `version`)."""
    if len(data) < _HEADER.size or data[:8] != magic:
        raise CorruptionError(path, 0, f"{len(data)} bytes that are no {what}")
    _, written, _, count, server_id, length, crc = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if len(payload) != length or _checksum(data[: _HEADER.size - _CRC_BYTES] + payload) != crc:
        raise CorruptionError(path, 0, f"checksum of the {what}")
    if written > version:
        raise FormatError(path, f"format version {written} is newer than this program's {version}; upgrade it")
    return SealedMap(server_id, count, payload)


def require_of(content: SealedMap, path: str, server_id: int) -> None:
    """Raises FormatError for the file of another server."""
    if content.server_id != server_id:
        raise FormatError(path, f"belongs to server {content.server_id:012x}, this data directory to {server_id:012x}")


def _checksum(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return value
