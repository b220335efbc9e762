"""The selection of a redispatch, the records that it appends, and the messages that it passed over. No I/O.

Both ways to redispatch use this: the operation of a running server, and `delayserver recover redispatch` on a directory.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.receipts import derived_message_ids
from store.records.batches import I64, U8, U32, MessageBatch
from store.records.column_batch import ragged_offsets

# One request: some ten milliseconds of reading, and one group commit of bounded memory.
MESSAGES_MAX = 8192
BYTES_MAX = 4 << 20
# Places named in one reply; `recover check` names all of them.
DAMAGES_MAX = 16


@dataclass(frozen=True, slots=True)
class RedispatchSelection:
    """Which messages: due in [from_ms, to_ms), of a subject code (0: all), with one of these outcome codes."""

    from_ms: int
    to_ms: int
    subject: int
    outcomes: tuple[int, ...]

    def mask(self, due_ms: I64, subject: U32, origin_sequence: I64) -> NDArray[np.bool_]:
        """Messages of the balance in the range, bool[n], whatever became of them."""
        mask: NDArray[np.bool_] = (due_ms >= self.from_ms) & (due_ms < self.to_ms) & (origin_sequence == 0)
        return mask & (subject == self.subject) if self.subject else mask

    def decided(self, outcome: U8) -> NDArray[np.bool_]:
        """Where the outcome is one of those asked for, bool[n]."""
        return np.isin(outcome, np.array(self.outcomes, np.uint8))


@dataclass(slots=True)
class Unread:
    """The messages that a redispatch passed over: how many it would have delivered, and the places of the damage."""

    messages: int = 0
    damages: dict[tuple[str, int], str] = field(default_factory=dict)

    def add(self, path: str, offset: int, detail: str) -> None:
        """Name a place, once."""
        if len(self.damages) < DAMAGES_MAX:
            self.damages.setdefault((path, offset), detail)

    def count(self, messages: int) -> None:
        """Count messages that would have been delivered."""
        self.messages += messages

    def to_map(self) -> dict[str, Any]:
        """The fields of the reply."""
        damages = [
            {"file": path, "offset": offset, "detail": detail} for (path, offset), detail in self.damages.items()
        ]
        return {"unreadable": self.messages, "damages": damages}


def deliveries_again(batch: MessageBatch, server_id: int, now_us: int) -> MessageBatch:
    """Internal records for messages: same subject, id, properties and body, due at once, without an expiry.

    Every id is written out, because a derived one would be derived from the new record's own sequence. Sequences are 0:
    the caller that appends the batch gives them.
    """
    ids_length, ids = _written_ids(batch, server_id)
    again = batch.with_columns(
        sequence=0,
        due_ms=-(-now_us // 1000),
        accepted_us=now_us,
        expires_ms=0,
        origin_sequence=batch.sequence,
        duplicate_of=0,
        replaces_sequence=0,
        replaces_due_ms=0,
        target_group=0,
        redelivery=1,
    )
    return replace(again, ids_length=ids_length, ids=ids)


def _written_ids(batch: MessageBatch, server_id: int) -> tuple[U32, memoryview]:
    lengths = batch.ids_length
    if bool(lengths.all()):
        return lengths, batch.ids
    # Redispatch is the exception, so a loop over its messages is no hot path.
    derived = derived_message_ids(f"{server_id:012x}", batch.sequence)
    places = ragged_offsets(lengths).tolist()
    ids = [
        bytes(batch.ids[places[row] : places[row + 1]]) if length else derived[row].encode()
        for row, length in enumerate(lengths.tolist())
    ]
    return np.array([len(one) for one in ids], np.uint32), memoryview(b"".join(ids))
