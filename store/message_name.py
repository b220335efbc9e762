"""How a client names a message: by its own id, below a subject, at a due time."""

from __future__ import annotations

from dataclasses import dataclass, field

from store.scan import Damage


@dataclass(frozen=True, slots=True)
class MessageName:
    """Names of one message are equal. `id_hash` is that of the id (id_hash.py)."""

    subject: int
    due_ms: int
    message_id: bytes
    id_hash: int


@dataclass(slots=True)
class NamesFound:
    """What a file holds of some names: the `last` sequence of each one that is there, and by name an id whose bytes do not
    fit its hash: they may have been those of the name."""

    last: dict[MessageName, int] = field(default_factory=dict)
    hidden: dict[MessageName, Damage] = field(default_factory=dict)
