"""What a node gets: columns that are the same on every row come as views of stride 0, so that no node compares rows."""

from __future__ import annotations

import numpy as np
import pytest

from delayserver.dispatch.delivery import compact_column


@pytest.mark.parametrize("values", [[7], [7, 7, 7], [7, 8, 7], [7, 8, 9], [-1, -1]])
def test_a_compact_column_has_the_same_values_and_is_constant_where_they_are(values: list[int]) -> None:
    rows = np.zeros(len(values), dtype=[("other", "u1"), ("value", "<i8")])
    rows["value"] = values
    column = compact_column(rows["value"])
    assert column.tolist() == values and column.dtype == np.int64
    assert (column.strides == (0,)) == (len(set(values)) == 1)
    rows["value"] = 0
    assert column.tolist() == values, "what is handed over does not change with the rows"
