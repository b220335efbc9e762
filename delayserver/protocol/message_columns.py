"""Messages of a `send` as columns, read from the request and not checked against settings and clock yet."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.columns import Ragged


@dataclass(frozen=True, slots=True)
class DueColumn:
    """When n messages are due, i64[n]: times in milliseconds since 1970, or delays from now. With `are_levels` the delays
    are numbers of delay levels."""

    values: NDArray[np.int64]
    are_delays: bool
    are_levels: bool = False


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """n messages, n at least 1. `subject_index` u32[n] points into `subjects`; without it all have the first one.

    `ids`, `properties` (msgpack maps) and `order_keys` are empty for messages without; None where no message has any.
    `tag_index` u32[n] points into `tags` from 1 on, 0 for messages without; without it all have the first one, if any.
    """

    due: DueColumn | None
    """None: now."""
    bodies: Ragged
    subjects: list[Any]
    subject_index: NDArray[np.uint32] | None = None
    ids: Ragged | None = None
    properties: Ragged | None = None
    expires_ms: NDArray[np.int64] | None = None
    tags: list[Any] = field(default_factory=list)
    tag_index: NDArray[np.uint32] | None = None
    order_keys: Ragged | None = None
