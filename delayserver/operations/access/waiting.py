"""How many messages wait in the subjects of a token, for the limit of its pending messages. From counters; reads no file."""

from __future__ import annotations

from typing import Final

import numpy as np

from delayserver.operations.access.access import Access
from delayserver.runtime.clock import Clock
from delayserver.state.counts.balance import Balance
from store.tables.names import SUBJECT, Names

AGAIN_US: Final = 100_000
"""The counters are added up again after this time at the earliest. Meanwhile what the token sends is added."""

_CODES_AT_ONCE: Final = 4_096
"""New subjects compared with the patterns in one sum: some ms of work. More of them have their turn with the next sums."""


class WaitingCounts:
    """The counters, for all tokens."""

    def __init__(self, balance: Balance, names: Names, clock: Clock) -> None:
        self._balance = balance
        self._names = names
        self._clock = clock

    def of(self, access: Access) -> Waiting:
        """Those of one token."""
        return Waiting(self._balance, self._names, access, self._clock)


class Waiting:
    """The sum over the subjects that are open to a token."""

    __slots__ = ("_access", "_balance", "_clock", "_codes", "_names", "_reached", "_summed_us", "_waiting")

    def __init__(self, balance: Balance, names: Names, access: Access, clock: Clock) -> None:
        self._balance = balance
        self._names = names
        self._access = access
        self._clock = clock
        self._codes: list[int] = []
        self._reached = 0
        self._waiting = 0
        self._summed_us = -AGAIN_US

    def now(self) -> int:
        """Messages that wait. 0 while the server counts them, after an upgrade or a crash."""
        now_us = self._clock.monotonic_us()
        if now_us - self._summed_us >= AGAIN_US:
            self._summed_us = now_us
            self._waiting = self._sum()
        return self._waiting

    def add(self, messages: int) -> None:
        """Counts messages that are about to be accepted."""
        self._waiting += messages

    def _sum(self) -> int:
        counts = self._balance.subjects
        if not counts.is_counted:
            return 0
        pending = counts.pending()
        if self._access.everything:
            return int(pending.sum())
        codes, self._reached = self._names.codes_behind(SUBJECT, self._reached, _CODES_AT_ONCE)
        self._codes += [code for code in codes if self._access.may(self._names.name(code))]
        known = np.array(self._codes, np.intp)
        return int(pending[known[known < len(pending)]].sum())
