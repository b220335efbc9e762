"""How a client names a message: by its own id, below a subject, at a due time."""

from __future__ import annotations

from dataclasses import dataclass, field

from store.records.scan import Damage


@dataclass(frozen=True, slots=True)
class MessageName:
    """Names of one message are equal. `id_hash` is that of the id (id_hash.py)."""

    subject: int
    due_ms: int
    message_id: bytes
    id_hash: int


@dataclass(frozen=True, slots=True)
class MessageId:
    """What is in each `MessageName` of a message, whatever its due time is."""

    subject: int
    message_id: bytes
    id_hash: int


@dataclass(slots=True)
class NamesFound:
    """The messages in a file that have some names. `last` has the highest sequence for each name that is there.

    `hidden` has a damaged id for each name that it may have been: its bytes do not fit its hash.
    """

    last: dict[MessageName, int] = field(default_factory=dict)
    hidden: dict[MessageName, Damage] = field(default_factory=dict)
