"""The outcomes of a message: the codes in files and wire columns, and their names in replies.

One byte for each message, the same in dispatch_log, in columnar replies and in the audit. A code never changes its meaning.
"""

from __future__ import annotations

from enum import IntEnum


class Outcome(IntEnum):
    """The state or end of one message, and the answers of cancel. `label` is the name in replies."""

    UNKNOWN = 0
    """The server never accepted it, or its send is not answered yet."""
    PENDING = 1
    """It waits for its due time."""
    IN_FLIGHT = 2
    """An attempt to hand it to a node runs."""
    RETRYING = 3
    """An attempt failed; another one is planned."""
    DELIVERED = 4
    """A node has stored and synced it."""
    CANCELLED = 5
    """It was cancelled or moved, and is never delivered."""
    EXPIRED = 6
    """Its ``expires_ms`` came first, so it is never delivered."""
    DEDUPLICATED = 7
    """A copy of a message that was accepted before. The first one counts."""
    DEAD_LETTERED = 8
    """The server gave up handing it to a node, after the attempts that the operator set. What a consumer group gives up
    stays `delivered`, because an outcome is about the hand-over.
    """
    RETIRED = 9
    """It had an outcome, and the server has removed the record."""
    ALREADY_CANCELLED = 10
    """Answer of `cancel` and `reschedule`: it was cancelled before."""
    TOO_LATE = 11
    """Answer of `cancel` and `reschedule`: it is on its way to a node, or can be."""
    ROLLED_BACK = 12
    """A transaction that its producer or its policy ended; no consumer gets it."""
    PREPARED = 13
    """A transaction that is neither committed nor rolled back; no consumer gets it yet."""
    # In files it is CANCELLED and replaced.
    COMMITTED = 14
    """A transaction whose place a visible message has."""

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
