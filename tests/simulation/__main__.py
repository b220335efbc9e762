"""`python -m tests.simulation --seeds N`: run seeds, one after the other; stop never, report all."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

from tests.simulation.run import Result, run_seed

LINES_SHOWN = 60


def main() -> int:
    """Run what is asked for; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="start", help="the first one")
    parser.add_argument("--seed", type=int, help="this one alone, with its whole trace")
    parser.add_argument("--record", type=Path, help="append results to this file, and skip seeds that are in it")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        return _one(arguments.seed)
    known = _known(arguments.record)
    failed = 0
    costs: list[float] = []
    for seed in range(arguments.start, arguments.start + arguments.seeds):
        if seed in known:
            continue
        result = run_seed(seed)
        costs.append(result.cpu_s)
        if result.failure:
            failed += 1
            _report(result)
        if arguments.record is not None:
            _append(arguments.record, result)
    if costs:
        print(f"{len(costs)} seeds, {failed} failed, {statistics.median(costs):.3f} core seconds at the median")
    return 1 if failed else 0


def _one(seed: int) -> int:
    result = run_seed(seed)
    print("\n".join(result.lines))
    print(
        f"seed {seed}: {result.failure or 'all promises kept'} (trace {result.digest}, {result.cpu_s:.2f} core s, "
        f"{result.lives} lives, {result.crashes} crashes, {result.simulated_h:.0f} h, {result.rows} rows)"
    )
    return 1 if result.failure else 0


def _report(result: Result) -> None:
    print(f"seed {result.seed} FAILED: {result.failure[:300]}")
    print(f"  replay: python -m tests.simulation --seed {result.seed}", flush=True)


def _known(record: Path | None) -> set[int]:
    if record is None or not record.exists():
        return set()
    return {json.loads(line)["seed"] for line in record.read_text().splitlines()}


def _append(record: Path, result: Result) -> None:
    line = {
        "seed": result.seed,
        "digest": result.digest,
        "failure": result.failure,
        "cpu_s": round(result.cpu_s, 3),
        "crashes": result.crashes,
        "hours": round(result.simulated_h),
    }
    with record.open("a") as file:
        file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    sys.exit(main())
