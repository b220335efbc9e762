"""What a simulation can find. A failure names the rule that was broken; everything else is an error of the simulation."""

from __future__ import annotations


class SimulationFailure(AssertionError):
    """A promise of the service was broken."""


class ServerBroken(SimulationFailure):
    """The server died of something that is neither a crash that was asked for nor a fault of its disk."""
