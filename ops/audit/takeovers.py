"""The takeovers of shards: how long each had no primary, by the times of its records."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeAlias


@dataclass(frozen=True, slots=True)
class Takeover:
    """The beginning of an epoch, by the clocks of the two primaries, in microseconds since 1970. `last_us`: the last record
    of the former one. `claimed_us`: the claim of the next one. `first_us`: its first record that is more than a beat; 0 if
    there is none. `planned`: the former primary had handed over, by a switch or at its stop; None: it is not known."""

    server_id: int
    epoch: int
    last_us: int
    claimed_us: int
    first_us: int
    planned: bool | None = None


@dataclass(frozen=True, slots=True)
class Epoch:
    """What some records tell of one epoch. `first` and `last` are (index, time): of the first record that is more than a
    beat, and of the last one. Index 0 is that of the claim. `ended`: the primary has handed over; None: it is not known."""

    claimed_us: int = 0
    first: tuple[int, int] | None = None
    last: tuple[int, int] = (0, 0)
    ended: bool | None = None

    def with_record(self, index: int, wall_us: int, *, brings: bool, ends: bool | None = None) -> Epoch:
        """This and one record more. `brings`: it is more than a beat. `ends`: it is a hand-over; None: it is not known."""
        at = (index, wall_us)
        first = at if brings and (self.first is None or at < self.first) else self.first
        claimed_us = wall_us if index == 0 else self.claimed_us
        return Epoch(claimed_us, first, max(self.last, at), _either(self.ended, ends))


def _either(one: bool | None, other: bool | None) -> bool | None:
    """Whether one of them is true, as far as it is known."""
    return other if one is None else one if other is None else one or other


HOW: Final = MappingProxyType({True: "by a hand-over", False: "after a failure", None: "not known how"})
"""Words for `planned`."""

Epochs: TypeAlias = dict[tuple[int, int], Epoch]
"""By server id and epoch."""


def together(left: Epochs, right: Epochs) -> Epochs:
    """What both tell."""
    found = dict(left)
    for key, other in right.items():
        mine = found.get(key, Epoch())
        firsts = [each for each in (mine.first, other.first) if each is not None]
        found[key] = Epoch(
            max(mine.claimed_us, other.claimed_us),
            min(firsts, default=None),
            max(mine.last, other.last),
            _either(mine.ended, other.ended),
        )
    return found


def takeovers_of(epochs: Epochs) -> tuple[Takeover, ...]:
    """The takeovers, by server and epoch. The first primary of a shard took nothing over."""
    found = []
    for (server_id, number), epoch in sorted(epochs.items()):
        former = epochs.get((server_id, number - 1))
        if former is not None and former.last[1] and epoch.claimed_us:
            first_us = 0 if epoch.first is None else epoch.first[1]
            found.append(Takeover(server_id, number, former.last[1], epoch.claimed_us, first_us, former.ended))
    return tuple(found)
