"""Messages of a `send` as columns, read from the request and not checked against settings and clock yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.columns import Ragged


@dataclass(frozen=True, slots=True)
class DueColumn:
    """When n messages are due, i64[n]: times in milliseconds since 1970, or delays from now."""

    values: NDArray[np.int64]
    are_delays: bool


@dataclass(frozen=True, slots=True)
class MessageColumns:
    """n messages, n at least 1. `subject_index` u32[n] points into `subjects`; without it all have the first one.

    `ids` and `properties` (msgpack maps) are empty for messages without; None where no message has any.
    """

    due: DueColumn
    bodies: Ragged
    subjects: list[Any]
    subject_index: NDArray[np.uint32] | None = None
    ids: Ragged | None = None
    properties: Ragged | None = None
    expires_ms: NDArray[np.int64] | None = None
