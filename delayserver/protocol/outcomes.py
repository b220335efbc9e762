"""What can become of a message: the codes of files and wire columns, and their names in replies.

One byte a message, the same in dispatch_log, in columnar replies and in the audit. Codes are never reused or
renumbered.
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """State or end of one message, and the answers of cancel. `label` is the name in replies."""

    UNKNOWN = 0
    """No such message was ever accepted here."""
    PENDING = 1
    """Accepted and waiting for its due time."""
    IN_FLIGHT = 2
    """A delivery attempt runs."""
    RETRYING = 3
    """An attempt failed; another one is planned."""
    DELIVERED = 4
    """A broker has it, synced."""
    CANCELLED = 5
    """Cancelled before any attempt; it is never delivered."""
    EXPIRED = 6
    """Later than its ``expires_ms``, so not delivered."""
    DEDUPLICATED = 7
    """A copy of a message already accepted; the first one is delivered."""
    DEAD_LETTERED = 8
    """Given up by an explicit policy."""
    RETIRED = 9
    """It had an outcome, but retention has deleted the record."""
    ALREADY_CANCELLED = 10
    """Answer of cancel only: it was cancelled before."""
    TOO_LATE = 11
    """Answer of cancel only: an attempt is running, or its result is unknown after a crash."""

    @property
    def label(self) -> str:
        """The name in replies: lower case with underscores."""
        return OUTCOME_LABELS[self]


OUTCOME_LABELS: tuple[str, ...] = tuple(outcome.name.lower() for outcome in Outcome)
"""Names indexed by code."""

OUTCOMES_BY_LABEL: dict[str, Outcome] = {outcome.name.lower(): outcome for outcome in Outcome}


class DeliverOutcome(IntEnum):
    """What a broker node did with one message of a ``deliver`` request."""

    STORED = 1
    """New to the node, and now stored and synced."""
    DUPLICATE = 2
    """The node had it already, by (server id, sequence, redelivery)."""
    REFUSED = 3
    """Not stored: deliver it again later, after the others, or to another node."""
