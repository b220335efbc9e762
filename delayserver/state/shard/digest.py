"""The digest of a member: a sum over all that its replay took and decided.

The same log gives the same sum on all members, whatever their rounds, checkpoints and files are. A beat of the primary has
its sum at an earlier beat. A member that has another one there has decided something else: it must never lead.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from delayserver.state.positions.log_queue import LogQueue
from store.errors import DivergedError
from store.records.id_hash import mix

# Places whose sums are known, or wait for the replay. With four beats a second the last four minutes: a primary whose replay
# is farther behind names places that a standby has forgotten, and nothing is compared.
PLACES_MAX = 1024
# The kinds of rows in a sum: messages, outcomes of the log, outcomes that each member derives, and other records.
MESSAGES, OUTCOMES, DERIVED, STORED, OTHERS = 1, 2, 3, 4, 5
_BITS = (1 << 64) - 1
_SUM = struct.Struct("<QQ")
# Factors that distinguish the columns of a row.
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)
_SINCE, _TOTAL = "digest_since", "digest_sum"
_UNKNOWN = -1


class Digest:
    """The sum of this member, and its comparison with that of the primary. Writers: the replay adds, the follower says where
    to look.

    `since` is the position of the log from which on the sum counts; 0 for all of the log, None where it is not known: damage
    hid what the replay should have taken. Then the member takes the primary's sum for its own once, or begins anew as the
    primary."""

    def __init__(self, queue: LogQueue, counted: Mapping[str, int], *, whole: bool) -> None:
        """`counted`: what the checkpoint has. `whole`: no checkpoint counts, and the replay begins where the log began."""
        self._queue = queue
        self._positions = queue.positions
        since = 0 if whole else counted.get(_SINCE, _UNKNOWN)
        self.since = None if since == _UNKNOWN else since
        self._sum = 0 if whole else counted.get(_TOTAL, 0)
        # Sums by position, in order, and what the primary says of positions that are not replayed here.
        self._known: dict[int, int] = {}
        self._told: dict[int, tuple[int, int]] = {}
        self._waiting: set[int] = set()
        # The last position for which the primary's sum was found to be the same; 0: none.
        self.compared = 0

    # -- the sum

    def add(self, kind: int, *columns: NDArray[np.int64 | np.uint64 | np.uint32 | np.uint8]) -> None:
        """Add rows of a kind: up to four columns of one length."""
        rows = np.full(len(columns[0]), kind, np.uint64)
        for column, factor in zip(columns, _FACTORS, strict=False):
            rows += column.astype(np.uint64) * np.uint64(factor)
        self._sum = (self._sum + int(mix(rows).sum(dtype=np.uint64))) & _BITS

    def distrust(self) -> None:
        """The sum lacks something: nothing can be said of it, nor of places before. A beat on its way would bring
        its `since` back."""
        self.since = None
        self._known.clear()
        self._told.clear()

    @property
    def counters(self) -> dict[str, int]:
        """What a checkpoint keeps, as of the end of the last round."""
        return {_SINCE: _UNKNOWN if self.since is None else self.since, _TOTAL: self._sum}

    # -- places of the log

    def look_at(self, position: int) -> None:
        """A beat stands at `position` of the log, and message_log ends with what came before it. Raises DivergedError."""
        end = self._positions.durable.value
        if self._positions.replayed.value >= end:
            self._look(position)
        elif len(self._waiting) < PLACES_MAX:
            self._waiting.add(position)
            self._queue.end_round_at(end)
            self._positions.replayed.call_at(end, partial(self._look_later, position))

    def _look_later(self, position: int) -> None:
        self._waiting.discard(position)
        self._look(position)

    def _look(self, position: int) -> None:
        if self.since is None:
            self.since, self._sum = position, 0
        self._known[position] = self._sum
        if len(self._known) > PLACES_MAX:
            del self._known[next(iter(self._known))]
        told = self._told.pop(position, None)
        if told is not None:
            self._same_as(position, *told)

    @property
    def last(self) -> tuple[int, bytes]:
        """The last position with a known sum, and the digest for a beat; 0 and empty where there is none."""
        if self.since is None or not self._known:
            return 0, b""
        position = next(reversed(self._known))
        return position, _SUM.pack(self.since, self._known[position])

    def compare(self, position: int, digest: bytes) -> None:
        """The primary has this digest at a position. Raises DivergedError where this member has another one."""
        if len(digest) != _SUM.size:
            return
        since, total = _SUM.unpack(digest)
        if position in self._known:
            self._same_as(position, since, total)
        elif position in self._waiting:
            self._told[position] = since, total

    def _same_as(self, position: int, since: int, total: int) -> None:
        own = self._known[position]
        if since != self.since:  # one of the two had to begin anew
            self._sum = (self._sum + total - own) & _BITS
            self.since = since
            self._known.clear()
        elif own != total:
            raise DivergedError(position, self.compared, f"{own:016x} here, {total:016x} on the primary")
        else:
            self.compared = position
