"""Which shard of a cluster a message belongs to, by its id or its order key."""

from __future__ import annotations

import re
from typing import Final
from zlib import crc32

SLOTS: Final = 1024
"""A cluster has so many slots. Each belongs to one shard, for good."""
NAMED_CHARACTERS: Final = 13
"""An id that names its shard begins with so many: the server id of the shard, and a dot."""

_NAMED: Final = re.compile(r"[0-9a-f]{12}\.", re.ASCII)


def slot_of(subject: str, key: str) -> int:
    """The slot of a message with this order key, or without one with this id: 0 to SLOTS - 1."""
    return crc32(key.encode(), crc32(subject.encode() + b"\0")) % SLOTS


def shard_id(message_id: str) -> str | None:
    """The server id that an id names. Where a shard of the cluster has it, the message belongs to that shard, unless it has
    an order key. None: it names none."""
    return message_id[: NAMED_CHARACTERS - 1] if _NAMED.match(message_id) else None
