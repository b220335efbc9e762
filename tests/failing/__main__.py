"""`python -m tests.failing`: the full sweep. Each call of the day is refused once for each errno; exit 0: nothing was lost.

About a second of processor time a call and errno.
"""

from __future__ import annotations

import argparse
import errno
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.failing.scenario import Call, calls_of_a_good_day, run

CODES = ("EIO", "EMFILE", "EACCES")


def judged(number: int, code: int) -> tuple[int, list[str]]:
    """The faults of a day without this call."""
    return number, run(number, code)[0].faults


def told(number: int, call: Call, code: str, faults: list[str]) -> str:
    """One line of the report."""
    return f"{code} at call {number} ({call.operation} {call.kind}): {faults[0]}"


def main() -> int:
    """Run all, print what went wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.failing", description=__doc__)
    parser.add_argument("--codes", default=",".join(CODES), help=f"errnos (default {','.join(CODES)})")
    parser.add_argument("--every", type=int, default=1, help="refuse each n-th call only (default 1: all)")
    parser.add_argument("--first", type=int, default=1, help="begin with this call (default 1)")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    calls = calls_of_a_good_day()
    numbers = range(options.first, len(calls) + 1, options.every)
    failed = 0
    with ProcessPoolExecutor(options.processes) as pool:
        for code in options.codes.split(","):
            refused = partial(judged, code=getattr(errno, code))
            for number, faults in pool.map(refused, numbers, chunksize=4):
                if faults:
                    failed += 1
                    print(told(number, calls[number - 1], code, faults), flush=True)
    print(f"{len(numbers)} of {len(calls)} calls refused with {options.codes}: {failed} days failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
