"""The simulation can fail: each mistake of the original, put back into the server, breaks a promise within some seeds."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.mistakes import MISTAKES, Change, made
from tests.simulation.run import run_seed

SEEDS_MAX = 40


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake.__name__)
def test_the_mistake_is_noticed(mistake: Callable[[], list[Change]]) -> None:
    assert any(_noticed(mistake, seed) for seed in range(SEEDS_MAX)), f"{mistake.__doc__}: not noticed"


def _noticed(mistake: Callable[[], list[Change]], seed: int) -> bool:
    """A promise is broken with the mistake, and kept without it."""
    with made(mistake):
        failure = run_seed(seed).failure
    return bool(failure) and not run_seed(seed).failure
