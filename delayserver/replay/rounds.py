"""The two halves of a round of replay: rows are placed in their files, then they are published."""

from __future__ import annotations

from dataclasses import dataclass

from delayserver.replay.placing import Placing
from delayserver.replay.publisher import Publisher


@dataclass(frozen=True, slots=True)
class Rounds:
    """Placing may run in a worker thread; publishing is one step on the event loop."""

    placing: Placing
    publisher: Publisher
