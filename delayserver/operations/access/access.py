"""The rights of one client: the roles and subjects of its token. Decided at `hello`, asked at every request."""

from __future__ import annotations

import re
from collections.abc import Callable
from fnmatch import translate
from typing import Final, Protocol

from delayserver.protocol.errors import Forbidden, RateLimited

SEND: Final = "send"
CONSUME: Final = "consume"
LOOK: Final = "look"
ADMIN: Final = "admin"

SUBJECTS_KNOWN_MAX: Final = 4096
"""Subjects whose permission a token remembers. With more of them it forgets all, and compares each again once."""
SUBJECT_BYTES_MAX: Final = 255
"""The protocol's bound. A longer text names no subject, and is neither compared nor kept. So a token keeps 4 MiB at most."""

PENDING_AGAIN_MS: Final = 1_000
"""When waiting messages leave is not known. A second later some may have left."""


class Access:
    """The rights of a token, shared by all connections that use it. `everything`: no subject is closed to it."""

    __slots__ = ("_known", "_matches", "everything", "limits", "roles", "subjects", "token_id")

    def __init__(self, token_id: str, roles: frozenset[str], subjects: tuple[str, ...]) -> None:
        """`token_id` is empty for a client without a token."""
        self.token_id = token_id
        self.roles = roles
        self.subjects = subjects
        self.everything = "*" in subjects
        # None: it may send what it likes.
        self.limits: TokenLimits | None = None
        self._matches: Callable[[str], object] = re.compile("|".join([translate(each) for each in subjects])).match
        self._known: dict[str, bool] = {}

    def limit(self, limits: TokenLimits) -> None:
        """From now on it has these limits."""
        self.limits = limits

    def may(self, subject: str) -> bool:
        """Whether this subject is open to it."""
        if self.everything:
            return True
        if len(subject) > SUBJECT_BYTES_MAX:
            return False
        known = self._known.get(subject)
        if known is None:
            if len(self._known) >= SUBJECTS_KNOWN_MAX:
                self._known.clear()
            known = self._known[subject] = self._matches(subject) is not None
        return known

    def require(self, subject: str) -> None:
        """Raises Forbidden if this subject is closed to it."""
        if not self.may(subject):
            raise self.refusal(subject)

    def refusal(self, subject: str) -> Forbidden:
        """The error for a subject that is closed to it."""
        return Forbidden(f"the token {self.token_id} has no pattern for the subject {subject[:64]!r}")

    def require_everything(self, what: str) -> None:
        """Raises Forbidden if some subject is closed to it."""
        if not self.everything:
            raise Forbidden(f"{what} is for tokens of all subjects; {self.token_id} has patterns (create one with '*')")


class TokenBucket:
    """A token bucket of one second: a long time may use `rate` units a second, and a burst as many at once.

    A request larger than a second is let through when the bucket is full, and the next ones wait for it."""

    __slots__ = ("_at_us", "_left", "_rate")

    def __init__(self, rate: int, now_us: int) -> None:
        self._rate = rate
        self._left = float(rate)
        self._at_us = now_us

    def wait_ms(self, units: int, now_us: int) -> int:
        """0 if so many units may be taken now; otherwise the time until they may."""
        self._left = min(float(self._rate), self._left + max(now_us - self._at_us, 0) * self._rate / 1_000_000)
        self._at_us = now_us
        wanted = min(units, self._rate)
        return 0 if self._left >= wanted else int((wanted - self._left) * 1000 / self._rate) + 1

    def take(self, units: int) -> None:
        """Take the units, which `wait_ms` has allowed."""
        self._left -= units


class Counted(Protocol):
    """The messages of a token that wait."""

    def now(self) -> int:
        """How many."""

    def add(self, messages: int) -> None:
        """So many more."""


class TokenLimits:
    """How much the clients of a token may send together. `monotonic_us` is the clock."""

    __slots__ = ("_bytes", "_messages", "_monotonic_us", "_pending_max", "_waiting")

    def __init__(
        self, rate: int, bytes_rate: int, pending_max: int, waiting: Counted, monotonic_us: Callable[[], int]
    ) -> None:
        """A limit of 0 is none."""
        now_us = monotonic_us()
        self._messages = TokenBucket(rate, now_us) if rate else None
        self._bytes = TokenBucket(bytes_rate, now_us) if bytes_rate else None
        self._pending_max = pending_max
        self._waiting = waiting
        self._monotonic_us = monotonic_us

    def take(self, messages: int, size_bytes: int, *, more_wait: bool = True) -> None:
        """Counts messages that are about to be accepted. Raises RateLimited: nothing is counted then. Without `more_wait`
        they take the place of others, so that as many wait as before."""
        now_us = self._monotonic_us()
        both = [(self._messages, messages, "messages"), (self._bytes, size_bytes, "bytes")]
        buckets = [(bucket, units, unit) for bucket, units, unit in both if bucket is not None]
        for bucket, units, unit in buckets:
            wait_ms = bucket.wait_ms(units, now_us)
            if wait_ms:
                raise RateLimited(f"the token has used up its {unit} of this second", retry_after_ms=wait_ms)
        if self._pending_max and more_wait:
            waiting = self._waiting.now()
            if waiting + messages > self._pending_max:
                raise RateLimited(
                    f"{waiting} messages wait in the subjects of the token, and at most {self._pending_max} may",
                    retry_after_ms=PENDING_AGAIN_MS,
                )
            self._waiting.add(messages)
        for bucket, units, _ in buckets:
            bucket.take(units)


EVERYTHING: Final = Access("", frozenset({SEND, CONSUME, LOOK, ADMIN}), ("*",))
"""The rights of every client of a server without tokens."""
