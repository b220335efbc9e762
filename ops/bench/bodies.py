"""Bodies of 100 bytes that identify their message, to compare received messages with sent ones in columns."""

from __future__ import annotations

import secrets
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from delayserver.client import PulledColumns
from ops.bench.figures import expect

BODY_BYTES: Final = 100
BODY: Final = np.dtype([("due_ms", "<i8"), ("number", "<i8"), ("filler", f"V{BODY_BYTES - 16}")])


def make_bodies(count: int) -> NDArray[Any]:
    """``count`` bodies with random filler, as a structured array of dtype `BODY`. `write_bodies` completes them."""
    return np.frombuffer(bytearray(secrets.token_bytes(count * BODY_BYTES)), BODY)


def write_bodies(bodies: NDArray[Any], due_ms: NDArray[np.int64] | int, first_number: int) -> bytes:
    """Writes due times and consecutive numbers into the bodies. Returns their blob."""
    bodies["due_ms"] = due_ms
    bodies["number"] = np.arange(first_number, first_number + len(bodies), dtype=np.int64)
    return bodies.tobytes()


def read_numbers(pulled: PulledColumns) -> NDArray[np.int64]:
    """The numbers of pulled messages, i64[count]. Raises `WrongResult` if a body is not that of its message."""
    expect(len(pulled.bodies.blob) == pulled.count * BODY_BYTES, "a delivered body has another length than was sent")
    bodies = np.frombuffer(pulled.bodies.blob, BODY)
    expect(bool((bodies["due_ms"] == pulled.due_ms).all()), "a delivered body belongs to another message")
    return bodies["number"].copy()
