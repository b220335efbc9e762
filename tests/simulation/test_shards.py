"""A fixed set of seeds of several shards in every run of the tests."""

from __future__ import annotations

import pytest

from tests.simulation.run import run_seed

SEEDS = range(2)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_promises_are_kept_by_several_shards(seed: int) -> None:
    result = run_seed(seed, shards=True)
    assert not result.failure, f"{result.failure}\nreplay: python -m tests.simulation --shards --seed {seed}"


def test_a_seed_of_several_shards_repeats_exactly() -> None:
    assert run_seed(1, shards=True).digest == run_seed(1, shards=True).digest
