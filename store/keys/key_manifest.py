"""The file `keys/runs`: which runs make up the key index, and how far it came. It is replaced atomically."""

from __future__ import annotations

from typing import Annotated, Final

import msgspec

from store.disk.filesystem import FileSystem, read_whole, write_atomically
from store.errors import CorruptionError
from store.keys.key_run import RunName
from store.tables.sealed_map import HEADER_BYTES, SealedMap, require_of, seal, unseal

FILE_NAME: Final = "runs"
FORMAT_VERSION: Final = 1

_Number = Annotated[int, msgspec.Meta(ge=0)]
_MAGIC = b"DELAYKEY"


class KeyManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The runs, the oldest first, as (number, rows, bytes of the file).

    `complete`: every message with an id and a sequence up to `covered` is in a run, unless it was retired. `gaps`: damage
    was passed over when the index was made again, so a message may be missing."""

    runs: list[tuple[_Number, _Number, _Number]]
    next_number: _Number = 1
    covered: _Number = 0
    complete: bool = False
    gaps: bool = False

    def names(self) -> list[RunName]:
        """The runs."""
        return [RunName(*run) for run in self.runs]


_decode = msgspec.msgpack.Decoder(KeyManifest).decode


def read_manifest(fs: FileSystem, directory: str, server_id: int) -> KeyManifest:
    """What the file says. Raises FileNotFoundError, CorruptionError, FormatError (newer, or of another server)."""
    path = f"{directory}/{FILE_NAME}"
    content = _unsealed(fs, path)
    require_of(content, path, server_id)
    return _decoded(content, path)


def look_at_manifest(fs: FileSystem, path: str) -> tuple[int, KeyManifest]:
    """What a file says, and of which server. Raises FileNotFoundError, CorruptionError, FormatError (newer)."""
    content = _unsealed(fs, path)
    return content.server_id, _decoded(content, path)


def _unsealed(fs: FileSystem, path: str) -> SealedMap:
    return unseal(read_whole(fs, path), path, _MAGIC, FORMAT_VERSION, "table of runs of keys")


def _decoded(content: SealedMap, path: str) -> KeyManifest:
    try:
        return _decode(content.payload)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise CorruptionError(path, HEADER_BYTES, f"its content makes no sense: {error}") from None


def write_manifest(fs: FileSystem, directory: str, server_id: int, manifest: KeyManifest) -> None:
    """Replace the file. Durable when this returns, as are the names of the runs. Raises DiskFullError, SyncFailedError."""
    content = SealedMap(server_id, len(manifest.runs), msgspec.msgpack.encode(manifest))
    write_atomically(fs, f"{directory}/{FILE_NAME}", seal(_MAGIC, FORMAT_VERSION, content))
