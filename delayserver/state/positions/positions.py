"""How far each stage came with message_log. Each mark has one writer; all others read it or wait for it.

Invariants: checkpointed <= replayed <= durable, and no message is replayed that was not accepted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from delayserver.runtime.marks import Bell, Mark
from store.records.batches import I64
from store.records.membership import is_member

NEVER_LED = 1 << 62


class Positions:
    """Marks on message_log: logical offsets, and the sequences that lie before them."""

    __slots__ = (
        "_asked_us",
        "_drained",
        "accepted_back",
        "accepted_sequence",
        "checkpointed",
        "commits_begun",
        "commits_ended",
        "durable",
        "hurry",
        "led_from",
        "replayed",
        "replayed_sequence",
    )

    def __init__(self, *, durable: int, accepted_sequence: int, replayed: int, replayed_sequence: int) -> None:
        """Where the start found each stage."""
        # Rung when a part waits for the replay: the replayer then lets no more rows gather.
        self.hurry = Bell()
        # The end of what is durable, and its last sequence. Writer: the accepted log.
        self.durable = Mark(durable)
        self.accepted_sequence = Mark(accepted_sequence)
        # Groups of messages that got their sequences and their time of acceptance, and those of them that are durable, or
        # refused. Writer: the accepted log.
        self.commits_begun = Mark(0)
        self.commits_ended = Mark(0)
        # Groups whose time of acceptance was before the time of the last question of the order gate: the clock went back.
        # Writer: the group commit.
        self.accepted_back = Mark(0)
        self._asked_us = 0
        # All records before this offset are in their schedule files and published, and so are all messages up to this
        # sequence. Writer: the replay.
        self.replayed = Mark(replayed, self.hurry)
        self.replayed_sequence = Mark(replayed_sequence, self.hurry)
        # The offset of message_log from which on this process decided what stands there, as the primary of a cluster: memory
        # has it before the replay. Behind every offset where another process did. Writer: the accepted log.
        self.led_from = NEVER_LED
        # The offset from which the next start replays; 0 before the first checkpoint of this life. Writer: checkpointing.
        self.checkpointed = Mark(0)
        self._drained: I64 = np.empty(0, np.int64)

    @property
    def lag_bytes(self) -> int:
        """Durable in message_log, not in the schedule files yet."""
        return max(self.durable.value - self.replayed.value, 0)

    def lead(self) -> None:
        """What comes behind the end of the log was decided by this process."""
        self.led_from = self.durable.value

    def follow(self) -> None:
        """What comes behind the end of the log was decided by another process."""
        self.led_from = NEVER_LED

    def replay(self, last_sequence: int, end: int) -> None:
        """A round was published, up to this sequence and this offset of message_log. Writer: the replay."""
        self.accepted_sequence.advance(last_sequence)  # only the start of a member did not know it
        self.replayed_sequence.advance(last_sequence)
        self.replayed.advance(end)

    def skip_unused(self, sequence: int) -> None:
        """Ends the replay of a start: no part waits for sequences up to this one, which a crash may have left
        unused."""
        self.replayed_sequence.advance(sequence)

    # -- times of acceptance

    def ask(self, now_ms: int) -> None:
        """The order gate asks at this time of the clock what had been accepted. Writer: the order gate."""
        self._asked_us = now_ms * 1000

    def accept(self, now_us: int) -> None:
        """A group of messages was accepted at this time of the clock. Writer: the group commit."""
        if now_us < self._asked_us:
            self.accepted_back.advance(self.accepted_back.value + 1)

    # -- rows of a sealed day, which come to the files of their minutes a second time

    def begin_drained(self, sequence: I64) -> None:
        """Takes the rows (i64[n]) of a day that are about to stand in the files of their minutes. Writer: the
        replay."""
        self._drained = np.concatenate([self._drained, sequence])

    def end_drained(self) -> None:
        """Forgets the rows of the day that were placed, because they are handed on."""
        self._drained = np.empty(0, np.int64)

    # -- of messages found in the files of windows

    def has_replayed(self, sequence: I64) -> NDArray[np.bool_]:
        """Those whose round of the message_log was published, bool[n]."""
        known: NDArray[np.bool_] = sequence <= self.replayed_sequence.value
        return known

    def has_published(self, sequence: I64) -> NDArray[np.bool_]:
        """True for messages that were published, bool[n]. The others are only placed: the publisher or a load brings them to
        the wheel, so no other part may."""
        known = self.has_replayed(sequence)
        if len(self._drained):
            known &= ~is_member(sequence, self._drained)
        return known

    def check_invariants(self) -> None:
        """The stages follow each other."""
        assert self.commits_ended.value <= self.commits_begun.value
        marks = (self.checkpointed, self.replayed, self.durable, self.replayed_sequence, self.accepted_sequence)
        for mark in marks:
            mark.check_invariants()
        assert self.checkpointed.value <= self.replayed.value <= self.durable.value
        assert self.replayed_sequence.value <= self.accepted_sequence.value
