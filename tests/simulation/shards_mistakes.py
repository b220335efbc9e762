"""Mistakes in a cluster of several shards: the simulation must notice each of them.

As in `mistakes.py`, each is a change of one function while a block runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from delayserver.operations.messages.cancellation import CANCELLED, Cancellation
from delayserver.protocol.outcomes import Outcome
from tests.simulation.mistakes import Change


def a_first_cancel_answered_as_a_repeated_one() -> list[Change]:
    """A cancel that nobody asked for before is answered as if somebody had."""

    def mistaken(right: Any) -> Any:
        async def cancel(self: Any, *args: Any, **named: Any) -> Any:
            answer = await right(self, *args, **named)
            answer[answer == CANCELLED] = int(Outcome.ALREADY_CANCELLED)
            return answer

        return cancel

    return [(Cancellation, "end", mistaken)]


# Each with a seed that notices it.
SHARDS_MISTAKES: tuple[tuple[Callable[[], list[Change]], int], ...] = ((a_first_cancel_answered_as_a_repeated_one, 0),)
