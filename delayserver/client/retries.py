"""When a failed call is tried again, and after which pause. Pure: the pause is slept by the client."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final

from delayserver.client.core import Call
from delayserver.protocol.errors import ConnectionLost, DelayServerError, RequestTimedOut, StorageFailed

RETRY_AFTER_MS_MAX: Final = 60_000
"""A server's advice to wait longer than this is an error for the caller to see, not a pause to sit out in silence."""

# After these the request may have taken effect; after any other error it has not.
_RESULT_UNKNOWN: Final = (ConnectionLost, RequestTimedOut, StorageFailed)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``retries`` more attempts after the first; pauses double from ``pause_ms_min`` to ``pause_ms_max``,
    with full jitter.
    """

    retries: int = 3
    pause_ms_min: int = 50
    pause_ms_max: int = 2_000

    def pause_s(self, call: Call[Any], error: DelayServerError, attempt: int, *, sent: bool) -> float | None:
        """Seconds to wait before the next attempt, or None if the error is the caller's.

        ``attempt`` counts from 1; ``sent`` says whether any byte of the request has left, without which nothing can
        have happened.
        """
        if attempt > self.retries or not error.retriable:
            return None
        if sent and not call.repeatable and isinstance(error, _RESULT_UNKNOWN):
            return None
        advice_ms = error.retry_after_ms or 0
        if advice_ms > RETRY_AFTER_MS_MAX:
            return None
        # Full jitter: clients that lost the same server do not come back in step.
        ceiling_ms = min(self.pause_ms_max, self.pause_ms_min << min(attempt - 1, 16))
        return (advice_ms + secrets.randbelow(ceiling_ms + 1)) / 1000
