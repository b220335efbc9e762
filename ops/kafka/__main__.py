"""`python -m ops.kafka start`: run Kafka on this machine, to try a cluster, to test or to measure.

It needs Java 17 or newer, and Maven. The nodes go on when the command has ended, until `stop`. Their data stays in the
folder until `wipe`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ops.kafka.jars import JarsMissing, fetch, pin
from ops.kafka.nodes import NODES_MAX, QUICK, KafkaNodes, NodeFailed

ACTS = ("kill", "pause", "resume")


def main() -> int:
    """Carries out one command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ops.kafka", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("kafka-nodes"), help="of the nodes (default ./kafka-nodes)")
    parser.add_argument("--nodes", type=int, default=3, help=f"how many there are, 1 to {NODES_MAX} (default 3)")
    parser.add_argument("--port", type=int, default=21_501, help="of the first node (default 21501)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="one more setting of the nodes"
    )
    parser.add_argument(
        "--fast", action="store_true", help="Java compiles well rather than quickly: to measure throughput"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("fetch", help="fetch the jars, check them, and print their folder")
    commands.add_parser("pin", help="write the list of jars again, after a change of pom.xml")
    start = commands.add_parser("start", help="start nodes, and print their addresses when they serve")
    start.add_argument("node", type=int, nargs="*", help="only these (default all)")
    commands.add_parser("stop", help="end all nodes")
    commands.add_parser("wipe", help="kill all nodes, and remove the folder")
    commands.add_parser("status", help="print what each node does")
    for act in ACTS:
        commands.add_parser(act, help=f"{act} one node").add_argument("node", type=int)
    options = parser.parse_args()
    settings = dict(each.split("=", 1) for each in options.set)
    nodes = KafkaNodes(
        options.folder, options.nodes, options.port, settings=settings, java_options=() if options.fast else QUICK
    )
    try:
        _carry_out(nodes, options)
    except (JarsMissing, NodeFailed) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _carry_out(nodes: KafkaNodes, options: argparse.Namespace) -> None:
    match options.command:
        case "fetch":
            print(fetch())
        case "pin":
            pin()
        case "start":
            nodes.start(*options.node)
            print(nodes.bootstrap)
        case "status":
            for each in nodes.status():
                print(each.node, each.address, each.state, each.pid if each.state != "dead" else "")
        case act if act in ACTS:
            getattr(nodes, act)(options.node)
        case command:
            getattr(nodes, command)()


if __name__ == "__main__":
    sys.exit(main())
