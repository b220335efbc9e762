"""Reads the operation `deliver` of another server: the columns of its request as a batch of this node's codes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.intake import Intake
from delayserver.protocol.arguments import bounded, server_number
from delayserver.protocol.columns import I64, U32, unpack_column, unpack_count, unpack_ragged
from delayserver.protocol.errors import InvalidArgument
from store.batches import StoredBatch
from store.names import CONSUMER_GROUP, SUBJECT

# The code of a name that a delivery brings and this node does not take.
NOT_TAKEN = 0xFFFF_FFFF


def read_delivery(arguments: dict[str, Any], intake: Intake) -> tuple[StoredBatch, bool]:
    """The batch, and whether some of it may be here already. Raises InvalidArgument for the whole request."""
    get = arguments.get
    count = unpack_count(get("count"), 1 << 20)
    if not count:
        raise InvalidArgument("count must be at least 1")
    ids = unpack_ragged(get("message_ids"), get("message_id_length"), count, "message_ids", "message_id_length")
    properties = unpack_ragged(get("properties"), get("properties_length"), count, "properties", "properties_length")
    bodies = unpack_ragged(get("bodies"), get("body_length"), count, "bodies", "body_length")
    names = ("sequence", "due_ms", "accepted_us", "dispatched_us", "expires_ms", "origin_sequence")
    batch = StoredBatch.filled(
        count,
        **{name: unpack_column(get(name), count, I64, name) for name in names},
        server_id=server_number(get("server_id")),
        window_ms=bounded(arguments, "window_ms", 0, 1 << 62, None),
        subject=_codes(intake, arguments, count, SUBJECT, "subjects", "subject_index"),
        target_group=_codes(intake, arguments, count, CONSUMER_GROUP, "target_groups", "target_group_index"),
        redelivery=unpack_column(get("redelivery"), count, U32, "redelivery"),
        ids_length=ids.lengths,
        properties_length=properties.lengths,
        bodies_length=bodies.lengths,
        ids=ids.blob,
        properties=properties.blob,
        bodies=bodies.blob,
    )
    return batch, bool(get("uncertain"))


def _codes(
    intake: Intake, arguments: dict[str, Any], count: int, kind: int, field: str, index_field: str
) -> NDArray[Any]:
    names = arguments.get(field)
    if type(names) is not list or not all(type(name) is str and name and name.isprintable() for name in names):
        raise InvalidArgument(f"{field} must be a list of non-empty texts without control characters")
    index = unpack_column(arguments.get(index_field), count, U32, index_field)
    codes = _taken(intake, kind, names)
    if kind == CONSUMER_GROUP:
        codes = np.concatenate([np.zeros(1, np.uint32), codes])
    if int(index.max()) >= len(codes):
        raise InvalidArgument(f"{index_field} points behind the end of {field}")
    column: NDArray[Any] = codes[index]
    return column


def _taken(intake: Intake, kind: int, names: list[str]) -> NDArray[np.uint32]:
    """Codes u32[n], NOT_TAKEN for a name that is refused or has no room: the others are not to wait for it. All new ones
    share one sync, for it is waited for on the event loop."""
    valid = [place for place, name in enumerate(names) if intake.is_subject(name)]
    found = intake.intern(kind, [names[place] for place in valid], fitting=True)
    codes = np.full(len(names), NOT_TAKEN, np.uint32)
    codes[valid] = np.where(found == 0, np.uint32(NOT_TAKEN), found)
    return codes
