"""When a failed call is tried again, and after which pause. Pure: the pause is slept by the client."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from delayserver.client.core import Call, in_doubt
from delayserver.protocol.errors import ConnectionLost, DelayServerError, RequestTimedOut, StorageFailed
from delayserver.protocol.operations import HELLO, LOOKUP, PING, ROUTE, STATUS

T = TypeVar("T")

RETRY_AFTER_MS_MAX: Final = 60_000
"""A server's advice to wait longer than this is an error for the caller to see, not a pause to sit out in silence."""

# After these the request may have taken effect; after any other error it has not.
_RESULT_UNKNOWN: Final = (ConnectionLost, RequestTimedOut, StorageFailed)

# They change nothing, so it does not matter what became of an earlier attempt.
_READS: Final = frozenset({HELLO, PING, STATUS, ROUTE, LOOKUP})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``retries`` more attempts after the first; pauses double from ``pause_ms_min`` to ``pause_ms_max``,
    with full jitter.
    """

    retries: int = 3
    pause_ms_min: int = 50
    pause_ms_max: int = 2_000

    def attempts(self, call: Call[Any]) -> Attempts:
        """The attempts of one call, from the first on."""
        return Attempts(self, call)


class Attempts:
    """The failed attempts of one call, and what they come to."""

    __slots__ = ("_call", "_failed", "_policy", "_unknown")

    def __init__(self, policy: RetryPolicy, call: Call[Any]) -> None:
        self._policy = policy
        self._call = call
        self._failed = 0
        self._unknown: DelayServerError | None = None

    def pause_s(self, error: DelayServerError, *, sent: bool) -> float | None:
        """Seconds to wait after a failed attempt before the next one, or None if the error is the caller's.

        ``sent`` says whether any byte of the request has left, without which nothing can have happened. Where the last
        attempt is refused but an earlier one may have taken effect, raises that one's error: the caller must not
        believe that nothing was done.
        """
        self._failed += 1
        unknown = sent and isinstance(error, _RESULT_UNKNOWN) and self._call.operation not in _READS
        pause_s = self._next_pause_s(error, unknown=unknown)
        if pause_s is None and self._unknown is not None and not isinstance(error, _RESULT_UNKNOWN):
            raise in_doubt(error, self._unknown)
        if unknown:
            self._unknown = error
        return pause_s

    def told(self, result: T) -> T:
        """The result of the last attempt, as what it means behind the others."""
        if self._unknown is None or self._call.doubt is None:
            return result
        told: T = self._call.doubt(result, self._unknown)
        return told

    def _next_pause_s(self, error: DelayServerError, *, unknown: bool) -> float | None:
        policy = self._policy
        if self._failed > policy.retries or not error.retriable:
            return None
        if unknown and not self._call.repeatable:
            return None
        advice_ms = error.retry_after_ms or 0
        if advice_ms > RETRY_AFTER_MS_MAX:
            return None
        # Full jitter: clients that lost the same server do not come back in step.
        ceiling_ms = min(policy.pause_ms_max, policy.pause_ms_min << min(self._failed - 1, 16))
        return (advice_ms + secrets.randbelow(ceiling_ms + 1)) / 1000
