"""The reply to a cancel by receipts: rows of two texts each, encoded without a Python map for every row.

The bytes are those of `encode_reply` for the same rows, in a tenth of its time for a thousand rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgpack
import numpy as np
from numpy.typing import NDArray

from delayserver.protocol.frames import frame_of
from delayserver.protocol.outcomes import OUTCOME_LABELS
from delayserver.protocol.receipts import RECEIPT_CHARACTERS

# Text with one character for each byte, so that `join` can put a receipt between two parts.
_BYTES: Final = "latin-1"


def encode_cancel_reply(request_id: int, receipts: Sequence[str], outcome: NDArray[np.uint8]) -> bytes:
    """The frame with the outcome codes u8[n] of n well-formed receipts; n is at least 1."""
    first = int(outcome[0])
    if (outcome == first).all():
        rows = _HEAD + (_TAILS[first] + _HEAD).join(receipts) + _TAILS[first]
    else:
        tailed = [receipt + _TAILS[code] for receipt, code in zip(receipts, outcome.tolist(), strict=True)]
        rows = _HEAD + _HEAD.join(tailed)
    return frame_of(_front(request_id, len(receipts)) + rows.encode(_BYTES))


def _packed(*values: object) -> str:
    return b"".join([msgpack.packb(value, use_bin_type=True) for value in values]).decode(_BYTES)


def _front(request_id: int, count: int) -> bytes:
    """`[request_id, true, {"results": [` of `count` rows."""
    packer = msgpack.Packer(use_bin_type=True, autoreset=False)
    packer.pack_array_header(3)
    packer.pack(request_id)
    packer.pack(True)
    packer.pack_map_header(1)
    packer.pack("results")
    packer.pack_array_header(count)
    return bytes(packer.bytes())


# A row is {"receipt": the receipt, "outcome": the label}. Its head precedes the receipt, its tail follows it.
_ROW: Final = msgpack.packb({"receipt": "r" * RECEIPT_CHARACTERS, "outcome": ""}, use_bin_type=True).decode(_BYTES)
_HEAD: Final = _ROW[: -RECEIPT_CHARACTERS - len(_packed("outcome", ""))]
_TAILS: Final = tuple(_packed("outcome", label) for label in OUTCOME_LABELS)
