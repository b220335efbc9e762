"""The file `cluster`: whose directory this is, where it is that of a cluster's member, or was.

The directory of one cluster, shard or member is refused in another, and by a server without a cluster. The file is small,
checksummed and replaced atomically. FORMAT.md draws it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Annotated, Final

import google_crc32c
import msgspec

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import CorruptionError, FormatError

FILE_NAME: Final = "cluster"
FORMAT_VERSION: Final = 1

_Number = Annotated[int, msgspec.Meta(ge=0)]
_HEADER = struct.Struct("<8sHHIQII")
_MAGIC = b"DELAYMEM"
_CRC_BYTES = 4


class MemberOf(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose directory it is. `member` is a name; empty: any member's, and the first one that opens it takes it.

    What message_log has below `log_offset` came before the directory belonged to whom it belongs now. `left`: it is that of
    a server of its own again."""

    cluster_id: _Number
    shard: _Number
    member: str
    log_offset: _Number = 0
    left: bool = False

    def __str__(self) -> str:
        member = f"member {self.member}" if self.member else "a member"
        return f"{member} of shard {self.shard} of cluster {self.cluster_id:012x}"


_decode = msgspec.msgpack.Decoder(MemberOf).decode


@dataclass(frozen=True, slots=True)
class _Content:
    server_id: int
    owner: MemberOf


def read_owner(fs: FileSystem, directory: str, server_id: int | None = None) -> MemberOf | None:
    """What the file says, without change; None without one. Raises CorruptionError, FormatError (newer, of another server
    than `server_id`)."""
    path = f"{directory}/{FILE_NAME}"
    if not fs.exists(path):
        return None
    found = _decoded(read_whole(fs, path), path)
    if server_id not in (None, found.server_id):
        raise FormatError(path, f"belongs to server {found.server_id:012x}, this data directory to {server_id:012x}")
    return found.owner


def _decoded(data: bytes, path: str) -> _Content:
    if len(data) < _HEADER.size or data[:8] != _MAGIC:
        raise CorruptionError(path, 0, f"{len(data)} bytes that do not name a member")
    _, version, _, _, server_id, length, crc = _HEADER.unpack_from(data)
    payload = data[_HEADER.size :]
    if len(payload) != length or _checksum(data[: _HEADER.size - _CRC_BYTES] + payload) != crc:
        raise CorruptionError(path, 0, "checksum")
    if version > FORMAT_VERSION:
        raise FormatError(path, f"format version {version} is newer than this program's {FORMAT_VERSION}; upgrade it")
    try:
        return _Content(server_id, _decode(payload))
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(path, _HEADER.size, f"its content makes no sense: {error}") from None


def write_owner(fs: FileSystem, directory: str, server_id: int, owner: MemberOf) -> None:
    """Replace the file. Durable when this returns. Raises DiskFullError, SyncFailedError: the old one stands."""
    payload = msgspec.msgpack.encode(owner)
    head = _HEADER.pack(_MAGIC, FORMAT_VERSION, 0, 0, server_id, len(payload), 0)[:-_CRC_BYTES]
    crc = _checksum(head + payload)
    write_atomically(fs, f"{directory}/{FILE_NAME}", head + crc.to_bytes(_CRC_BYTES, "little") + payload)


def _checksum(data: bytes) -> int:
    value: int = google_crc32c.value(data)
    return value


def require_owner(fs: FileSystem, directory: str, opener: MemberOf | None) -> MemberOf | None:
    """What the file says. Raises FormatError unless `opener` may open the directory; None: a server without a cluster."""
    owner = read_owner(fs, directory)
    if owner is None or (owner.left and opener is None):
        return owner
    if opener is None:
        raise FormatError(
            directory,
            f"the directory of {owner}. Start it with the file of its cluster (serve --cluster FILE); or make a server of "
            f"its own of it, when the cluster has ended: delayserver cluster leave --data-dir {directory}",
        )
    if owner.left:
        raise FormatError(
            directory,
            f"was that of {owner}, and is that of a server of its own since. To make a cluster of it: delayserver cluster "
            f"init --cluster FILE --from {directory}",
        )
    if (owner.cluster_id, owner.shard) != (opener.cluster_id, opener.shard) or owner.member not in ("", opener.member):
        raise FormatError(
            directory,
            f"the directory of {owner}, and this is {opener}. Choose the right directory, or an empty one; a new member "
            "of a shard may also begin with a backup of it (delayserver restore)",
        )
    return owner
