"""Keys of a sorted run in one column, so that looking for many of them is one binary search.

Only searching lives here. The column is made when a run is first searched, and costs 8 bytes a row from then on.
"""

from __future__ import annotations

from dataclasses import dataclass

from wheel.keys import Int64s, Positions, lower_bounds


@dataclass(frozen=True, slots=True)
class PackedKeys:
    """`packed` i64[n]: due_ms - due_low above `sequence_bits` bits of sequence - sequence_low, ascending like the keys.

    None where the ranges of the run's keys do not fit 63 bits together; then the two columns are searched one by one.
    """

    due_ms: Int64s
    sequence: Int64s
    packed: Int64s | None
    due_low: int
    sequence_low: int
    sequence_bits: int

    @staticmethod
    def of(due_ms: Int64s, sequence: Int64s) -> PackedKeys:
        """Packs the n > 0 sorted keys."""
        due_low, due_high = int(due_ms[0]), int(due_ms[-1])
        low, high = int(sequence.min()), int(sequence.max())
        bits = (high - low).bit_length()
        packed = None
        if (due_high - due_low).bit_length() + bits <= 63:
            packed = ((due_ms - due_low) << bits) | (sequence - low)
        return PackedKeys(due_ms, sequence, packed, due_low, low, bits)

    def lower_bounds(self, due_ms: Int64s, sequence: Int64s) -> Positions:
        """For each of m keys how many of the run's keys are less: intp[m]; for one that is not here, any position.

        So the caller compares what lies there with the key it looks for.
        """
        if self.packed is None:
            return lower_bounds(self.due_ms, self.sequence, due_ms, sequence)
        # A sequence out of the run's range spills into the due bits. It is not here, so any position will do for it.
        asked = ((due_ms - self.due_low) << self.sequence_bits) | (sequence - self.sequence_low)
        return self.packed.searchsorted(asked)
