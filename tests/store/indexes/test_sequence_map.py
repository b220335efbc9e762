"""The table of stretches of a schedule file."""

from __future__ import annotations

import numpy as np

from store.indexes.sequence_map import SequenceMap


def test_a_file_without_records_has_no_stretches() -> None:
    assert SequenceMap().stretches(np.array([1, 7], np.int64)).tolist() == []


def test_a_sequence_before_the_first_record_has_no_stretch() -> None:
    table = SequenceMap()
    table.add(10, 12, 64, 128)
    assert table.stretches(np.array([9], np.int64)).tolist() == []
    assert table.stretches(np.array([9, 11], np.int64)).tolist() == [[64, 128]]
