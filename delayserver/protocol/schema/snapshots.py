"""The operation `snapshot`: a backup asks for the files of one moment, keeps them while it copies, and drops them."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from delayserver.protocol.schema.structs import Reply, Request, says

KEPT_MS: Final = 600_000
"""A snapshot is dropped when nobody has asked for it for so long: its files take room on the disk of the server."""

Name: TypeAlias = Annotated[str, says("The snapshot, by 12 hex digits.", "0a1b2c3d4e5f")]


class TakeSnapshot(Request, frozen=True, tag_field="action", tag="take"):
    """Takes a snapshot, in the place of one that is there."""


class KeepSnapshot(Request, frozen=True, tag_field="action", tag="keep"):
    """Keeps a snapshot for another ten minutes."""

    name: Name


class DropSnapshot(Request, frozen=True, tag_field="action", tag="drop"):
    """Drops a snapshot."""

    name: Name
    complete: Annotated[bool, says("Whether the backup is complete. The server's figures then have its time.")] = False


class Snapshot(Reply, frozen=True):
    """A snapshot that is there."""

    name: Name
    path: Annotated[
        str,
        says(
            "Its folder on the server's machine: `listing`, and the files in `files`.",
            "/var/lib/delayserver/snapshot/0a1b2c3d4e5f",
        ),
    ]
    kept_ms: Annotated[int, says("It is dropped after so long, unless it is kept.", KEPT_MS)]


class SnapshotDropped(Reply, frozen=True):
    """The answer to a drop."""

    dropped: Annotated[bool, says("Whether it was there.", example=True)]
