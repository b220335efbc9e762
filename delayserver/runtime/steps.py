"""Event-loop steps that read requests, for the parts that gather what comes in one step into one group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Step(Protocol):
    """A part that gathers. Messages that arrive between the two calls are one group."""

    def begin_step(self) -> None:
        """The hub begins to read what has come."""

    def end_step(self) -> bool:
        """The hub has read all that came. False if work is left for a task."""


class Steps:
    """Several parts as one `Step`."""

    def __init__(self, parts: Sequence[Step]) -> None:
        # Bound once: every small request makes a step.
        self._begins = [part.begin_step for part in parts]
        self._ends = [part.end_step for part in parts]

    def begin_step(self) -> None:
        """See `Step`."""
        for begin in self._begins:
            begin()

    def end_step(self) -> bool:
        """See `Step`. Each part ends its group, whatever the others left."""
        done = True
        for end in self._ends:
            if not end():
                done = False
        return done
