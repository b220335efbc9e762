"""The round step that writes the names of a cluster. They come in front of the records that use them."""

from __future__ import annotations

from delayserver.state.replay_round import Round
from store.tables.names import Names


class KeptNames:
    """Round → names.log."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def publish(self, done: Round) -> None:
        """Write the names of a round. Raises CorruptionError where names.log has others, DiskFullError."""
        for batch in done.names:  # passes over what it has from an earlier call
            self._names.keep(batch)
