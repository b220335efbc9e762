"""The simulation can fail: each mistake of the original, put back into the server, breaks a promise within some seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.mistakes import MISTAKES, Change, made
from tests.simulation.world import run_seed

SEEDS_MAX = 40


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_mistake_is_noticed(mistake: Callable[[], list[Change]]) -> None:
    with made(mistake):
        assert any(run_seed(seed).failure for seed in range(SEEDS_MAX)), f"{mistake.__doc__}: not noticed"
