"""How far the directory of a member has followed the log of its shard, for tools that work on the directory.

A log of a later version may say what this program would misread, also where it knows each kind of record.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from store.disk.filesystem import FileSystem
from store.errors import CorruptionError, FormatError
from store.shared.followed import FollowedTo, followed_in
from store.shared.payload import LOG_VERSION, require_readable
from store.tables.member_file import read_owner


def readable_place(
    fs: FileSystem, directory: str, server_id: int, segments: Sequence[tuple[str, int]]
) -> FollowedTo | None:
    """The last place that message_log names; None for the directory of no member, or where nothing says whose it is.
    `segments`: its files in order, and up to where each is read.

    Raises UpgradeNeededError where the log has a version there that this program does not read."""
    owner = None
    with suppress(CorruptionError, FormatError):
        owner = read_owner(fs, directory, server_id)
    if owner is None or owner.left:
        return None
    place = followed_in(fs, segments)
    if place is not None:
        require_readable(place.barrier, LOG_VERSION, place.position)
    return place
