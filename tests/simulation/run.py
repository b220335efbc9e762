"""Runs one seed: makes trio deterministic, lets the world live, and turns what went wrong into words and a trace."""

from __future__ import annotations

import gc
import sys
import time as process_time
import traceback
from dataclasses import dataclass, field
from random import Random

import trio
from trio._core import _run as trio_run

from tests.simulation.clocks import BASE_US, SimulatedTime
from tests.simulation.cluster_world import ClusterWorld
from tests.simulation.failures import SimulationFailure
from tests.simulation.shards_world import ShardsWorld
from tests.simulation.threads import drawn_bounds
from tests.simulation.trace import Trace
from tests.simulation.world import World


@dataclass(slots=True)
class Result:
    """What one seed did and cost."""

    seed: int
    cluster: bool = False
    shards: bool = False
    digest: str = ""
    failure: str = ""
    lines: list[str] = field(default_factory=list)
    cpu_s: float = 0.0
    crashes: int = 0
    lives: int = 0
    simulated_h: float = 0.0
    rows: int = 0
    flips: int = 0


def schedule_by(seed: int) -> None:
    """Let trio run the tasks of the next run in an order that the seed decides."""
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(seed)


def run_seed(seed: int, *, cluster: bool = False, shards: bool = False) -> Result:
    """Run one seed from beginning to end; a broken promise is in `failure`, with the trace. `cluster`: its world has a
    shard of three members, and is another one than the world of the same seed with one server. `shards`: likewise, with
    several shards."""
    # No collection of garbage runs within a seed, and one behind it, when nothing holds the world any more. It looks at what
    # the seed made, and not at what was there before.
    gc.disable()
    gc.freeze()
    # A run that ends in a deadlock leaves coroutines behind; their complaints would bury the one that matters.
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        return _run(Result(seed, cluster, shards))
    finally:
        gc.collect()
        sys.unraisablehook = hook
        gc.unfreeze()
        gc.enable()


def _run(result: Result) -> Result:
    seed, time = result.seed, SimulatedTime()
    trace = Trace(time)
    kind = ShardsWorld if result.shards else ClusterWorld if result.cluster else World
    world = kind(seed, time, trace)
    started = process_time.process_time()
    schedule_by(seed)
    try:
        with trace.logging(), drawn_bounds(Random(f"{seed}:bounds")):
            trio.run(world.main, clock=time)
    except BaseException as error:
        failures = [leaf for leaf in _leaves(error) if isinstance(leaf, SimulationFailure)]
        if not failures:
            if any(isinstance(leaf, KeyboardInterrupt) for leaf in _leaves(error)):
                raise
            trace.lines += "".join(traceback.format_exception(error)).splitlines()
            result.failure = f"error of the simulation or the server: {_leaves(error)[0]!r}"
        else:
            cause = failures[0].__cause__
            if cause is not None:
                trace.lines += "".join(traceback.format_exception(cause)).splitlines()
            result.failure = str(failures[0])
    if trace.bugs and not result.failure:
        result.failure = trace.bugs[0]
    result.cpu_s = process_time.process_time() - started
    result.digest = trace.digest
    result.lines = trace.lines
    result.crashes = world.crashes
    result.lives = world.lives
    result.simulated_h = (world.clock.peak_us - BASE_US) / 3.6e9
    result.rows = len(world.model.rows)
    result.flips = len(world.model.damage.flips)
    return result


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in _leaves(inner)]
    return [error]
