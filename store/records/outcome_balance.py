"""Which outcomes count in the balance: accepted = delivered + cancelled + … + pending.

Internal records (redeliveries, redispatches, check-backs, timers) do not count. `origin_sequence` is not 0 for them. It is
not 0 for a duplicate either: there it names the original. But a duplicate is a message and counts.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

OUTCOME_DEDUPLICATED = 7


def in_balance(origin_sequence: NDArray[Any], outcome: NDArray[Any]) -> NDArray[np.bool_]:
    """True for outcomes of messages, false for those of internal records, bool[n]."""
    counts: NDArray[np.bool_] = (origin_sequence == 0) | (outcome == OUTCOME_DEDUPLICATED)
    return counts


def is_internal(redelivery: NDArray[Any], origin_sequence: NDArray[Any], outcome: NDArray[Any]) -> NDArray[np.bool_]:
    """True for outcomes of internal records, bool[n]. Also where a record has a redelivery number and no origin."""
    internal: NDArray[np.bool_] = ((redelivery > 0) | (origin_sequence != 0)) & (outcome != OUTCOME_DEDUPLICATED)
    return internal
