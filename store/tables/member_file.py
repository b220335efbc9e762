"""The file `cluster`: whose directory this is, where it is that of a cluster's member, or was.

The directory of one cluster, shard or member is refused in another, and by a server without a cluster. The file is small,
checksummed and replaced atomically. FORMAT.md draws it.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import CorruptionError, FormatError
from store.tables.sealed_map import HEADER_BYTES, SealedMap, require_of, seal, unseal

FILE_NAME: Final = "cluster"
FORMAT_VERSION: Final = 1

_Number = Annotated[int, msgspec.Meta(ge=0)]
_MAGIC = b"DELAYMEM"


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


def read_owner(fs: FileSystem, directory: str, server_id: int | None = None) -> MemberOf | None:
    """What the file says, without change; None without one. Raises CorruptionError, FormatError (newer, of another server
    than `server_id`)."""
    path = f"{directory}/{FILE_NAME}"
    if not fs.exists(path):
        return None
    content = unseal(read_whole(fs, path), path, _MAGIC, FORMAT_VERSION, "name of a member")
    if server_id is not None:
        require_of(content, path, server_id)
    try:
        return _decode(content.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(path, HEADER_BYTES, f"its content makes no sense: {error}") from None


def write_owner(fs: FileSystem, directory: str, server_id: int, owner: MemberOf) -> None:
    """Replace the file. Durable when this returns. Raises DiskFullError, SyncFailedError: the old one stands."""
    content = SealedMap(server_id, 0, msgspec.msgpack.encode(owner))
    write_atomically(fs, f"{directory}/{FILE_NAME}", seal(_MAGIC, FORMAT_VERSION, content))


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
