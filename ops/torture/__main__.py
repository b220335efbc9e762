"""`python -m ops.torture --kills 300`: kill a server under load, again and again. Exit 0: every promise was kept, else 1.

`--cuts 100` instead of `--kills`: the server's file system loses power each time, on a loop device. As root, on Linux.
`--takeovers 100`: the primary of a cluster of three on Kafka is killed, stopped, cut off from Kafka, or hands over.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from ops.kafka.nodes import KafkaNodes
from ops.torture.cluster import KAFKA_PORTS, free_ports, ways_of
from ops.torture.harness import Plan, Report, StateRefused, Torture
from ops.torture.power import FILE_SYSTEMS, PowerFailed, why_not
from ops.torture.server import ServerFailed
from ops.torture.takeovers import Takeovers, table


def main() -> int:
    """Runs the torture, and prints progress to stderr and the report as JSON to stdout. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ops.torture", description=__doc__)
    parser.add_argument("--kills", type=int, default=300, help="how many times the server is killed (default 300)")
    parser.add_argument(
        "--cuts", type=int, default=0, help="lose power so many times instead (needs root, loop devices)"
    )
    parser.add_argument(
        "--takeovers", type=int, default=0, help="so many takeovers of a cluster instead (needs Java and Maven)"
    )
    parser.add_argument("--nodes", type=int, default=3, help="nodes of Kafka for --takeovers (default 3)")
    parser.add_argument("--stop-seconds", type=float, default=30.0, help="how long a primary is stopped (default 30)")
    parser.add_argument("--file-system", choices=FILE_SYSTEMS, default=FILE_SYSTEMS[0], help="of --cuts (default ext4)")
    parser.add_argument("--seed", type=int, default=1, help="of the load and of the moments; the disk has its own mind")
    parser.add_argument(
        "--directory", help="where the data goes for the time of the run (default: as the system has it)"
    )
    parser.add_argument("--run-seconds", type=float, default=1.2, help="longest time between a start and its kill")
    parser.add_argument(
        "--state", default="", help="save the run in this folder every ten kills; the same command goes on from there"
    )
    parser.add_argument("--record", help="write what was asked, answered and received to this file, a line each")
    options = parser.parse_args()
    power = options.file_system if options.cuts else ""
    if power and options.state:
        parser.error("a run of --cuts cannot be saved: leave --state out")
    if power and (missing := why_not(power)):
        sys.exit(f"no power to cut here: {missing}")

    terminal = sys.stderr.isatty()

    def say(line: str) -> None:
        print(f"\r{line}\x1b[K" if terminal else line, end="" if terminal else "\n", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="delayserver-torture-", dir=options.directory) as directory:
        log = open(options.record, "a", encoding="utf-8") if options.record else None  # noqa: SIM115  closed below
        try:
            plan = Plan(
                options.takeovers or options.cuts or options.kills,
                options.seed,
                directory,
                options.run_seconds,
                state=options.state,
                power=power,
                stop_s=options.stop_seconds,
            )
            report = _takeovers(options, plan, say, log) if options.takeovers else Torture(plan, say, log).run()
        except StateRefused as error:
            sys.exit(str(error))
        except PowerFailed as error:
            sys.exit(f"the file system failed, not the server: {error}")
        except ServerFailed as error:
            print(json.dumps({"passed": False, "violations": [f"the server did not come back: {error}"]}))
            return 1
        finally:
            if log is not None:
                log.close()
    if terminal:
        print(file=sys.stderr)
    if report.takeovers:
        print(table(report.takeovers), file=sys.stderr)
    print(json.dumps(report.to_map()))
    return 0 if report.passed else 1


def _takeovers(options: argparse.Namespace, plan: Plan, say: Callable[[str], None], log: TextIO | None) -> Report:
    port = free_ports(KAFKA_PORTS * options.nodes)
    ways = ways_of(port + 2 * options.nodes, options.nodes)
    with KafkaNodes(Path(plan.directory, "kafka"), options.nodes, port, ways=ways) as nodes:
        return Takeovers(plan, nodes, ways, say, log).run()


if __name__ == "__main__":
    sys.exit(main())
