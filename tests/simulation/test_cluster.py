"""A fixed set of seeds of a shard of three members in every run of the tests."""

from __future__ import annotations

import pytest

from tests.simulation.run import run_seed

SEEDS = range(6)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_promises_are_kept_by_a_shard(seed: int) -> None:
    result = run_seed(seed, cluster=True)
    assert not result.failure, f"{result.failure}\nreplay: python -m tests.simulation --cluster --seed {seed}"


def test_a_seed_of_a_shard_repeats_exactly() -> None:
    assert run_seed(1, cluster=True).digest == run_seed(1, cluster=True).digest
