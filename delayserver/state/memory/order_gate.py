"""Up to which due time rows with an order key may leave the wheel: no message of their key that is due earlier may be
missing in memory. Synchronous, no I/O.

A message is missing while its commit runs, while it is in message_log alone, in the file of a day that is not drained, or in
a part of a window that is not loaded. A row that cannot be read is gone around: it holds back no key.

The broker cannot order messages again that were given out, so the hand-over keeps the order: positions at a node
ascend with (due, sequence) within a key. Rows without a key pay one look at a column a batch.

A group that is accepted before the time of the gate's last question was accepted by a clock that went back.
`Positions.accepted_back` counts such groups, and the gate asks anew.

Where memory is short, due rows that the gate holds back leave memory as spilled. Otherwise they would keep out the
windows that they wait for. They are read back into their wheel and not into the lane, because earlier rows of their
keys may be in the wheel. Rows for a fallback group go that way as well.
"""

from __future__ import annotations

from typing import Final

from delayserver.runtime.marks import Bell
from delayserver.state.positions.positions import Positions
from delayserver.state.windows.windows import Windows

NEVER: Final = -1


class OrderGate:
    """Asked before each look at the wheels of rows with an order key."""

    __slots__ = (
        "_accepted_back",
        "_asked_commits",
        "_asked_end",
        "_asked_ms",
        "_positions",
        "_replayed_ms",
        "_windows",
    )

    def __init__(self, windows: Windows, positions: Positions) -> None:
        self._windows = windows
        self._positions = positions
        # The messages that had been accepted when this time was asked for are in their files.
        self._replayed_ms = NEVER
        # The time that was asked for since, the commits that had begun then, and the end of message_log behind them; None
        # while one of them runs.
        self._asked_ms = NEVER
        self._asked_commits = 0
        self._asked_end: int | None = None
        # The value of `accepted_back` that the gate has taken into account.
        self._accepted_back = 0

    def limit_ms(self, now_ms: int, to_ms: int) -> int:
        """Rows that are due up to this time may leave, at most up to `to_ms`. `now_ms`: the time of the clock."""
        return loaded_ms(self._windows, self._replayed(now_ms, to_ms))

    def ring_when_higher(self, bell: Bell) -> None:
        """Ring a bell when the answer may be higher than the last one: a load or a drain has ended, the commits have
        ended, or the replay has come. Rows that a load brings ring it by themselves."""
        for mark in (self._windows.book.load_ends, self._windows.drains.ends):
            mark.ring_at(mark.value + 1, bell)
        if self._replayed_ms == self._asked_ms:
            return
        if self._asked_end is None:
            self._positions.commits_ended.ring_at(self._asked_commits, bell)
        else:
            self._positions.replayed.ring_at(self._asked_end, bell)

    def _replayed(self, now_ms: int, to_ms: int) -> int:
        """A time up to which the replay brings nothing any more of what had been accepted when that time was near."""
        accepted_back = self._positions.accepted_back.value
        # The clock went back. The gate may not have looked meanwhile, so `to_ms` alone does not show it.
        if to_ms < self._asked_ms or accepted_back != self._accepted_back:
            self._replayed_ms = self._asked_ms = NEVER
            self._accepted_back = accepted_back
        if self._asked_ms != self._replayed_ms and self._has_come():
            self._replayed_ms = self._asked_ms
        if self._asked_ms == self._replayed_ms:
            self._ask(now_ms, to_ms)
            if self._has_come():
                self._replayed_ms = to_ms
        if self._asked_ms != self._replayed_ms:
            self._positions.hurry.ring()
        return min(self._replayed_ms, to_ms)

    def _ask(self, now_ms: int, to_ms: int) -> None:
        self._positions.ask(now_ms)
        self._asked_ms, self._asked_commits, self._asked_end = to_ms, self._positions.commits_begun.value, None

    def _has_come(self) -> bool:
        """Whether all is replayed that had been accepted when the time was asked for."""
        positions = self._positions
        if self._asked_end is None and positions.commits_ended.value >= self._asked_commits:
            self._asked_end = positions.durable.value
        return self._asked_end is not None and positions.replayed.value >= self._asked_end


def loaded_ms(windows: Windows, to_ms: int) -> int:
    """The time up to which memory has got all rows that files hold, at most `to_ms`."""
    limit_ms = min(to_ms, windows.drains.first_ms() - 1)
    book, cursors = windows.book, windows.cursors
    for start in book.unloaded_before(limit_ms + 1, cursors):
        if not book.is_unreadable(start):
            return min(limit_ms, max(cursors.loaded_limit(start).due_ms, start - 1))
    return limit_ms
