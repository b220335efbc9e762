"""`python -m tests.simulation`: run seeds; never stop at a failure, report all. Ends with 1 if a promise was broken."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.simulation.many import run_bounded, run_many
from tests.simulation.record import Code, Record, code_digest
from tests.simulation.run import Result, run_seed


def main() -> int:
    """Run what is asked for; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, help="how many (100, or as many as --seconds allows)")
    parser.add_argument("--from", type=int, dest="start", help="the first one (0, or with --seconds a fresh one)")
    parser.add_argument("--seconds", type=float, help="begin no further seed after this long")
    parser.add_argument("--processes", type=int, default=1, help="how many at the same time (1)")
    parser.add_argument("--seed", type=int, help="this one alone, with its whole trace")
    parser.add_argument("--cluster", action="store_true", help="worlds with a shard of three members on one shared log")
    parser.add_argument("--shards", action="store_true", help="worlds with two or three shards, and a map of them")
    parser.add_argument("--record", type=Path, help="append to this file, and skip what the present server ran already")
    parser.add_argument("--summary", type=Path, help="run nothing: what this record holds of the present server")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(arguments)
    code = code_digest()
    if arguments.summary is not None:
        summary = Record(arguments.summary, code).summary()
        print(summary.text())
        return 1 if summary.failed else 0
    return _many(arguments, code)


def _many(arguments: argparse.Namespace, code: Code) -> int:
    record = Record(arguments.record, code) if arguments.record is not None else None
    done = record.done(cluster=arguments.cluster, shards=arguments.shards) if record is not None else set()
    seeds = _seeds(arguments)
    failed: list[int] = []
    costs: list[float] = []
    crashes = 0
    run = partial(run_bounded, cluster=arguments.cluster, shards=arguments.shards)
    for result in run_many((seed for seed in seeds if seed not in done), run, arguments.processes, arguments.seconds):
        costs.append(result.cpu_s)
        crashes += result.crashes
        if result.failure:
            failed.append(result.seed)
            _report(result)
        if record is not None:
            record.append(result)
    if costs:
        print(
            f"{len(costs)} seeds, {len(failed)} failed, {statistics.median(costs):.3f} core seconds at the median, "
            f"{crashes} crashes, code {code}"
        )
    for seed in sorted(failed):
        print(f"failed: python -m tests.simulation {_kind(arguments.cluster, arguments.shards)}--seed {seed}")
    return 1 if failed else 0


def _seeds(arguments: argparse.Namespace) -> Iterable[int]:
    """Seeds in order. Fresh ones begin at a number made of the time, which is printed."""
    start = arguments.start
    if arguments.seconds is None:
        start = start or 0
        return range(start, start + (100 if arguments.seeds is None else arguments.seeds))
    if start is None:
        start = int(time.time()) * 10_000
        print(f"fresh seeds from {start} on", flush=True)
    return itertools.count(start) if arguments.seeds is None else range(start, start + arguments.seeds)


def _kind(cluster: bool, shards: bool) -> str:
    return "--cluster " * cluster + "--shards " * shards


def _one(arguments: argparse.Namespace) -> int:
    result = run_seed(arguments.seed, cluster=arguments.cluster, shards=arguments.shards)
    print("\n".join(result.lines))
    print(
        f"seed {result.seed}: {result.failure or 'all promises kept'} (trace {result.digest}, {result.cpu_s:.2f} core s, "
        f"{result.lives} lives, {result.crashes} crashes, {result.simulated_h:.0f} h, {result.rows} rows)"
    )
    return 1 if result.failure else 0


def _report(result: Result) -> None:
    print(f"seed {result.seed} FAILED: {result.failure[:300]}")
    print(
        f"  replay: python -m tests.simulation {_kind(result.cluster, result.shards)}--seed {result.seed}", flush=True
    )


if __name__ == "__main__":
    sys.exit(main())
