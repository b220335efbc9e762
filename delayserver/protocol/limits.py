"""The bounds of the protocol, each with its reason. The reply to ``hello`` carries the bounds of the server."""

from __future__ import annotations

from typing import Final

from msgspec import Struct
from msgspec.structs import asdict

from delayserver.protocol.errors import InvalidArgument

KIBI: Final = 1024
MEBI: Final = 1024 * KIBI
DAY_MS: Final = 86_400_000

LIST_ITEMS_MAX: Final = 16_384
"""Longest msgpack array or map of a request: one full batch of rows. msgpack reserves 8 bytes for each item when it reads
an array's header, and arrays nest. So this bounds the cost of a small hostile frame."""


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds that both ends must know. All are inclusive, and names end with the unit."""

    frame_bytes_max: int = 16 * MEBI
    """The payload of one request. A connection may hold one whole frame in memory. 16 MiB is a full batch of 1 kB bodies."""
    frame_items_max: int = 262_144
    """One for each array and map of a request, and one for each of their items or keys, nested ones too. The server reads so
    many in the time of a full batch of rows, in some 30 MB at most."""
    batch_messages_max: int = 16_384
    """Items or rows of one request. Larger batches are not faster, because a batch costs microseconds. A batch is also the
    unit of fairness between clients.
    """
    body_bytes_max: int = 1 * MEBI
    """A delay server moves notices, not files. Sixteen of the largest bodies fit into one frame."""
    subject_bytes_max: int = 255
    """Consumer groups have the same bound. The length fits into one byte of a table; longer names are a mistake."""
    message_id_bytes_max: int = 255
    """Ids are keys, not data: a UUID has 36."""
    properties_bytes_max: int = 16 * KIBI
    """Headers of one message as msgpack, as large as the header limit that HTTP servers agree on."""
    delay_ms_max: int = 2 * 366 * DAY_MS
    """Two years. The number of day files grows with it. It also catches microseconds given as milliseconds."""
    subjects_max: int = 1_000_000
    """All subjects that a server or node has ever seen: each takes memory for good. `status` shows their number."""
    groups_max: int = 65_536
    """Consumer groups of a node; each (subject, group) counts. `status` shows their number."""
    tags_max: int = 65_536
    """All tags that a server or node has ever seen: each takes memory for good. `status` shows their number."""
    pull_messages_max: int = 16_384
    """Messages of one `pull`, as many as `batch_messages_max`: a pull is a batch in the other direction."""
    wait_ms_max: int = 60_000
    """A long poll must end before routers and firewalls forget an idle connection, commonly after minutes."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"{name} must be a positive integer, not {value!r}")

    def to_map(self) -> dict[str, int]:
        """The ``limits`` map of the hello reply."""
        return asdict(self)


DEFAULT_LIMITS: Final = Limits()
