"""A fixed set of seeds in every run of the tests, and what a run promises about itself."""

from __future__ import annotations

import functools
import gc
import os
import subprocess
import sys

import pytest

from tests.simulation.host import Host
from tests.simulation.many import SEEDS_OF_THE_TESTS
from tests.simulation.run import Result, run_seed


@functools.cache
def first_run(seed: int) -> Result:
    """What the seed does; the same for all tests that ask."""
    return run_seed(seed)


@pytest.mark.parametrize("seed", SEEDS_OF_THE_TESTS)
def test_all_promises_are_kept(seed: int) -> None:
    result = first_run(seed)
    assert not result.failure, f"{result.failure}\nreplay: python -m tests.simulation --seed {seed}"


def test_a_seed_repeats_exactly() -> None:
    assert run_seed(1).digest == first_run(1).digest


def test_a_seed_repeats_exactly_in_another_process() -> None:
    script = "from tests.simulation.run import run_seed; print(run_seed(4).digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    }
    assert digests == {first_run(4).digest + "\n"}


def test_seeds_differ() -> None:
    assert first_run(1).digest != first_run(2).digest


def test_a_seed_leaves_nothing_of_its_world_in_memory() -> None:
    run_seed(1)
    assert not [each for each in gc.get_objects() if isinstance(each, Host)]
