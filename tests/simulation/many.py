"""Runs many seeds, in this process or in several, until the seeds or the time are over."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from types import FrameType

from tests.simulation.run import Result, run_seed

# Each run of the tests runs these.
SEEDS_OF_THE_TESTS = range(12)
# A seed takes seconds; one that needs this long goes in circles without a task to notice it.
SEED_S_MAX = 300


class SeedTooLong(BaseException):
    """Passes every handler of the server."""


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise SeedTooLong(f"the seed does not end within {SEED_S_MAX} s")


def run_bounded(seed: int, *, cluster: bool = False, shards: bool = False) -> Result:
    """`run_seed` without its trace, and with an end. In the main thread only."""
    before = signal.signal(signal.SIGALRM, _too_long)
    signal.alarm(SEED_S_MAX)
    try:
        result = run_seed(seed, cluster=cluster, shards=shards)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    result.lines = []
    return result


def run_many(
    seeds: Iterable[int], run: Callable[[int], Result], processes: int, seconds: float | None = None
) -> Iterator[Result]:
    """Results as they come; with `seconds` no seed is begun after that time."""
    until = None if seconds is None else time.monotonic() + seconds
    wanted = itertools.takewhile(lambda _: until is None or time.monotonic() < until, seeds)
    if processes == 1:
        yield from map(run, wanted)
        return
    # Forked, so that all of them run the code that this process has read, whatever happens to the files meanwhile.
    with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
        running: set[Future[Result]] = set()
        for seed in wanted:
            running.add(pool.submit(run, seed))
            if len(running) > processes:
                ended, running = wait(running, return_when=FIRST_COMPLETED)
                yield from (future.result() for future in ended)
        yield from (future.result() for future in running)
