"""Rows that leave the wheel, as columns. No behaviour beyond cutting and joining them belongs here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wheel.keys import Int64s, keys_sorted


@dataclass(frozen=True, slots=True)
class DueRows:
    """n rows in (due_ms, sequence) order.

    - `due_ms` i64[n]: when each row is due, ms since the epoch.
    - `sequence` i64[n]: the identity of each row.
    - `payload` [n] of a structured dtype that only the wheel's owner understands.
    """

    due_ms: Int64s
    sequence: Int64s
    payload: npt.NDArray[np.void]

    @staticmethod
    def empty(payload_dtype: np.dtype[np.void]) -> DueRows:
        """No rows, with the payload column of the given dtype."""
        return DueRows(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, payload_dtype))

    def __len__(self) -> int:
        return len(self.due_ms)

    def slice(self, start: int, stop: int) -> DueRows:
        """Rows [start, stop) as views: they keep the memory of the whole alive."""
        return DueRows(self.due_ms[start:stop], self.sequence[start:stop], self.payload[start:stop])

    def take(self, indices: npt.NDArray[np.intp]) -> DueRows:
        """The rows at `indices`, copied."""
        return DueRows(self.due_ms[indices], self.sequence[indices], self.payload[indices])

    @staticmethod
    def concatenate(parts: Sequence[DueRows]) -> DueRows:
        """The rows of all parts, one after the other. The parts must follow each other in key order.

        Raises ValueError where there is no part, since the dtype of the payload is then unknown.
        """
        if not parts:
            raise ValueError("DueRows.concatenate: at least one part is needed to know the payload's dtype")
        # Structured arrays promote field by field in Python, 40 times slower than the same bytes as plain void.
        dtype = parts[0].payload.dtype
        opaque = np.dtype((np.void, dtype.itemsize))
        return DueRows(
            np.concatenate([part.due_ms for part in parts]),
            np.concatenate([part.sequence for part in parts]),
            np.concatenate([part.payload.view(opaque) for part in parts]).view(dtype),
        )

    def check_invariants(self) -> None:
        """Columns of one length, keys ascending."""
        assert len(self.due_ms) == len(self.sequence) == len(self.payload)
        assert keys_sorted(self.due_ms, self.sequence)
