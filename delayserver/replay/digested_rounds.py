"""The round step that adds a round to the digest of a member: what the log has, as the replay took it. Outcomes that each
member derives are added where it does so: see `RoundOutcomes`."""

from __future__ import annotations

import numpy as np

from delayserver.replay.deduplication import Deduplication
from delayserver.replay.message_log_reader import MessageLogReader
from delayserver.state.replay_round import Round
from delayserver.state.shard.digest import MESSAGES, OTHERS, OUTCOMES, STORED, Digest
from store.records.batches import FollowedBatch, MessageBatch, NameBatch, OutcomeBatch, StoredBatch
from store.records.message_rows import MessageRows
from store.records.stored_rows import StoredRows


class DigestedRounds:
    """Round → digest."""

    def __init__(self, digest: Digest, reader: MessageLogReader, deduplication: Deduplication) -> None:
        self._digest = digest
        self._reader = reader
        self._deduplication = deduplication

    def publish(self, done: Round) -> None:
        """Add a round, record by record: rounds differ between members."""
        digest = self._digest
        if done.messages is not None:
            digest.add(MESSAGES, done.messages.sequence)
        others = []
        for entry in done.entries:
            batch = entry.batch
            if isinstance(batch, OutcomeBatch):
                digest.add(OUTCOMES, batch.sequence, batch.outcome)
            elif isinstance(batch, StoredRows):
                digest.add(STORED, np.array(batch.sequences), np.array(batch.positions))
            elif isinstance(batch, StoredBatch):
                digest.add(STORED, batch.sequence, batch.position)
            elif not isinstance(batch, MessageBatch | MessageRows | FollowedBatch | NameBatch):
                others.append(len(batch))
        if others:
            digest.add(OTHERS, np.array(others))
        if self._reader.met_damage or self._deduplication.met_damage:
            digest.distrust()
