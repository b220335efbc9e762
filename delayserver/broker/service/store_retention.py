"""Removing what the broker's store needs no more. `actions/block_cuts.py` has the rules; a checkpoint comes first."""

from __future__ import annotations

from delayserver.broker.actions.arrivals import Arrivals
from delayserver.broker.actions.block_cuts import (
    CUT_BLOCKS_MAX,
    BlockCuts,
    give_up,
    kept_from,
    retirable,
    retire_store,
)
from delayserver.broker.actions.state import BrokerState
from delayserver.broker.service.durability import Durability
from store.errors import DiskFullError


class StoreRetention:
    """Removes segments of the store. The time lies between `now_us` and `latest_us`; without `latest_us` it is `now_us`.

    `by_log`: in a member of a cluster, whose log says what is given up."""

    def __init__(self, state: BrokerState, durability: Durability, arrivals: Arrivals) -> None:
        self._state = state
        self._durability = durability
        self._arrivals = arrivals

    def needs_checkpoint(self, now_us: int, latest_us: int | None = None, *, by_log: bool = False) -> bool:
        """Whether `retire` would first write a checkpoint. A caller that wants that in a thread writes one before."""
        return self._below(now_us, latest_us, by_log) > self._durability.checkpointed

    def to_give_up(self, now_us: int, latest_us: int) -> int:
        """The base of the segment of the store with which what a primary keeps begins now; 0 where that has not changed."""
        below = retirable(self._state, now_us, latest_us)
        return below if below > kept_from(self._state) else 0

    def give_up(self) -> None:
        """Do what the log of a shard says. While a checkpoint copies the queues nothing is done: call it again."""
        if not self._state.queues.capturing and give_up(self._state):
            self._arrivals.count_runs()

    def retire(
        self, now_us: int, latest_us: int | None = None, *, alone: bool = True, by_log: bool = False
    ) -> list[str]:
        """Remove the segments that are not needed; returns their paths. In a member of a cluster, which is not `alone`, only
        those that the last checkpoint allows to remove."""
        below = self._below(now_us, latest_us, by_log)
        if not alone:
            below = min(below, self._durability.checkpointed)
        if below > self._durability.checkpointed:
            try:
                self._durability.checkpoint()
            except DiskFullError:  # segments that the last checkpoint allows to remove make room
                below = self._durability.checkpointed
        removed = retire_store(self._state, below)
        if removed:
            self._arrivals.count_runs()
        return removed

    def block_cuts(self) -> list[BlockCuts]:
        """What `retire` left to do, since it needs reads: cuts that are to be made now, one after the other."""
        below = kept_from(self._state)
        reaching = [queue for _, queue in self._state.queues.awake() if queue.reaches_below(below)]
        steps = range(0, len(reaching), CUT_BLOCKS_MAX)
        return [BlockCuts(self._state, reaching[at : at + CUT_BLOCKS_MAX]) for at in steps]

    def _below(self, now_us: int, latest_us: int | None, by_log: bool) -> int:
        if by_log:
            return self._state.given_up.below
        return retirable(self._state, now_us, now_us if latest_us is None else latest_us)
