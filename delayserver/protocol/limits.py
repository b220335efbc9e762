"""The bounds of the protocol, each with its reason; ``hello`` tells clients the ones the server runs with."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from delayserver.protocol.errors import InvalidArgument

KIBI: Final = 1024
MEBI: Final = 1024 * KIBI
DAY_MS: Final = 86_400_000

LIST_ITEMS_MAX: Final = 16_384
"""Longest msgpack array or map of a request: one full batch of rows. msgpack reserves 8 bytes an item when it reads an
array's header, and arrays nest, so this bounds what a small hostile frame can cost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds that both ends must know. All are inclusive; units are the end of the name."""

    frame_bytes_max: int = 16 * MEBI
    """One frame is held in memory whole, per connection; 16 MiB is a full batch of 1 kB bodies."""
    batch_messages_max: int = 16_384
    """Per-batch costs are microseconds, so more brings no speed,
    and a batch is the unit of fairness between clients.
    """
    body_bytes_max: int = 1 * MEBI
    """A delay server moves notices, not files; sixteen of the largest still fit into one frame."""
    subject_bytes_max: int = 255
    """A subject's length fits into one byte of the subjects table, and names that long are a mistake anyway."""
    message_id_bytes_max: int = 255
    """Ids are keys, not data: a UUID has 36."""
    properties_bytes_max: int = 16 * KIBI
    """Headers, as large as the header limit that HTTP servers agree on."""
    delay_ms_max: int = 2 * 366 * DAY_MS
    """Two years. The number of day files grows with it, and it catches microseconds given as milliseconds."""
    pull_messages_max: int = 16_384
    """As batch_messages_max: a pull is a batch in the other direction."""
    wait_ms_max: int = 60_000
    """A long poll must end before middleboxes forget an idle connection (commonly after minutes)."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if type(value) is not int or value < 1:
                raise InvalidArgument(f"{field.name} must be a positive integer, not {value!r}")

    def to_map(self) -> dict[str, int]:
        """The ``limits`` map of the hello reply."""
        return asdict(self)

    @classmethod
    def from_map(cls, values: dict[str, Any]) -> Limits:
        """Read the ``limits`` map of a hello reply; keys this version does not know are left out,
        missing ones get the default.
        """
        known = {field.name for field in fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})


DEFAULT_LIMITS: Final = Limits()
