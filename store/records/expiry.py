"""The one rule of expiry, for every place that hands a message to somebody: expired when now >= `expires_ms`.

Pure. `now_us` is the clock reading that also stamps the hand-over, so no message is stamped behind its expiry.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from store.records.batches import I64


def expired_rows(expires_ms: I64, now_us: int | I64) -> NDArray[np.bool_] | None:
    """True for rows that have expired at `now_us` (one time, or i64[n]): bool[n]. None if no row has.

    `expires_ms` i64[n]: 0 means never.
    """
    if not len(expires_ms) or (expires_ms.strides == (0,) and not expires_ms[0]) or not expires_ms.any():
        return None
    # Times of clients reach to 2^62 milliseconds: the product with 1000 would overflow, the quotient does not.
    expired = (expires_ms > 0) & (expires_ms <= now_us // 1000)
    return expired if expired.any() else None
