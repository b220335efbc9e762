"""Which node of a group takes the messages of an order key: always the same one, as long as it takes messages.

Each bucket of keys goes to one of the nodes that are usable by weighted rendezvous hashing (Thaler and Ravishankar, "A
Name-Based Mapping Scheme for Rendezvous", 1996; weights after Schindelhauer and Schomaker, 2005). A node that comes or goes
moves only the keys that it gets or had. No I/O, and no clock: the time is an argument.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from delayserver.state.memory.keyed_lane import BUCKETS
from delayserver.state.memory.node_health import NodeHealth
from store.records.id_hash import mix

Places = NDArray[np.intp]


class KeyNodes:
    """The table of one group. It is made anew when the usable nodes or their weights change."""

    def __init__(self) -> None:
        self._made_of: list[tuple[int, int]] = []
        self._places: Places = np.zeros(BUCKETS, np.intp)

    def places(self, nodes: Sequence[NodeHealth], now_us: int) -> Places:
        """For each bucket the place of its node in `nodes`, intp[BUCKETS]; one without weight where no node has any.

        A node with an open circuit is not usable, except for the moment when it may be tried again. While none is usable,
        all count as usable."""
        usable = [node.weight if not node.open_circuit or node.ready(now_us) else 0 for node in nodes]
        weights = usable if any(usable) else [node.weight for node in nodes]
        made_of = [(node.number, weight) for node, weight in zip(nodes, weights, strict=True)]
        if made_of != self._made_of:
            self._made_of, self._places = made_of, _places(made_of)
        return self._places


def _places(nodes: list[tuple[int, int]]) -> Places:
    buckets = np.arange(BUCKETS, dtype=np.uint64)
    scores = np.full((len(nodes), BUCKETS), np.inf)
    for place, (number, weight) in enumerate(nodes):
        if weight:
            hashes = mix(np.uint64(number) << np.uint64(32) | buckets)
            # Uniform in (0, 1]; the lowest score wins.
            scores[place] = -np.log(((hashes >> np.uint64(11)).astype(np.float64) + 1) / 2.0**53) / weight
    places: Places = np.argmin(scores, axis=0)
    return places
