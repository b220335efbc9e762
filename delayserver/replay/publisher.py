"""Publishes the rounds of message_log that the replay has placed.

One call is one step on the event loop. So is the loader's `begin_load`; between them no record can fall (rule 7).
"""

from __future__ import annotations

from collections.abc import Sequence

from delayserver.state.positions.positions import Positions
from delayserver.state.replay_round import Round, RoundStep


class Publisher:
    """Gives each round to all steps in their order, then moves the marks of the replay."""

    def __init__(self, steps: Sequence[RoundStep], positions: Positions) -> None:
        self.steps = tuple(steps)
        self._positions = positions

    def publish(self, done: Round) -> None:
        """Publish a round of message_log. The marks move last: a part that waits for them finds the work of every step.
        Raises DiskFullError in a member of a cluster: a further call goes on where this one ended."""
        for step in self.steps[done.published :]:
            step.publish(done)
            done.end_step()
        self._positions.replay(done.last_sequence, done.end)
