"""The rules of the house that no linter knows: who may import whom, the doors to time, disk and chance, and size."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("delayserver", "store", "wheel", "ops")

FORBIDDEN_IMPORTS = {
    "wheel": {"store", "delayserver", "ops", "tests", "trio", "anyio"},
    "store": {"wheel", "delayserver", "ops", "tests", "trio", "anyio"},
    "delayserver": {"ops", "tests"},
    "ops": {"wheel", "tests"},
}

# What the fine timer reads is a timer of the kernel, a file in name only.
DISK_DOORS = {"store/filesystem.py", "delayserver/fine_timer.py"}
TIME_DOORS = {"delayserver/clock.py"}
# The command line reads the files and writes the temporary directories of the person who calls it; no data directory.
EDGES = ("delayserver/cli/", "delayserver/config.py")
# The clients draw for themselves; in the server chance is handed in, so that one seed repeats a whole simulated run.
CHANCE_DOORS = {"delayserver/chance.py", "delayserver/client/retries.py", "delayserver/client/send_calls.py"}

WALL_TIME = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
DISK_MODULES = {"shutil", "tempfile", "mmap", "fcntl", "io"}
# What `os` is good for besides files.
OS_CALLS = {"os.getpid", "os.register_at_fork"}
DISK_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "unlink", "mkdir", "rmdir", "touch", "rglob"}
# Calls, not imports: a parameter may have the type random.Random.
CHANCE_CALLS = ("random.", "secrets.", "uuid.")

# A file is one noun; past this it has become two. Tests hold tables of cases as well.
LINES_MAX = 420
TEST_LINES_MAX = 600


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Full names of imported modules with their lines, wherever in the file they stand."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.lineno, node.module or ""


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an expression that is nothing but names, or the last names of it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield node.lineno, dotted(node.func)


def wrong_imports(package: str, tree: ast.AST) -> list[tuple[int, str]]:
    return [(line, name) for line, name in imported(tree) if name.partition(".")[0] in FORBIDDEN_IMPORTS[package]]


def reaches_disk(call: str) -> bool:
    by_os = call.startswith("os.") and call not in OS_CALLS
    return by_os or call == "open" or call.rpartition(".")[2] in DISK_METHODS


def wrong_doors(name: str, tree: ast.AST) -> list[tuple[int, str]]:
    """Calls and imports by which a file goes around the doors."""
    wrong = []
    edge = name.startswith(EDGES)
    for line, call in calls(tree):
        if name not in TIME_DOORS and ".".join(call.split(".")[-2:]) in WALL_TIME:
            wrong.append((line, call))
        if name not in DISK_DOORS and not edge and reaches_disk(call):
            wrong.append((line, call))
        if name not in CHANCE_DOORS and call.removeprefix("np.").removeprefix("numpy.").startswith(CHANCE_CALLS):
            wrong.append((line, call))
    for line, module in imported(tree):
        if name not in DISK_DOORS and not edge and module.partition(".")[0] in DISK_MODULES:
            wrong.append((line, module))
    return wrong


def comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and token.string.startswith('"""')):
            yield token.start[0], token.string


@pytest.mark.parametrize("package", PACKAGES)
def test_imports_go_one_way(package: str) -> None:
    found = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources(package)
        for line, module in wrong_imports(package, ast.parse(path.read_text()))
    ]
    assert found == []


def test_time_disk_and_chance_come_in_through_their_doors_alone() -> None:
    found = [
        f"{name_of(path)}:{line} uses {what}"
        for path in sources("delayserver", "store", "wheel")
        for line, what in wrong_doors(name_of(path), ast.parse(path.read_text()))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("store", "import trio"),
        ("store", "def f():\n    from delayserver import clock"),
        ("wheel", "import store.segment"),
        ("delayserver", "import ops.bench"),
    ],
)
def test_a_wrong_import_is_found(package: str, code: str) -> None:
    assert wrong_imports(package, ast.parse(code))


@pytest.mark.parametrize(
    "code",
    [
        "import time\ntime.time()",
        "import datetime\ndatetime.datetime.now()",
        "open('x')",
        "import os\nos.replace('a', 'b')",
        "import shutil",
        "import random\nrandom.random()",
        "import uuid\nuuid.uuid4()",
        "import numpy as np\nnp.random.default_rng()",
        "Path('x').read_bytes()",
    ],
)
def test_a_way_around_a_door_is_found(code: str) -> None:
    assert wrong_doors("delayserver/replayer.py", ast.parse(code))


def test_the_doors_are_where_this_test_thinks() -> None:
    missing = [door for door in (*DISK_DOORS, *TIME_DOORS, *CHANCE_DOORS, *EDGES) if not (ROOT / door).exists()]
    assert missing == []


@pytest.mark.parametrize("package", ["store", "wheel", "ops"])
def test_the_names_that_others_use_stay_namespaces(package: str) -> None:
    assert sources(package)
    assert not (ROOT / package / "__init__.py").exists()


def test_no_file_has_grown_past_one_noun() -> None:
    bounds = [(path, LINES_MAX) for path in sources(*PACKAGES)] + [(path, TEST_LINES_MAX) for path in sources("tests")]
    lengths = {name_of(path): len(path.read_text().splitlines()) for path, bound in bounds}
    too_long = {name_of(path): lengths[name_of(path)] for path, bound in bounds if lengths[name_of(path)] > bound}
    assert too_long == {}


def test_nothing_is_left_to_do_in_a_comment() -> None:
    left = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{name_of(path)}:{line} {comment.strip()}"
        for path in sources(*PACKAGES, "tests")
        if path != Path(__file__)
        for line, comment in comments(path.read_text())
        if left.search(comment)
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in sources(*PACKAGES) if not ast.get_docstring(ast.parse(path.read_text()))]
    assert silent == []
