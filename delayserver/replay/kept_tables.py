"""The round step that has tables of a cluster read again. Their files are written already, as the rounds were placed."""

from __future__ import annotations

from delayserver.state.replay_round import Round
from delayserver.state.shard.shared_tables import SharedTables


class KeptTables:
    """Round → policies, tokens."""

    def __init__(self, tables: SharedTables) -> None:
        self._tables = tables

    def publish(self, done: Round) -> None:
        """Use the tables of a round, in the order of the log."""
        for batch in done.tables:
            self._tables.adopt(batch)
