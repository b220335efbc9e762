"""Decides whether a failed call is retried, and after which pause. Pure: the client sleeps the pause."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from delayserver.client.calls.core import Call, in_doubt
from delayserver.protocol.errors import (
    DelayServerError,
    InDoubt,
    NotPrimary,
    RequestTimedOut,
    SharedLogUnavailable,
    StorageFailed,
)
from delayserver.protocol.operation_names import FIND, HELLO, LOOKUP, PING, ROUTE, STATUS, SUBJECTS

T = TypeVar("T")

RETRY_AFTER_MS_MAX: Final = 60_000
"""If the server advises a longer pause than this, the caller gets the error at once instead of a long silence."""

RESULT_UNKNOWN: Final = (InDoubt, StorageFailed)
"""After these errors the request may have taken effect. After any other error it has not."""

FOLLOW_S: Final = 15.0
"""While a cluster has no primary, or its log does not answer, a call is tried again for so long. A takeover takes two or
three seconds, and a log that changes its leader up to ten."""

FOLLOW_AFTER_MS_MAX: Final = 1_000
FOLLOW_JITTER_MS: Final = 100

# Reads change nothing, so the result of an earlier attempt does not matter.
_READS: Final = frozenset({FIND, HELLO, PING, STATUS, ROUTE, LOOKUP, SUBJECTS})


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """``retries`` more attempts follow the first. The jittered pauses between them double from ``pause_ms_min`` up to
    ``pause_ms_max``. Where a cluster has no primary for now, attempts go on for `FOLLOW_S`, unless ``retries`` is 0 or
    ``follows`` is false. ``jitter`` draws a number from 0 on, below its argument.
    """

    retries: int = 3
    pause_ms_min: int = 50
    pause_ms_max: int = 2_000
    follows: bool = True
    jitter: Callable[[int], int] = secrets.randbelow

    def attempts(self, call: Call[Any]) -> CallAttempts:
        """The attempts of one call, none of which has failed yet."""
        return CallAttempts(self, call)


class CallAttempts:
    """Counts the failed attempts of one call, and remembers whether one of them may have taken effect."""

    __slots__ = ("_call", "_failed", "_followed_s", "_policy", "_unknown")

    def __init__(self, policy: RetryPolicy, call: Call[Any]) -> None:
        self._policy = policy
        self._call = call
        self._failed = 0
        # The pauses so far behind answers of a cluster that has no primary; -1 before the first of them.
        self._followed_s = -1.0
        self._unknown: DelayServerError | None = None

    def pause_s(self, error: DelayServerError, *, sent: bool) -> float | None:
        """Seconds to wait after a failed attempt before the next one. None: the caller gets the error.

        ``sent``: some byte of the request may have left; otherwise nothing can have happened. If the last attempt is
        refused but an earlier one may have taken effect, raises the earlier error: see `in_doubt` of `core`.
        """
        unknown = sent and isinstance(error, RESULT_UNKNOWN) and self._call.operation not in _READS
        pause_s = self._next_pause_s(error, unknown=unknown)
        if pause_s is None and self._unknown is not None and not isinstance(error, RESULT_UNKNOWN):
            raise in_doubt(error, self._unknown)
        if unknown:
            self._unknown = error
        return pause_s

    def in_doubt(self, result: T) -> T:
        """The result of the last attempt, corrected if an earlier one may have taken effect."""
        if self._unknown is None or self._call.doubt is None:
            return result
        corrected: T = self._call.doubt(result, self._unknown)
        return corrected

    def _next_pause_s(self, error: DelayServerError, *, unknown: bool) -> float | None:
        policy = self._policy
        if isinstance(error, NotPrimary | SharedLogUnavailable):
            return self._follow_pause_s(error)
        self._failed += 1
        if self._failed > policy.retries or not error.retriable:
            return None
        if unknown and not self._call.repeatable:
            return None
        # The caller of a pull has waited for all of its `wait_s` by now.
        if self._call.wait_s and isinstance(error, RequestTimedOut):
            return None
        advice_ms = error.retry_after_ms or 0
        if advice_ms > RETRY_AFTER_MS_MAX:
            return None
        # Full jitter: clients that lost the same server do not all come back at the same moment.
        ceiling_ms = min(policy.pause_ms_max, policy.pause_ms_min << min(self._failed - 1, 16))
        return (advice_ms + policy.jitter(ceiling_ms + 1)) / 1000

    def _follow_pause_s(self, error: DelayServerError) -> float | None:
        """Nothing was done, and another server may do it, now or soon."""
        if not (self._policy.retries and self._policy.follows) or self._followed_s >= FOLLOW_S:
            return None
        if self._followed_s < 0 and isinstance(error, NotPrimary) and error.primary:
            self._followed_s = 0.0
            return 0.0
        advice_ms = min(error.retry_after_ms or 0, FOLLOW_AFTER_MS_MAX)
        pause_s = (advice_ms + self._policy.jitter(FOLLOW_JITTER_MS + 1)) / 1000
        self._followed_s = max(self._followed_s, 0.0) + max(pause_s, FOLLOW_JITTER_MS / 1000)
        return pause_s
