"""The record of a long run: one JSON line a seed, with the digests of the server and of the judge that ran it, so that a run
can be resumed and "all on the final code" can be checked.

A mend of the simulation alone takes nothing from the seeds that the server has passed: of those it repeats what failed.
"""

from __future__ import annotations

import ast
import hashlib
import json
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.simulation.run import Result

ROOT = Path(__file__).resolve().parents[2]
# Runs a seed; what it imports, and so on, is what a seed's trace depends on.
START = "tests/simulation/run.py"
# Functions import these, when a seed needs them first.
IMPORTED_LATER = ("delayserver/broker/filters/parser.py",)
# The simulation, and the client of the library that sends in it.
JUDGES = ("tests/", "delayserver/client/")


class Code(NamedTuple):
    """Digests, 16 hex digits each, over the names and bytes of Python files that a seed runs: those of the server, and
    those of the simulation and of the client around it."""

    server: str
    judge: str

    def __str__(self) -> str:
        return f"{self.server} judged by {self.judge}"


def code_digest(root: Path = ROOT) -> Code:
    """Of the code as it stands."""
    server, judge = hashlib.sha256(), hashlib.sha256()
    for path in files_of_a_seed(root):
        name = path.relative_to(root).as_posix()
        digest = judge if name.startswith(JUDGES) else server
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return Code(server.hexdigest()[:16], judge.hexdigest()[:16])


def files_of_a_seed(root: Path = ROOT) -> list[Path]:
    """Our files that a seed reaches through imports of modules. The command line and most tools are not among them: what is
    changed there takes nothing from the seeds that ran."""
    found = {path for path in [root / START, *(root / later for later in IMPORTED_LATER)] if path.is_file()}
    new = [*found]
    while new:
        for name in _imported(new.pop()):
            parts = name.split(".")
            # A name of something in a module has no file of its own; the module and its packages have.
            for count in range(1, len(parts) + 1):
                base = root.joinpath(*parts[:count])
                for path in (base.with_suffix(".py"), base / "__init__.py"):
                    if path not in found and path.is_file():
                        found.add(path)
                        new.append(path)
    return sorted(found)


def _imported(path: Path) -> Iterator[str]:
    nodes: list[ast.AST] = [ast.parse(path.read_bytes())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None and not node.level, f"{path}: imports are absolute here"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not _for_types(node):
            nodes += ast.iter_child_nodes(node)


def _for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


@dataclass(frozen=True, slots=True)
class Summary:
    """Of the seeds in a record that ran on one server."""

    code: Code
    judges: int
    """How many versions of the simulation ran them."""
    seeds: int
    failed: list[str]
    """Their arguments for the command."""
    core_s_median: float
    core_s_ninth_tenth: float
    crashes: int
    crashes_median: float
    flips: int
    hours_median: float
    others: int
    """Lines of other code."""

    def text(self) -> str:
        """For people."""
        judges = "" if self.judges <= 1 else f" by {self.judges} versions of the simulation"
        lines = [
            f"server {self.code.server}: {self.seeds} seeds{judges}, {len(self.failed)} failed "
            f"({self.others} more lines are of other code)"
        ]
        if self.seeds:
            lines.append(
                f"core seconds: {self.core_s_median:.3f} at the median, {self.core_s_ninth_tenth:.3f} in nine of ten; "
                f"crashes: {self.crashes}, {self.crashes_median:g} at the median; simulated days at the median: "
                f"{self.hours_median / 24:.0f}; bits flipped: {self.flips}"
            )
        lines += [f"failed: python -m tests.simulation {seed}" for seed in self.failed]
        return "\n".join(lines)


class Record:
    """A file of JSON lines. A line that a killed run left half written is passed over."""

    def __init__(self, path: Path, code: Code) -> None:
        self._path = path
        self._code = code

    def lines(self) -> list[dict[str, Any]]:
        """All whole lines; of a seed that ran twice on one server the last one."""
        if not self._path.exists():
            return []
        found: dict[tuple[str, bool, bool, int], dict[str, Any]] = {}
        for text in self._path.read_text().splitlines():
            try:
                line = json.loads(text)
                # Lines of before there were clusters, or several shards, do not say it.
                line.setdefault("cluster", False)
                line.setdefault("shards", False)
                found[line["server"], line["cluster"], line["shards"], line["seed"]] = line
            except (ValueError, KeyError):
                continue
        return list(found.values())

    def done(self, *, cluster: bool = False, shards: bool = False) -> set[int]:
        """Seeds that the present server has run already, but for those that failed before another judge."""
        kind = self._code.server, cluster, shards
        mine = [line for line in self.lines() if (line["server"], line["cluster"], line["shards"]) == kind]
        return {line["seed"] for line in mine if not line["failure"] or line["judge"] == self._code.judge}

    def append(self, result: Result) -> None:
        """Add one seed."""
        line = {
            "seed": result.seed,
            "cluster": result.cluster,
            "shards": result.shards,
            "server": self._code.server,
            "judge": self._code.judge,
            "failure": result.failure,
            "cpu_s": round(result.cpu_s, 3),
            "crashes": result.crashes,
            "flips": result.flips,
            "hours": round(result.simulated_h),
            "trace": result.digest,
        }
        with self._path.open("a") as file:
            if file.tell() and not self._path.read_bytes().endswith(b"\n"):
                file.write("\n")
            file.write(json.dumps(line) + "\n")

    def summary(self) -> Summary:
        """What the present server has run."""
        lines = self.lines()
        mine = [line for line in lines if line["server"] == self._code.server]
        costs = sorted(line["cpu_s"] for line in mine) or [0.0]
        return Summary(
            self._code,
            len({line["judge"] for line in mine}),
            len(mine),
            [
                f"{'--cluster ' * line['cluster']}{'--shards ' * line['shards']}--seed {line['seed']}"
                for line in sorted(mine, key=lambda line: (line["cluster"], line["shards"], line["seed"]))
                if line["failure"]
            ],
            statistics.median(costs),
            costs[len(costs) * 9 // 10],
            sum(line["crashes"] for line in mine),
            statistics.median([line["crashes"] for line in mine] or [0]),
            sum(line["flips"] for line in mine),
            statistics.median([line["hours"] for line in mine] or [0]),
            len(lines) - len(mine),
        )
