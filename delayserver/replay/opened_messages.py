"""The round step that opens messages: from now on a cancel or a lookup finds them in memory."""

from __future__ import annotations

from delayserver.replay.round_outcomes import RoundOutcomes
from delayserver.runtime.runtime import Runtime
from delayserver.state.decisions.decided import Decided
from delayserver.state.replay_round import Round


class OpenedMessages:
    """Round → open messages."""

    def __init__(self, decided: Decided, outcomes: RoundOutcomes, runtime: Runtime) -> None:
        self._decided = decided
        self._outcomes = outcomes
        self._clock = runtime.clock
        self._stages = runtime.stages

    def publish(self, done: Round) -> None:
        """Open the messages of a round. Those that a start replays may have an outcome already."""
        if done.messages is not None and not self._outcomes.recovering:
            self._decided.open_round(done.messages)
            self._stages.replay_lag.add(self._clock.now_us() - int(done.messages.accepted_us[0]))
