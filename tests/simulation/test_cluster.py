"""A fixed set of seeds of a shard of three members in every run of the tests."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import trio
import trio.testing

from tests.simulation.cluster_mistakes import CLUSTER_MISTAKES
from tests.simulation.members import Gate
from tests.simulation.mistakes import Change, made
from tests.simulation.run import run_seed

SEEDS = range(4)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_promises_are_kept_by_a_shard(seed: int) -> None:
    result = run_seed(seed, cluster=True)
    assert not result.failure, f"{result.failure}\nreplay: python -m tests.simulation --cluster --seed {seed}"


def test_a_seed_of_a_shard_repeats_exactly() -> None:
    assert run_seed(3, cluster=True).digest == run_seed(3, cluster=True).digest


def test_a_gate_that_is_closed_twice_lets_all_pass_when_it_opens() -> None:
    async def main() -> None:
        gate = Gate()
        gate.close()
        with trio.fail_after(1):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(gate.passed)
                await trio.testing.wait_all_tasks_blocked()
                gate.close()
                gate.open()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(("mistake", "seed"), CLUSTER_MISTAKES, ids=lambda each: getattr(each, "__name__", str(each)))
def test_the_mistake_of_a_shard_is_noticed(mistake: Callable[[], list[Change]], seed: int) -> None:
    seeds = dict.fromkeys([seed, *range(20)])
    assert any(_failed(mistake, each) for each in seeds), f"{mistake.__doc__}: not noticed"


def _failed(mistake: Callable[[], list[Change]], seed: int) -> bool:
    with made(mistake):
        failure = run_seed(seed, cluster=True).failure
    assert not any(name in failure for name in ("TypeError", "AttributeError", "NameError")), failure
    return bool(failure) and _is_kept(seed)


@functools.cache
def _is_kept(seed: int) -> bool:
    """Mistakes share seeds, and a seed always ends in the same way."""
    return not run_seed(seed, cluster=True).failure
