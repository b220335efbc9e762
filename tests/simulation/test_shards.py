"""A fixed set of seeds of several shards in every run of the tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest

from tests.simulation.mistakes import Change, made
from tests.simulation.run import run_seed
from tests.simulation.shards_mistakes import SHARDS_MISTAKES

SEEDS = range(2)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_promises_are_kept_by_several_shards(seed: int) -> None:
    result = run_seed(seed, shards=True)
    assert not result.failure, f"{result.failure}\nreplay: python -m tests.simulation --shards --seed {seed}"


def test_a_seed_of_several_shards_repeats_exactly() -> None:
    assert run_seed(1, shards=True).digest == run_seed(1, shards=True).digest


@pytest.mark.parametrize(("mistake", "seed"), SHARDS_MISTAKES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_the_mistake_of_several_shards_is_noticed(mistake: Callable[[], list[Change]], seed: int) -> None:
    seeds = dict.fromkeys([seed, *range(12)])
    assert any(_failed(mistake, each) for each in seeds), f"{mistake.__doc__}: not noticed"


def _failed(mistake: Callable[[], list[Change]], seed: int) -> bool:
    with made(mistake):
        failure = run_seed(seed, shards=True).failure
    assert not any(name in failure for name in ("TypeError", "AttributeError", "NameError")), failure
    return bool(failure) and _is_kept(seed)


@functools.cache
def _is_kept(seed: int) -> bool:
    """Mistakes share seeds, and a seed always ends in the same way."""
    return not run_seed(seed, shards=True).failure
