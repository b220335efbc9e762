"""The reply to a cancel by receipts is laid out by hand, and is to the byte what the general encoder makes of it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from delayserver.protocol.cancel_reply import encode_cancel_reply
from delayserver.protocol.frames import encode_reply
from delayserver.protocol.outcomes import OUTCOME_LABELS, Outcome
from delayserver.protocol.receipts import format_receipts

codes = st.integers(0, len(Outcome) - 1)


def receipts_of(count: int) -> list[str]:
    """Receipts of `count` messages."""
    numbers = np.arange(count, dtype=np.int64)
    return format_receipts("00c0ffee1234", numbers * 1_000_003, numbers)


def encoded_by_rows(request_id: int, receipts: list[str], outcome: list[int]) -> bytes:
    """The same reply from a map for each row."""
    rows = [
        {"receipt": receipt, "outcome": OUTCOME_LABELS[code]} for receipt, code in zip(receipts, outcome, strict=True)
    ]
    return encode_reply(request_id, {"results": rows})


@given(st.integers(1, 2**63 - 1), st.lists(codes, min_size=1, max_size=40))
def test_a_cancel_reply_of_different_outcomes_has_the_bytes_of_its_rows(request_id: int, outcome: list[int]) -> None:
    receipts = receipts_of(len(outcome))
    reply = encode_cancel_reply(request_id, receipts, np.array(outcome, dtype=np.uint8))
    assert reply == encoded_by_rows(request_id, receipts, outcome)


@pytest.mark.parametrize("count", [1, 15, 16, 1_000, 65_535, 65_536])
@pytest.mark.parametrize("code", [0, 5, 10])
def test_a_cancel_reply_of_one_outcome_has_the_bytes_of_its_rows(count: int, code: int) -> None:
    receipts = receipts_of(count)
    reply = encode_cancel_reply(3, receipts, np.full(count, code, dtype=np.uint8))
    assert reply == encoded_by_rows(3, receipts, [code] * count)
