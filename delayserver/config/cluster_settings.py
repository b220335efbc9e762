"""The settings of a cluster: one file for all its members, and what is each one's own."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """How members of a shard follow and lead. The times decide how quickly a standby takes over, never whether."""

    silence_ms: int = 1_500
    """A standby claims when nothing valid came for so long, while the log answers. Six beats: one that is late for the pause
    of a broker causes no claim."""
    rank_ms: int = 400
    """Each standby waits so much longer than the one that is preferred before it. So one of them claims at a time."""
    rank: int = 0
    """The place of this member in the order of preference."""
    beat_ms: int = 250
    lease_ms: int = 1_200
    """So long after it sent the last beat that it read back, the primary serves pulls and lookups, and begins attempts.
    Below `silence_ms`: a primary that hears nothing of the log has stopped when a standby begins."""
    log_wait_ms: int = 5_000
    """The primary takes new messages for so long after the last beat that it read back. Past it, it refuses them by name. A
    log that changes its leader comes back within this time."""
    front_probe: bool = True
    """Members ask each other's fronts. A primary that no member reaches hands over."""
    horizon_ms: int = 3_000
    """Nothing is attempted that is due later than this after a beat. After a takeover, messages due before it cannot be
    cancelled before their node has said what it has."""
