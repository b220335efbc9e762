"""Whether a series of samples stays flat. Pure: numbers in, a sentence out.

The first third of a run fills caches, opens files and makes subjects, so it is passed over. What grows later grows for ever.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

SAMPLES_MIN: Final = 12


@dataclass(frozen=True, slots=True)
class Bound:
    """How much a figure may grow from the middle third of a run to its last third: by a factor, and by an amount.

    The amount is noise of a short run: an allocator's arena, a segment that is made ahead, one more connection.
    """

    factor: float
    amount: float


def growth(samples: Sequence[float], bound: Bound) -> tuple[float, float] | None:
    """The medians of the middle and of the last third, if the figure has grown beyond its bound; otherwise None.

    Medians, because a restart, a merge or a stall of the machine moves single samples far. Raises ValueError for fewer
    than `SAMPLES_MIN` samples: they prove nothing.
    """
    if len(samples) < SAMPLES_MIN:
        raise ValueError(f"{len(samples)} samples, {SAMPLES_MIN} are needed")
    third = len(samples) // 3
    before, after = median(samples[third : 2 * third]), median(samples[2 * third :])
    return (before, after) if after > before * bound.factor + bound.amount else None
