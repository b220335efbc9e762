"""`python -m ops.torture.shop --minutes 30`: a server lives as users have it live.

Exit 0: it kept its promises, and its memory, open files, disk and round trips stayed flat; else 1.
"""

from __future__ import annotations

import argparse
import json
import logging
import socket
import sys
import tempfile

import trio

from ops.torture.harness import code_digest
from ops.torture.server import ServerFailed
from ops.torture.shop.day import Day, DayPlan


def free_ports() -> tuple[int, int]:
    """Two ports for a server that is restarted: its clients come back to the same address."""
    with socket.socket() as first, socket.socket() as second:
        first.bind(("127.0.0.1", 0))
        second.bind(("127.0.0.1", 0))
        return first.getsockname()[1], second.getsockname()[1]


def main() -> int:
    """Runs the day. Lines over time go to stderr, the report as JSON to stdout. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ops.torture.shop", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="the length of the day (default 30)")
    parser.add_argument("--restart-every", type=float, default=150.0, help="seconds between two restarts (default 150)")
    parser.add_argument("--rate", type=float, default=1.0, help="how busy the shop is; 1: some 250 messages a second")
    parser.add_argument("--seed", type=int, default=1, help="of what the actors do")
    parser.add_argument(
        "--directory", help="where the data goes for the time of the run (default: as the system has it)"
    )
    parser.add_argument("--line-every", type=float, default=10.0, help="seconds between two lines (default 10)")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="delayserver-shop-", dir=options.directory) as directory:
        plan = DayPlan(
            options.minutes * 60, options.seed, directory, options.restart_every, options.rate, options.line_every
        )
        day = Day(plan, free_ports(), lambda line: print(line, file=sys.stderr, flush=True))
        # Handlers fail on purpose, and each restart cuts thousands of pulls off.
        logging.disable(logging.CRITICAL)
        try:
            report = trio.run(day.run)
        except ServerFailed as error:
            print(json.dumps({"passed": False, "violations": [f"the server did not come back: {error}"]}))
            return 1
        finally:
            logging.disable(logging.NOTSET)
    report.code = code_digest()
    print(json.dumps(report.to_map()))
    return 0 if report.passed else 1


if __name__ == "__main__":
    sys.exit(main())
