"""Reads which messages a request means, and the reason that it gives."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.arguments import invalid

POSITION_MAX: Final = (1 << 48) - 1
REASON_BYTES_MAX: Final = 1024


def read_positions(arguments: dict[str, Any]) -> NDArray[np.int64] | None:
    """The positions that are meant, i64[n]; None for the first ones. Raises InvalidArgument."""
    positions = arguments.get("positions")
    if positions is None:
        return None
    if type(positions) is not list or not all(type(each) is int and 0 <= each <= POSITION_MAX for each in positions):
        raise invalid("positions", "a list of positions", positions)
    return np.array(positions, np.int64)


def read_reason(arguments: dict[str, Any]) -> str:
    """The text that a request gives as a reason; empty without one. Raises InvalidArgument."""
    reason = arguments.get("reason")
    if reason is None:
        return ""
    if type(reason) is not str or len(reason.encode(errors="replace")) > REASON_BYTES_MAX:
        raise invalid("reason", f"a text of at most {REASON_BYTES_MAX} bytes", reason)
    return reason
