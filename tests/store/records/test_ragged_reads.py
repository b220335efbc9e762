"""Reading ranges of a file: whatever stands together is read together, and comes in the order asked for."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import CorruptionError
from store.records.ragged_reads import read_ragged
from tests.fakes.disk import FakeDisk, FakeFile

DATA = np.random.default_rng(3).integers(0, 256, 1 << 17, dtype=np.uint8).tobytes()


def file_with(data: bytes) -> FakeFile:
    file = FakeDisk().open("/f", create=True)
    file.pwrite(0, [data])
    return file


RUNS = st.lists(
    st.tuples(st.integers(0, len(DATA) - 2_000), st.integers(1, 40), st.sampled_from([0, 1, 7, 50])), max_size=12
)


@given(runs=RUNS, ragged=st.booleans())
def test_ranges_that_stand_together_come_as_single_ones_do(runs: list[tuple[int, int, int]], ragged: bool) -> None:
    offsets: list[int] = []
    lengths: list[int] = []
    for start, count, width in runs:
        widths = [number % 9 if ragged else width for number in range(count)]
        offsets += accumulate(widths[:-1], initial=start)
        lengths += widths
    expected = b"".join([DATA[offset : offset + length] for offset, length in zip(offsets, lengths, strict=True)])
    got = read_ragged(file_with(DATA), np.array(offsets, np.int64), np.array(lengths, np.uint32))
    assert bytes(got) == expected


def test_a_run_that_reaches_beyond_the_end_is_corruption() -> None:
    offsets = np.concatenate([np.arange(0, 100, 10), len(DATA) - 95 + np.arange(0, 100, 10)])
    with pytest.raises(CorruptionError):
        read_ragged(file_with(DATA), offsets, np.full(20, 10, np.uint32))
