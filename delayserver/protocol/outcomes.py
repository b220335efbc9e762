"""The outcomes of a message: the codes in files and wire columns, and their names in replies.

One byte for each message, the same in dispatch_log, in columnar replies and in the audit. A code never changes its meaning.
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """The state or end of one message, and the answers of cancel. `label` is the name in replies."""

    UNKNOWN = 0
    """No such message was ever accepted here."""
    PENDING = 1
    """Accepted and waiting for its due time."""
    IN_FLIGHT = 2
    """A delivery attempt runs."""
    RETRYING = 3
    """An attempt failed; another one follows."""
    DELIVERED = 4
    """A broker has stored and synced it."""
    CANCELLED = 5
    """Cancelled before any attempt; it is never delivered."""
    EXPIRED = 6
    """It was not delivered before its ``expires_ms``, so it is never delivered."""
    DEDUPLICATED = 7
    """A duplicate of a message that was accepted before. The first one is delivered."""
    DEAD_LETTERED = 8
    """Given up by an explicit policy."""
    RETIRED = 9
    """It had an outcome. Retention has deleted the record of it."""
    ALREADY_CANCELLED = 10
    """Answer of cancel only: it was cancelled before."""
    TOO_LATE = 11
    """Answer of cancel only: an attempt is running, or its result is unknown after a crash."""
    ROLLED_BACK = 12
    """A transaction that was rolled back, by its producer or by its policy; it is never delivered."""
    PREPARED = 13
    """A transaction that is neither committed nor rolled back; no consumer sees it."""
    COMMITTED = 14
    """A transaction that was committed: another message has its place. In files it is CANCELLED and replaced."""

    @property
    def label(self) -> str:
        """The name in replies: lower case with underscores."""
        return OUTCOME_LABELS[self]


OUTCOME_LABELS: tuple[str, ...] = tuple(outcome.name.lower() for outcome in Outcome)
"""Names indexed by code."""

OUTCOMES_BY_LABEL: dict[str, Outcome] = {outcome.name.lower(): outcome for outcome in Outcome}


class DeliverOutcome(IntEnum):
    """The answer of a broker node to one message of a ``deliver`` request."""

    STORED = 1
    """The message was new to the node, which has stored and synced it."""
    DUPLICATE = 2
    """The node had it already, by (server id, sequence, redelivery)."""
    REFUSED = 3
    """Not stored: deliver it again later, after the others, or to another node."""
