"""A data directory written row by row through the store, with mistakes in it that a server must never make."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from delayserver.protocol.outcomes import Outcome
from store.disk.filesystem import RealFileSystem
from store.logs.dispatch_log import DispatchKey, DispatchLog
from store.logs.message_log import MessageLog
from store.logs.schedule_log import ScheduleKey, ScheduleLog, ScheduleSource
from store.records.batches import CancelBatch, LedgerBatch, MessageBatch, OutcomeBatch, ProgressBatch, StoredBatch
from store.records.shared_column import ATTEMPTS
from store.shared.followed import FollowedTo, marker
from store.tables import checkpoint as checkpoint_file
from store.tables.checkpoint import Checkpoint
from store.tables.identity import DataDirectory
from store.tables.ledger import Ledger
from store.tables.names import BROKER_GROUP, SUBJECT, Names

WINDOW_MS = 60_000
START_MS = 1_767_225_600_000  # 2026-01-01T00:00Z


@dataclass
class HandMade:
    """`messages` go to message_log, those of them in `scheduled` to schedule_log too, and behind them `unreplayed` ones, to
    which the replay of the checkpoint has not come; `cancels` are control records of them. `outcomes` are rows of (sequence,
    outcome, lateness in microseconds), `coarse` such rows in the file of the day, which `start_ms` must be the start of.
    In a `member` of a cluster stands behind them what its shard decided, and the `places` that it came to.
    `unanswered` has the hand-overs to other nodes without an answer, by sequence; `retries` are internal.
    Message n is due n milliseconds after `start_ms`."""

    path: Path
    server_id: int = 7
    start_ms: int = START_MS
    subject: str = "orders"
    messages: list[int] = field(default_factory=list)
    scheduled: list[int] = field(default_factory=list)
    unreplayed: list[int] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    outcomes: list[tuple[int, Outcome, int]] = field(default_factory=list)
    coarse: list[tuple[int, Outcome, int]] = field(default_factory=list)
    unanswered: dict[int, int] = field(default_factory=dict)
    retries: list[int] = field(default_factory=list)
    retired: dict[str, int] = field(default_factory=dict)
    member: bool = False
    places: list[FollowedTo] = field(default_factory=list)

    def write(self) -> str:
        fs, path = RealFileSystem(), str(self.path)
        directory = DataDirectory.open(fs, path, random_server_id=lambda: self.server_id)
        names = Names.open(fs, path, self.server_id)
        self._subject = int(names.intern(SUBJECT, [self.subject])[0])
        group = int(names.intern(BROKER_GROUP, ["default"])[0])
        log = MessageLog.open(fs, f"{path}/message_log", self.server_id, segment_bytes=1 << 20)
        for sequence in self.messages:
            log.append([self._messages([sequence])])
        for sequence in self.cancels:
            log.append([self._cancel(sequence)])
        replayed = log.end
        for sequence in self.unreplayed:
            log.append([self._messages([sequence])])
        if self.member:
            decided = [self._outcome(*outcome, group) for outcome in self.outcomes]
            places = self.places or [FollowedTo(5, 1, 4)]
            mark = marker([(place, int(place.index > 0)) for place in places[:-1]], places[-1])
            log.append([*decided, StoredBatch.filled(1, sequence=1), ProgressBatch.filled(1), mark])
        log.sync()
        schedule = ScheduleLog(fs, f"{path}/schedule_log", self.server_id, WINDOW_MS)
        for sequence in self.scheduled:
            schedule.append(ScheduleKey(self.start_ms, ScheduleSource.DIRECT), self._messages([sequence]))
        schedule.sync()
        dispatch = DispatchLog(fs, f"{path}/dispatch_log", self.server_id, WINDOW_MS, reserve_bytes=0)
        for outcome in self.outcomes:
            dispatch.append(DispatchKey(self.start_ms, False), self._outcome(*outcome, group))
        for outcome in self.coarse:
            dispatch.append(DispatchKey(self.start_ms, True), self._outcome(*outcome, group))
        dispatch.sync()
        checkpoint_file.write(fs, f"{path}/checkpoint", Checkpoint(server_id=self.server_id, replay_offset=replayed))
        if self.retired:
            ledger = Ledger.open(fs, path, self.server_id)
            ledger.append(LedgerBatch.filled(1, subject=self._subject, start_ms=self.start_ms, **self.retired))
            ledger.close()
        for part in (log, schedule, dispatch, names, directory):
            part.close()
        return path

    def _messages(self, sequences: list[int]) -> MessageBatch:
        sequence = np.array(sequences, np.int64)
        body = b"body of a message"
        columns: dict[str, Any] = {"bodies": body * len(sequence), "bodies_length": len(body)}
        return MessageBatch.filled(
            len(sequence),
            sequence=sequence,
            due_ms=self.start_ms + sequence,
            accepted_us=(self.start_ms - 1000) * 1000,
            subject=self._subject,
            **columns,
        )

    def _cancel(self, sequence: int) -> CancelBatch:
        due_ms = self.start_ms + sequence
        requested_us = (self.start_ms - 500) * 1000
        return CancelBatch.filled(1, sequence=sequence, due_ms=due_ms, requested_us=requested_us, subject=self._subject)

    def _outcome(self, sequence: int, outcome: Outcome, late_us: int, group: int) -> OutcomeBatch:
        due_ms = self.start_ms + sequence
        delivered = outcome == Outcome.DELIVERED
        return OutcomeBatch.filled(
            1,
            sequence=sequence,
            due_ms=due_ms,
            accepted_us=(self.start_ms - 1000) * 1000,
            released_us=due_ms * 1000,
            queued_us=due_ms * 1000,
            dispatched_us=due_ms * 1000 + late_us if delivered else 0,
            settled_us=due_ms * 1000 + late_us + 1,
            subject=self._subject,
            broker_group=group,
            attempts=int(ATTEMPTS.pack(np.array([1]), np.array([self.unanswered.get(sequence, 0)]))[0]),
            redelivery=int(sequence in self.retries),
            outcome=int(outcome),
        )
