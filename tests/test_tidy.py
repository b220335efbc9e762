"""The rules of the house that no linter knows: which room may import which, and the doors to time, disk and chance."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import TopologicalSorter
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

# Which room imports which, from the ground up. A room is a folder; `.a` is `delayserver.a`. The files directly in `store`
# and in `delayserver/broker` are the ground of their rooms. `delayserver` is `delayserver/__init__.py`.
ROOMS = """
wheel:
store:
store.disk: store
store.records: store store.disk
store.indexes: store.records
store.logs: store store.disk store.indexes store.records
store.keys: store store.disk store.records store.tables
store.shared: store store.disk store.logs store.records store.tables
store.tables: store store.disk store.logs store.records
store.snapshots: store store.disk store.logs store.tables
.logs:
.protocol:
.recurring:
.protocol.schema: .protocol
.client.values: .protocol
.metrics: .protocol
.net: .protocol
.client.tracing: .client.values .logs
.broker: store store.records
.broker.filters: store.records
.client.calls: .client.tracing .client.values .protocol .protocol.schema
.state.counts: store.records
.client.connections: .client.calls .protocol
.broker.queues: store store.disk store.logs store.records .broker
.client.asynchronous: .client.calls .client.connections .client.tracing .client.values .protocol .protocol.schema
.runtime: store store.disk store.logs store.records .logs .protocol
.members: store store.disk store.records store.shared store.tables .protocol .protocol.schema .runtime
.kafka: .logs .runtime
.targets: store.disk store.records .broker.queues .kafka .logs .net .protocol .runtime
.config: store.logs .protocol .targets
.broker.files: store store.disk store.logs store.records .broker .broker.queues
.client.blocking: .client.asynchronous .client.calls .client.connections .client.tracing .client.values .protocol
    .protocol.schema
.client.consuming: .client.asynchronous .client.calls .client.values .logs .protocol .protocol.schema
.names: store store.tables .config .protocol .runtime
.state.connections: .protocol .runtime
.recover.reading: store store.disk store.logs store.records store.shared store.tables .protocol
.state: store.logs store.records store.tables
.state.windows: wheel store.logs store.records store.tables .runtime
.tokens: store.tables .protocol .protocol.schema
.broker.actions: store store.disk store.logs store.records .broker .broker.files .broker.filters .broker.queues
.client.listening: .client.asynchronous .client.blocking .client.consuming .client.tracing .client.values .logs
    .protocol
.operations.access: store store.disk store.tables .logs .protocol .protocol.schema .runtime .state.counts .state.shard
    .tokens
.recover.checking: store store.disk store.keys store.indexes store.logs store.records store.shared store.tables .broker.files
    .protocol .recover.reading .runtime
.backup: store store.disk store.records store.shared store.snapshots store.tables .broker.files .config .recover.checking
    .recover.reading
.state.positions: store.logs store.records .config .protocol .runtime .state.counts
.state.shard: store store.disk store.logs store.records store.shared .protocol .protocol.schema .runtime .state.positions
    store.tables
.broker.service: store store.disk store.logs store.records .broker .broker.actions .broker.files .broker.queues .config
    .logs .protocol .runtime
.targets.embedded: store store.records .broker.service .protocol .state.counts .targets
.client: .client.asynchronous .client.blocking .client.calls .client.consuming .client.listening .client.values
    .protocol .protocol.schema
.receive: store store.logs store.records store.tables .config .names .protocol .runtime .state.positions .state.windows
.follow: store store.logs store.records store.shared .logs .protocol .runtime .state.positions .state.shard .state.decisions
.lead: store.shared .config .logs .protocol .runtime .state.positions .state.shard
.recover.mending: store store.disk store.keys store.logs store.records store.tables .broker.files .config .recover.checking
    .recover.reading .runtime
.recover.telling: store store.disk store.keys store.logs store.records store.tables .broker.files .protocol .recover.checking
    .recover.reading
.state.decisions: store store.indexes store.logs store.records store.tables .protocol .runtime .state.counts
    .state.positions
delayserver: .client
.cli.terminal: store .client .client.values .config .protocol .runtime
.outcomes: store store.logs store.records .config .runtime .state.decisions .state.windows
.state.memory: wheel store store.logs store.records store.tables .config .logs .runtime .state.decisions
    .state.positions .state.windows
.cli: delayserver .cli.terminal .runtime
.cli.demo: .cli.terminal .client .runtime
.cli.groups: .cli.terminal .client .client.calls .client.listening .config .runtime
.cli.messages: .cli.terminal .client .client.calls .config .protocol
.cli.kafka: .config .members .runtime .server
.cli.recover: store store.disk store.records store.tables .cli.terminal .client .client.calls .config .protocol
    .protocol.schema .recover.checking .recover.mending .recover.reading .recover.telling .runtime .cli.kafka
    .config .members
.cli.cluster: store.disk store.shared store.tables .backup .cli.backup .cli.kafka .cli.recover .cli.terminal .client
    .config .crossing .members .protocol .protocol.schema .runtime
.cli.backup: store.disk store.snapshots store.tables delayserver .backup .cli.recover .cli.terminal .client .config
    .crossing
    .protocol .runtime
.cli.schedules: .cli.messages .cli.terminal .client .config .recurring .runtime
.cli.tokens: store.disk store.tables .cli.kafka .cli.terminal .client.calls .config .members .protocol .protocol.schema
    .runtime .tokens
.dispatch: wheel store store.indexes store.logs store.records store.tables .config .logs .protocol .runtime
    .state.counts .state.decisions .state.memory .state.windows .targets
.load: wheel store store.indexes store.logs store.records .config .runtime .state.decisions .state.memory
    .state.positions .state.windows
.replay: wheel store store.disk store.indexes store.logs store.records store.tables .config .protocol .runtime .state
    .state.counts .state.decisions .state.memory .state.positions .state.shard
    .state.windows
.keys: store store.disk store.keys store.logs store.records .protocol .runtime .state .state.positions
    .state.windows
.startup: store store.disk store.logs store.records store.tables .config .logs .protocol .runtime .state .state.counts
    .state.decisions .state.memory .state.windows
.upkeep: store store.disk store.logs store.records store.tables .config .logs .protocol .runtime .state .state.counts
    .state.decisions .state.memory .state.positions .state.shard .state.windows
.web: delayserver .client .client.asynchronous .client.calls .client.connections .client.tracing .client.values
    .config .logs .metrics .net .protocol .protocol.schema .runtime
.__main__: .cli
.operations.groups: store store.records store.tables .broker .broker.actions .broker.filters .broker.queues
    .broker.service .config .names .operations.access .protocol .protocol.schema .receive .runtime .state.connections
    .state.counts .upkeep
.operations.nodes: store store.disk store.records store.snapshots store.tables delayserver .broker.actions
    .broker.service .config .dispatch
    .logs .names .protocol .protocol.schema .receive .runtime .state.memory .state.shard
.front: store .config .logs .net .operations.access .operations.nodes .protocol .runtime .state.connections
    .state.positions .state.shard
.operations.figures: store.logs store.records store.tables .broker .broker.queues .broker.service .config .dispatch
    .load .operations.access .operations.groups .operations.nodes .protocol .protocol.schema .runtime .state
    .state.connections .state.counts .state.decisions .state.memory .state.positions .state.shard .state.windows .upkeep
.operations.sending: store store.indexes store.logs store.records store.tables .broker.service .config .names
    .operations.nodes .protocol .protocol.schema .receive .recover.reading .runtime .state .state.decisions .state.positions
    .state.shard
    .state.windows .upkeep
.operations.messages: wheel store store.indexes store.keys store.logs store.records store.tables .broker.service .logs
    .keys .names
    .operations.access .operations.sending .protocol .protocol.schema .receive .recurring .runtime .state .state.counts
    .state.decisions .state.memory .state.positions .state.windows .upkeep
.operations.listing: store store.indexes store.logs store.records store.tables .broker.filters .operations.access
    .operations.groups .operations.messages .protocol .protocol.schema .runtime .state .state.counts .state.positions
    .state.windows
.operations: .operations.access .operations.figures .operations.groups .operations.listing .operations.messages
    .operations.nodes .operations.sending .state.shard
.front.handlers: store.records .config .front .operations .operations.access .operations.figures .operations.listing
    .operations.groups .operations.messages .operations.nodes .operations.sending .protocol .protocol.schema .runtime
    .state.shard
.server: wheel store store.disk store.keys .keys store.logs store.records store.tables .broker .broker.service .config
    .dispatch
    .front .front.handlers .load .logs .names .net .operations .operations.access .operations.figures .operations.groups
    .operations.listing
    .operations.messages .operations.nodes .operations.sending .outcomes .protocol .receive .replay .runtime .startup
    .state .state.connections .state.counts .state.decisions .state.memory .state.positions .state.windows .targets
    .targets.embedded .upkeep delayserver .follow .lead .state.shard store.shared .kafka .members
.crossing: store store.disk store.logs store.shared store.tables .backup .broker .broker.files .broker.service .config
    .members .runtime .server .startup .state.positions .state.shard
.cli.running: store store.disk store.records store.tables delayserver .cli.terminal .client .config .logs .net .runtime
    .server .targets .web
.embedded: store store.disk .client.asynchronous .client.blocking .client.connections .config .net .protocol .runtime .server
ops:
ops.deploy: .protocol
ops.examples: .client
ops.torture: .client .protocol .protocol.schema ops.kafka
ops.torture.shop: .client ops.torture
ops.docs: .cli .client .config .metrics .protocol .protocol.schema .web
ops.fuzz: store store.disk store.logs store.records store.tables .broker .broker.files .broker.filters .broker.queues
    .config .protocol .recover.checking .recover.telling .web
ops.kafka:
ops.bench: store.disk delayserver .cli.terminal .client .config .protocol .server ops.kafka
ops.audit: store store.disk store.indexes store.logs store.records store.shared store.tables .cli.kafka .cli.terminal .client
    .client.calls .config .kafka .protocol .runtime .state.decisions ops.bench
"""


def table(text: str) -> dict[str, set[str]]:
    """The rooms that each room may import. An indented line goes on with the line before."""
    lines = [line.partition(":") for line in text.strip().replace("\n    ", " ").splitlines()]
    return {full_name(room): {*map(full_name, others.split())} for room, _, others in lines}


def full_name(room: str) -> str:
    return f"delayserver{room}" if room.startswith(".") else room


MAY_IMPORT = table(ROOMS)

# Stages meet in `state`: none imports another.
STAGES = {
    f"delayserver.{room}"
    for room in ("receive", "follow", "lead", "replay", "load", "dispatch", "outcomes", "upkeep", "startup", "keys")
}

# What the tests of a package may import. The tests of `delayserver` and `ops` may import all packages, and each other's
# builders. Nothing imports what runs whole servers: it stands at the top.
TESTS_MAY_IMPORT: dict[str, set[str]] = {
    "wheel": {"wheel"},
    "store": {"store", "ops", "tests.fakes"},
    "fakes": {"store", "wheel", "delayserver"},
}
TOP_OF_TESTS = {"tests.simulation", "tests.crash", "tests.failing", "tests.packaging"}

# Asynchronous functions of `state`: they wait for marks and bells, and two read the outcomes of a window for who asks. Three
# are ports, which stages implement.
WAITS_IN_STATE = {
    "decided.py": {
        "wait_for_room",
        "wait_all_written",
        "pinned",
        "readable_codes",
        "_cancel_when_given_up",
        "promises_written",
        "_load_index",
    },
    "due_records.py": {"wait_answer", "take"},
    "holds.py": {"wait_released"},
    "log_queue.py": {"linger"},
    "ledger_writer.py": {"finish"},
    "outcome_writer.py": {"write"},
    "record_writer.py": {"write"},
}

# Only those who speak over a stream of bytes know frames. `operations` is not among them: it takes and returns values.
FRAMES = {"delayserver.protocol.frames", "delayserver.protocol.cancel_reply"}
FRAME_ROOMS = {
    "delayserver.protocol",
    "delayserver.client",
    "delayserver.client.calls",
    "delayserver.client.connections",
    "delayserver.client.asynchronous",
    "delayserver.client.blocking",
    "delayserver.embedded",
    "delayserver.targets",
    "delayserver.front",
    "delayserver.front.handlers",
    "ops.bench",
    "ops.fuzz",
}

# What the fine timer reads is a timer of the kernel, a file in name only.
DISK_DOORS = {"store/disk/filesystem.py", "delayserver/runtime/fine_timer.py"}
TIME_DOORS = {"delayserver/runtime/clock.py"}
# The command line reads the files and writes the temporary directories of the person who calls it; no data directory. The
# console's files belong to the package. The log writes a file of its own.
EDGES = ("delayserver/cli/", "delayserver/config/toml_file.py", "delayserver/web/pages.py", "delayserver/logs/setup.py")
# The clients draw for themselves; in the server chance is handed in, so that one seed repeats a whole simulated run.
CHANCE_DOORS = {
    "delayserver/runtime/chance.py",
    "delayserver/client/calls/retry_policy.py",
    "delayserver/client/calls/send_calls.py",
}

WALL_TIME = {"time.time", "time.time_ns", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"}
DISK_MODULES = {"shutil", "tempfile", "mmap", "fcntl", "io"}
# `fcntl` there asks a socket how much of it the peer has received.
ASKS_SOCKETS = ("delayserver/net/transport.py", "fcntl")
# What `os` is good for besides files.
OS_CALLS = {"os.environ.get", "os.getpid", "os.getppid", "os.nice", "os.register_at_fork"}
DISK_METHODS = {"read_bytes", "read_text", "write_bytes", "write_text", "unlink", "mkdir", "rmdir", "touch", "rglob"}
# Calls, not imports: a parameter may have the type random.Random.
CHANCE_CALLS = ("random.", "secrets.", "uuid.")


def sources(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


OURS = sources("delayserver", "store", "wheel")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of a tree. Many rules look at each: to walk through a tree takes longer than what they do there."""
    return tuple(ast.walk(tree))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Full names of imported modules with their lines, wherever in the file they stand."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            yield node.lineno, node.module or ""


def module_of(name: str) -> str:
    """`a.b` of the file `a/b.py` or `a/b/__init__.py`."""
    return name.removesuffix(".py").replace("/", ".").removesuffix(".__init__")


MODULES = {module_of(name_of(path)): path for path in sources(*PACKAGES)}


@cache
def modules_imported_by(module: str) -> list[tuple[int, str]]:
    """`modules_imported` of one of our modules."""
    return list(modules_imported(parsed(MODULES[module])))


def room_of(module: str) -> str:
    """The folder that a module lies in."""
    if module == "delayserver.__main__" or MODULES[module].name == "__init__.py":
        return module
    return module.rpartition(".")[0]


def modules_imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Our modules that a file imports, with lines: also for types only, and also within functions."""
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            inner = [f"{module}.{alias.name}" for alias in node.names]
            names = [name if name in MODULES else module for name in inner]
            yield from ((node.lineno, name) for name in names if name in MODULES)


def wrong_arrows(room: str, modules: Iterable[tuple[int, str]]) -> list[tuple[int, str]]:
    """Of what a file of a room imports: the rooms that its own may not import, with lines."""
    rooms = [(line, room_of(module)) for line, module in modules]
    return [(line, other) for line, other in rooms if other != room and other not in MAY_IMPORT[room]]


def dotted(node: ast.AST) -> str:
    """``a.b.c`` of an expression that is nothing but names, or the last names of it."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}".lstrip(".")
    return node.id if isinstance(node, ast.Name) else ""


def calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in nodes(tree):
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
        root = module.partition(".")[0]
        if name not in DISK_DOORS and not edge and root in DISK_MODULES and (name, root) != ASKS_SOCKETS:
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
        for line, module in wrong_imports(package, parsed(path))
    ]
    assert found == []


def test_rooms_import_the_rooms_that_they_may_import() -> None:
    found = [
        f"{name_of(path)}:{line} imports {other}"
        for module, path in MODULES.items()
        for line, other in wrong_arrows(room_of(module), modules_imported_by(module))
    ]
    assert found == []


def test_only_rooms_that_speak_over_a_stream_know_frames() -> None:
    found = [
        f"{name_of(path)}:{line} imports {other}"
        for module, path in MODULES.items()
        for line, other in modules_imported_by(module)
        if other in FRAMES and room_of(module) not in FRAME_ROOMS
    ]
    assert found == []


def test_only_rooms_that_check_messages_know_the_intake() -> None:
    """The others want names alone, which are at the desk of names."""
    intake = "delayserver.receive.intake"
    rooms = {room_of(module) for module in MODULES for _, other in modules_imported_by(module) if other == intake}
    assert rooms == {"delayserver.operations.sending", "delayserver.operations.messages", "delayserver.server"}


def test_the_table_of_rooms_has_no_arrow_that_no_file_uses() -> None:
    used = {(room_of(module), room_of(other)) for module in MODULES for _, other in modules_imported_by(module)}
    assert {(room, other) for room, others in MAY_IMPORT.items() for other in others} - used == set()


def test_stages_meet_in_state_alone() -> None:
    assert [room for room in STAGES if MAY_IMPORT[room] & STAGES] == []


Signatures = set[tuple[str, ...]]


def signatures(made: ast.ClassDef) -> Signatures:
    """The public methods of a class, each with the names of its parameters. Properties may be attributes elsewhere."""
    functions = [each for each in made.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    methods = [each for each in functions if "property" not in map(dotted, each.decorator_list)]
    return {
        (each.name, *[one.arg for one in (*each.args.args, *each.args.kwonlyargs)])
        for each in methods
        if not each.name.startswith("_")
    }


def abstract(made: ast.ClassDef) -> bool:
    """Whether a class leaves methods to others."""
    return any(dotted(base).rpartition(".")[2] in {"Protocol", "ABC"} for base in made.bases)


def implementations(protocols: Iterable[ast.AST], others: Iterable[ast.AST]) -> list[str]:
    """Classes of the other modules that have each method of a protocol of the first ones, or are derived from it."""
    wanted = [each for tree in protocols for each in nodes(tree) if isinstance(each, ast.ClassDef) and abstract(each)]
    made = [each for tree in others for each in nodes(tree) if isinstance(each, ast.ClassDef)]
    return [
        f"{each.name} is a {protocol.name}"
        for protocol in wanted
        for each in made
        if set() < signatures(protocol) <= signatures(each) or protocol.name in map(dotted, each.bases)
    ]


def rooms_below(rooms: Iterable[str]) -> set[str]:
    """These rooms, and all that they import, by whatever way."""
    found: set[str] = set()
    left = [*rooms]
    while left:
        room = left.pop()
        if room not in found:
            found.add(room)
            left += MAY_IMPORT[room]
    return found


def test_no_protocol_of_state_or_of_a_stage_is_implemented_above_the_stages() -> None:
    pipeline = {room for room in MAY_IMPORT if room.startswith((*STAGES, "delayserver.state"))}
    below = rooms_below(pipeline)
    trees = {module: parsed(path) for module, path in MODULES.items()}
    protocols = [tree for module, tree in trees.items() if room_of(module) in pipeline]
    above = [tree for module, tree in trees.items() if room_of(module) not in {*below, "ops"}]
    assert implementations(protocols, above) == [], "a stage calls up through it: let what is above take from a queue"


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("class B:\n def take(self, row): ...\n def other(self): ...", 1),
        ("class B:\n async def take(self, row): ...", 1),
        ("class B(A): ...", 1),
        ("class B:\n def take(self, other): ...", 0),
    ],
)
def test_an_implementation_of_a_protocol_is_found(code: str, count: int) -> None:
    protocol = ast.parse("class A(Protocol):\n def take(self, row): ...")
    assert len(implementations([protocol], [ast.parse(code)])) == count


def test_the_table_of_rooms_has_no_circle() -> None:
    list(TopologicalSorter(MAY_IMPORT).static_order())


def test_modules_import_each_other_without_a_circle() -> None:
    graph: dict[str, set[str]] = {module: set() for module in MODULES}
    for module in MODULES:
        for _, other in modules_imported_by(module):
            if other != module:
                graph[module].add(other)
    list(TopologicalSorter(graph).static_order())


def wrong_test_imports(name: str, tree: ast.AST) -> list[tuple[int, str]]:
    """Of what a file below `tests/` imports of ours, the packages and test rooms that it may not, with lines."""
    room = name.split("/")[1]
    found = []
    for line, module in imported(tree):
        package, inner = module.partition(".")[0], ".".join(module.split(".")[:2])
        other = inner if package == "tests" else package
        if package not in {*PACKAGES, "tests"} or other == f"tests.{room}":
            continue
        allowed = TESTS_MAY_IMPORT.get(room)
        if other in TOP_OF_TESTS or (allowed is not None and other not in allowed):
            found.append((line, module))
    return found


def test_tests_import_only_packages_that_they_may_import() -> None:
    found = [
        f"{name_of(path)}:{line} imports {module}"
        for path in sources("tests")
        if path.parent != ROOT / "tests"
        for line, module in wrong_test_imports(name_of(path), parsed(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("tests/wheel/test_runs.py", "from delayserver.server.delay_server import DelayServer"),
        ("tests/store/disk/test_filesystem.py", "from delayserver.config.settings import Settings"),
        ("tests/delayserver/state/memory/test_residency.py", "from tests.simulation.world import World"),
        ("tests/fakes/clock.py", "from tests.delayserver.client import server"),
    ],
)
def test_a_wrong_import_of_a_test_is_found(name: str, code: str) -> None:
    assert wrong_test_imports(name, ast.parse(code))


def waits(tree: ast.AST) -> set[str]:
    """The names of the asynchronous functions of a file."""
    return {node.name for node in nodes(tree) if isinstance(node, ast.AsyncFunctionDef)}


def test_state_is_synchronous_except_where_a_caller_waits() -> None:
    found = {path.name: waits(parsed(path)) for path in sources("delayserver/state") if waits(parsed(path))}
    assert found == WAITS_IN_STATE


def marks_advanced(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Calls that move one of the marks of `Positions`, with lines."""
    for line, call in calls(tree):
        if call.endswith(".advance") and "positions." in call:
            yield line, call.split(".")[-2]


def test_each_mark_has_one_writer() -> None:
    writers: dict[str, set[str]] = {}
    for path in sources("delayserver"):
        for _, mark in marks_advanced(parsed(path)):
            writers.setdefault(mark, set()).add(room_of(module_of(name_of(path))))
    assert {mark: rooms for mark, rooms in writers.items() if len(rooms) > 1} == {}


def test_every_room_has_its_line_in_the_table() -> None:
    assert {*map(room_of, MODULES)} - {name for name in MODULES if is_empty_room(name)} == set(MAY_IMPORT)


def is_empty_room(name: str) -> bool:
    """A folder whose files all lie in rooms of its own, and whose `__init__.py` imports nothing."""
    path = MODULES[name]
    if path.name != "__init__.py" or modules_imported_by(name):
        return False
    return [other.name for other in path.parent.glob("*.py")] == ["__init__.py"] and any(path.parent.glob("*/*.py"))


@pytest.mark.parametrize(
    ("room", "code"),
    [
        ("delayserver.state", "from delayserver.replay.replayer import Replayer"),
        ("delayserver.load", "import delayserver.dispatch.dispatcher"),
        ("delayserver.receive", "from delayserver.upkeep import retention"),
        ("delayserver.startup", "if TYPE_CHECKING:\n    from delayserver.server.delay_server import DelayServer"),
        ("delayserver.recover.checking", "def f():\n    from delayserver.recover.telling.dump import dump_file"),
        ("delayserver.broker.queues", "from delayserver.broker.files.store import MessageStore"),
        ("delayserver.broker.filters", "from delayserver.broker.broker_limits import BrokerLimits"),
        ("delayserver.broker.service", "from delayserver.state.memory.rows import ROW"),
        ("delayserver.client.calls", "from delayserver.config.settings import Settings"),
        ("store.records", "from store.logs.due_windows import DAY_MS"),
        ("store.disk", "from store.records.scan import Scan"),
        ("ops.torture", "from delayserver.server.process import serve"),
    ],
)
def test_a_wrong_arrow_is_found(room: str, code: str) -> None:
    assert wrong_arrows(room, modules_imported(ast.parse(code)))


def test_time_disk_and_chance_come_in_through_their_doors_alone() -> None:
    found = [
        f"{name_of(path)}:{line} uses {what}"
        for path in OURS
        for line, what in wrong_doors(name_of(path), parsed(path))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("package", "code"),
    [
        ("store", "import trio"),
        ("store", "def f():\n    from delayserver.runtime import clock"),
        ("wheel", "import store.records.segment"),
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
    assert wrong_doors("delayserver/replay/replayer.py", ast.parse(code))


def test_the_doors_are_where_this_test_thinks() -> None:
    missing = [door for door in (*DISK_DOORS, *TIME_DOORS, *CHANCE_DOORS, *EDGES) if not (ROOT / door).exists()]
    assert missing == []


@pytest.mark.parametrize("package", ["store", "wheel", "ops"])
def test_the_names_that_others_use_stay_namespaces(package: str) -> None:
    assert sources(package)
    assert not (ROOT / package / "__init__.py").exists()


def test_nothing_is_left_to_do_in_a_comment() -> None:
    left = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = [
        f"{name_of(path)}:{line} {comment.strip()}"
        for path in sources(*PACKAGES, "tests")
        if path != Path(__file__)
        if left.search(path.read_text())
        for line, comment in comments(path.read_text())
        if left.search(comment)
    ]
    assert found == []


def test_every_module_says_what_it_is() -> None:
    silent = [name_of(path) for path in sources(*PACKAGES) if not ast.get_docstring(parsed(path))]
    assert silent == []


# Attributes of objects that are a library's: `rich`, `numpy`, `ctypes`, and exceptions.
OF_LIBRARIES = {
    "self.cycle.disconnected",
    "sys.excepthook",
    "sys.unraisablehook",
    "column.justify",
    "column.flags.writeable",
    "self._set.argtypes",
    "value.seconds",
    "value.nanoseconds",
}


SETTERS = {"setattr", "delattr", "__setattr__", "__delattr__"}


def _made_here(function: ast.AST) -> set[str]:
    """Names of the locals that a function makes by a call. What a method of another object returns is not made here."""
    made = set()
    for node in nodes(function):
        values: list[tuple[ast.expr, ast.expr]] = []
        if isinstance(node, ast.Assign):
            values = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            values = [(node.target, node.value)]
        for target, value in values:
            if isinstance(target, ast.Name) and isinstance(value, ast.Call) and _makes(value.func):
                made.add(target.id)
    return made


def _makes(called: ast.expr) -> bool:
    """Whether a call is that of a class, or of a constructor that bears a name."""
    if isinstance(called, ast.Attribute) and isinstance(called.value, ast.Name):
        return called.value.id in {"cls", "object"} or called.value.id[:1].isupper() or called.attr[:1].isupper()
    return isinstance(called, ast.Name) and (called.id == "cls" or called.id.lstrip("_")[:1].isupper())


def assigned_elsewhere(tree: ast.AST) -> list[tuple[int, str]]:
    """Assignments to attributes of other objects, with their lines."""
    found = []
    functions = [node for node in nodes(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inner = {
        child
        for function in functions
        for child in nodes(function)
        if child is not function and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    for scope in [tree, *[function for function in functions if function not in inner]]:
        made = set() if scope is tree else _made_here(scope)
        for node in nodes(scope) if scope is not tree else ast.iter_child_nodes(scope):
            targets: list[ast.expr] = []
            if isinstance(node, ast.Assign):
                targets = [each for target in node.targets for each in _flat(target)]
            elif isinstance(node, ast.AugAssign | ast.AnnAssign):
                targets = [node.target]
            elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
                targets = _flat(node.target)
            elif isinstance(node, ast.With | ast.AsyncWith):
                targets = [each for item in node.items if item.optional_vars for each in _flat(item.optional_vars)]
            elif isinstance(node, ast.Delete):
                targets = [each for target in node.targets for each in _flat(target)]
            elif isinstance(node, ast.Call) and dotted(node.func).rpartition(".")[2] in SETTERS and node.args:
                found += [(node.lineno, dotted(node.func))] * (not _is_own(node.args[0], made))
            others = [each for each in targets if isinstance(each, ast.Attribute) and not _is_own(each.value, made)]
            found += [(each.lineno, dotted(each)) for each in others]
    return found


def _flat(target: ast.expr) -> list[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        return [each for part in target.elts for each in _flat(part)]
    return [target.value] if isinstance(target, ast.Starred) else [target]


def _is_own(owner: ast.expr, made: set[str]) -> bool:
    return isinstance(owner, ast.Name) and (owner.id in {"self", "cls"} or owner.id in made)


def test_no_statement_assigns_an_attribute_of_another_object() -> None:
    found = [
        f"{name_of(path)}:{line} assigns {what}"
        for path in OURS
        for line, what in assigned_elsewhere(parsed(path))
        if what not in OF_LIBRARIES and not what.endswith(("__cause__", "__context__"))
    ]
    assert found == [], "let the object change itself"


# Beside `self` and the `Runtime`. Where more are needed, a noun is missing.
PARAMETERS_MAX = 6
COLUMN = re.compile(r"NDArray\[.*\]|[IU]\d+|Ragged")


def long_constructors(tree: ast.AST) -> list[tuple[int, str]]:
    """Constructors with too many parameters, with lines. `*args` may be any number, so it is too many, but in exceptions."""
    found = []
    for made in [node for node in nodes(tree) if isinstance(node, ast.ClassDef)]:
        parameters = _fields_of_part(made)
        for function in made.body:
            if isinstance(function, ast.FunctionDef) and function.name == "__init__":
                parameters = [each.arg for each in (*function.args.args[1:], *function.args.kwonlyargs)]
                parameters += ["*"] * PARAMETERS_MAX if function.args.vararg else []
        if len([name for name in parameters if name != "runtime"]) > PARAMETERS_MAX:
            found.append((made.lineno, made.name))
    return found


def _fields_of_part(made: ast.ClassDef) -> list[str]:
    """The fields without defaults of a dataclass that does something. A class of values alone may have many. The columns of
    a table are one noun."""
    if not _is_dataclass(made) or not any(map(_acts, made.body)):
        return []
    fields = [each for each in made.body if isinstance(each, ast.AnnAssign) and each.value is None]
    others = [ast.unparse(each.target) for each in fields if not COLUMN.fullmatch(ast.unparse(each.annotation))]
    return others + ["columns"] * (len(others) < len(fields))


def _acts(node: ast.stmt) -> bool:
    """Whether a statement of a class is a method that does more than make or show a value."""
    if isinstance(node, ast.AsyncFunctionDef):
        return True
    if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
        return False
    return not any(dotted(each) in {"property", "classmethod", "staticmethod"} for each in node.decorator_list)


def test_constructors_take_few_parameters() -> None:
    found = [f"{name_of(path)}:{line} {name}" for path in OURS for line, name in long_constructors(parsed(path))]
    assert found == []


def test_a_long_constructor_is_found() -> None:
    assert long_constructors(ast.parse("class A:\n def __init__(self, a, b, c, d, e, f, runtime, *, g): ..."))
    assert not long_constructors(ast.parse("class A:\n def __init__(self, a, b, c, d, e, f, runtime): ..."))
    assert long_constructors(ast.parse("class A:\n def __init__(self, a, *others): ..."))


SEVEN = "".join(f" {name}: int\n" for name in "abcdefg")


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (SEVEN + " def act(self): ...", 1),
        (SEVEN + " async def act(self): ...", 1),
        (SEVEN, 0),
        (SEVEN + " @property\n def shown(self): ...", 0),
        (SEVEN.replace(" g: int", " g: int = 0") + " def act(self): ...", 0),
        (SEVEN.replace(" g: int", " runtime: Runtime") + " def act(self): ...", 0),
        (SEVEN.replace("int", "NDArray[np.int64]") + " def act(self): ...", 0),
    ],
)
def test_a_long_dataclass_that_acts_is_found(body: str, count: int) -> None:
    assert len(long_constructors(ast.parse(f"@dataclass(slots=True)\nclass A:\n{body}"))) == count


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("def f(self):\n    self.part.slot = 1", 1),
        ("def f(part):\n    part.slot += 1", 1),
        ("def f(parts):\n    for part in parts:\n        part.slot, other = 1, 2", 1),
        ("def f(self):\n    part = self.made()\n    part.slot = 1", 1),
        ("def f(part):\n    with opened() as part.slot: ...", 1),
        ("def f(part):\n    for part.slot in range(3): ...", 1),
        ("def f(part):\n    return [0 for part.slot in range(3)]", 1),
        ("def f(part):\n    del part.slot", 1),
        ("def f(part):\n    setattr(part, 'slot', 1)", 1),
        ("def f(part):\n    object.__setattr__(part, 'slot', 1)", 1),
        ("def f(self):\n    object.__setattr__(self, 'slot', 1)", 0),
        ("def f(self):\n    self.slot = 1", 0),
        ("def f(cls):\n    cls.slot: int = 1", 0),
        ("def f():\n    part = Part()\n    part.slot = 1", 0),
        ("def f():\n    part = Part.open()\n    part.slot = 1", 0),
        ("def f():\n    part = Part()\n    def g():\n        part.slot = 1", 0),
    ],
)
def test_an_assignment_to_an_attribute_of_another_object_is_found(code: str, count: int) -> None:
    assert len(assigned_elsewhere(ast.parse(code))) == count


# A class that takes a bundle depends on each part of it that it uses, and of a pair on both. Where it needs more, it has two
# jobs.
DEPENDENCIES_MAX = 10


def bundles(trees: Iterable[ast.AST]) -> set[str]:
    """The names of dataclasses that only hold other parts: two fields or more have classes that act."""
    classes = [node for tree in trees for node in nodes(tree) if isinstance(node, ast.ClassDef)]
    values = {made.name: made for made in classes if _is_dataclass(made)}
    parts = {made.name for made in classes if made.name not in values and any(map(_acts, made.body))}
    fields = {
        name: [ast.unparse(each.annotation) for each in made.body if isinstance(each, ast.AnnAssign)]
        for name, made in values.items()
        if not any(map(_acts, made.body))
    }
    return {name for name, types in fields.items() if sum(each in parts for each in types) > 1}


def _is_dataclass(made: ast.ClassDef) -> bool:
    called = [each.func if isinstance(each, ast.Call) else each for each in made.decorator_list]
    return "dataclass" in map(dotted, called)


def dependencies(made: ast.ClassDef, known: set[str]) -> list[str]:
    """What a class gets by its constructor, with the parts of bundles and of tuples one by one."""
    init = next((each for each in made.body if isinstance(each, ast.FunctionDef) and each.name == "__init__"), None)
    found: list[str] = []
    if init is None:
        return []
    for each in (*init.args.args[1:], *init.args.kwonlyargs):
        of = each.annotation
        if of is not None and ast.unparse(of) in known:
            found += _used_of(made, init, each.arg)
        elif isinstance(of, ast.Subscript) and dotted(of.value) == "tuple" and isinstance(of.slice, ast.Tuple):
            found += [f"{each.arg}[{place}]" for place in range(len(of.slice.elts))]
        else:
            found.append(each.arg)
    return found


def _used_of(made: ast.ClassDef, init: ast.FunctionDef, name: str) -> list[str]:
    """The attributes that a class uses of a parameter, or of the field that keeps it. `*`: it hands the whole on."""
    kept = {
        dotted(target)
        for node in nodes(init)
        if isinstance(node, ast.Assign) and dotted(node.value) == name
        for target in node.targets
    }
    found = set()
    for owners, scope in (({name}, init), (kept, made)):
        for node in nodes(scope):
            if isinstance(node, ast.Attribute) and dotted(node.value) in owners:
                found.add(f"{name}.{node.attr}")
            elif isinstance(node, ast.Call) and any(dotted(arg) in owners for arg in node.args):
                found.add(f"{name}.*")
    return sorted(found) or [name]


def test_classes_have_few_dependencies_when_their_bundles_are_unpacked() -> None:
    known = bundles(map(parsed, OURS))
    counts = [
        (node.name, len(dependencies(node, known)))
        for path in OURS
        for node in nodes(parsed(path))
        if isinstance(node, ast.ClassDef)
    ]
    assert [f"{name} {count}" for name, count in sorted(counts) if count > DEPENDENCIES_MAX] == []


def takers_of_all_parts(tree: ast.AST) -> list[str]:
    """The classes whose constructor takes the bundle of all bundles, and so may reach every part of the server."""
    return [
        made.name
        for made in nodes(tree)
        if isinstance(made, ast.ClassDef)
        for init in made.body
        if isinstance(init, ast.FunctionDef) and init.name == "__init__"
        if any(each.annotation is not None and ast.unparse(each.annotation) == "Parts" for each in init.args.args)
    ]


def test_no_class_takes_all_parts_of_the_server() -> None:
    assert [name for path in OURS for name in takers_of_all_parts(parsed(path))] == []
    assert takers_of_all_parts(ast.parse("class A:\n def __init__(self, parts: Parts): ...")) == ["A"]


BUNDLE = """
class A:
    def act(self): ...
@dataclass(frozen=True)
class Two:
    a: A
    b: A
    c: int
"""


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("class C:\n def __init__(self, two: Two, d): self._a, self._b = two.a, two.b", 3),
        ("class C:\n def __init__(self, two: Two): self._two = two\n def f(self): return self._two.a, self._two.b", 2),
        ("class C:\n def __init__(self, two: Two): self._a, self._d = two.a, D(two)", 2),
        ("class C:\n def __init__(self, two: tuple[A, A], *, d: int): ...", 3),
        ("class C:\n def __init__(self, two: A, many: tuple[A, ...]): ...", 3),
        ("class C: ...", 0),
    ],
)
def test_dependencies_are_counted_after_unpacking(code: str, count: int) -> None:
    known = bundles([ast.parse(BUNDLE)])
    assert known == {"Two"}
    (made,) = [node for node in ast.parse(code).body if isinstance(node, ast.ClassDef)]
    assert len(dependencies(made, known)) == count


# A public method that only puts values into fields, and that one other class alone calls, belongs into the act that needs
# it. Of these each says why it stands alone. Each line may only go.
SETTERS_OF_ONE = """
# A record of one class, which stands beside it in the file or is named there: no other object's attribute is assigned.
FlowShare.see_backlog
FlowShare.set_window
MemoryShare.grant
MemoryShare.note_come
PullActor.set_ticket
PullActor.suspend
# The caller knows an interface alone: that of a library, or of leases of two kinds.
AsyncioStream.pause_writing
Handling.lose
Held.lose
# A start reads it from files that the owner does not know.
ConsumeQueue.go_on_at
Cursor.end_returns
Holds.hold_at_start
Holds.release_start
ProgressNotes.mark_ahead
WindowBook.note_orphans
# Work on a disk or in a thread has ended, which the owner cannot see.
FileState.name_is_durable
MessageLog.give_up_preparing
Positions.end_drained
QueueTable.end_capture
# The caller alone sees the event, and later answers of the owner depend on it.
BrokerRecords.give_to
BrokerStore.keep_made
Connection.take_notices
GroupCursors.owe_turn
GroupRows.may_be_elsewhere
NodeHealth.weigh
PullBudget.mark_fresh
Readiness.pause_while
"""


def setters(tree: ast.AST) -> Iterator[str]:
    """`Class.method` of the public methods that do nothing but put values from outside into fields of their own."""
    for made in [node for node in nodes(tree) if isinstance(node, ast.ClassDef)]:
        for method in made.body:
            if isinstance(method, ast.FunctionDef) and method.name[0] != "_" and not method.decorator_list:
                body = [node for node in method.body if not isinstance(node, ast.Assert) and not _is_text(node)]
                if body and all(map(_sets_field, body)):
                    yield f"{made.name}.{method.name}"


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _sets_field(node: ast.stmt) -> bool:
    """Whether a value replaces that of a field. A new value that is made from the old ones, such as a count, is an act."""
    if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
        return False
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    of_itself = any(isinstance(each, ast.Name) and each.id == "self" for each in nodes(node.value))
    return not of_itself and all(isinstance(each, ast.Attribute) and dotted(each.value) == "self" for each in targets)


def users(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """By the name of an attribute: the classes, and modules outside of a class, that read it of another object."""
    found: dict[str, set[str]] = {}
    for name, tree in trees.items():
        for top in tree.body:
            user = f"{name}:{top.name}" if isinstance(top, ast.ClassDef) else name
            for node in nodes(top):
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load) and dotted(node.value) != "self":
                    found.setdefault(node.attr, set()).add(user)
    return found


def test_no_public_setter_has_one_caller_alone() -> None:
    trees = {name_of(path): parsed(path) for path in sources("delayserver", "store", "wheel")}
    callers = users(trees)
    found = {each for tree in trees.values() for each in setters(tree) if len(callers.get(each.split(".")[1], ())) == 1}
    lines = SETTERS_OF_ONE.strip().splitlines()
    assert sorted(found) == sorted(line for line in lines if not line.startswith("#"))


def test_a_setter_and_its_callers_are_found() -> None:
    code = 'class A:\n def put(self, b):\n  """Text."""\n  self.b = b\n def act(self):\n  self.b = 1\n  return 2'
    code += "\n def count(self):\n  self.b += 1\n def derive(self, c):\n  self.b = max(self.b, c)"
    code += "\n def call(self):\n  self.b = 1\n  f()"
    other = "class B:\n def f(self, a):\n  a.put(1)\ndef g(a):\n  a.put(2)"
    assert [*setters(ast.parse(code))] == ["A.put"]
    assert users({"x": ast.parse(other)})["put"] == {"x:B", "x"}


# Where tests reach into private parts, because no public door shows the same or makes the same fault: each place says why.
REACHES_OF_TESTS = """
delayserver/broker/service/test_pulls.py: _actors
delayserver/cli/demo/test_demo.py: _note _progress
delayserver/client/both.py: _connection _core _waiters
delayserver/dispatch/test_message_reader.py: _parts
delayserver/embedded/places.py: _running
delayserver/load/test_refill.py: _files
delayserver/net/sockets.py: _socket
delayserver/operations/sending/test_long_texts.py: _mix_in
delayserver/recover/telling/test_told_plainly.py: _RowGroups
delayserver/runtime/test_watchdog.py: _parts
delayserver/server/test_rare_storage.py: _finder _stretches
delayserver/state/memory/test_group_queue.py: _chunks
failing/scenario.py: _ALLOW_DETERMINISTIC_SCHEDULING _r
forked.py: _run_exitfuncs _shutdown
ops/audit/evidence.py: _capture _evidence
ops/torture/test_judging.py: _loop
simulation/cluster_mistakes.py: _standing _take_records
simulation/mistakes.py: _Moment _end _naming
simulation/network.py: _closed
simulation/run.py: _ALLOW_DETERMINISTIC_SCHEDULING _r
wheel/test_cursors.py: _windows
"""


def reaches(tree: ast.AST) -> set[str]:
    """The private attributes of other objects that a module uses."""
    return {
        node.attr
        for node in nodes(tree)
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and ast.unparse(node.value) not in ("self", "cls", "super()")
        and ast.unparse(node) != "os._exit"
    }


def test_tests_reach_into_private_parts_only_at_the_places_of_this_table() -> None:
    tests = ROOT / "tests"
    found = {path.relative_to(tests).as_posix(): reaches(parsed(path)) for path in sorted(tests.rglob("*.py"))}
    lines = [f"{path}: {' '.join(sorted(names))}" for path, names in found.items() if names]
    assert lines == REACHES_OF_TESTS.strip().splitlines()


def test_a_reach_into_a_private_part_is_found() -> None:
    assert reaches(ast.parse("self._a; other._b; super()._c; os._exit(1); x.__dict__; f(y)._d")) == {"_b", "_d"}


# A reader who greps for a name finds the one thing. `errors.py` has the errors of the protocol, and in `store` its own.
REPEATED_CLASSES = """

"""
REPEATED_FILES = """
errors.py
"""
# /openapi.json shows the names of these classes, and VERSIONING.md keeps those of the client: one noun may stand in both.
SHOWN = "delayserver/web/schemas.py"
# The twin of a file in `client/asynchronous`, made by `ops/blocking_client.py`.
TWINS = "delayserver/client/blocking/"
# A request has one name wherever it passes: a file here may bear that of the file of its operation.
OF_REQUESTS = ("delayserver/protocol/schema/", "delayserver/front/handlers/")


def repeated(named: Iterable[tuple[str, str]]) -> list[str]:
    """Names that stand in two places or more, of (name, place)."""
    count = Counter(name for name, _ in named)
    return sorted(name for name, times in count.items() if times > 1)


def public_classes(modules: Iterable[tuple[str, ast.Module]]) -> list[tuple[str, str]]:
    """(name, place) of the classes of modules, without documents of HTTP that bear the name of a class of the client."""
    all_of_them = [(node.name, name) for name, tree in modules for node in tree.body if isinstance(node, ast.ClassDef)]
    of_client = {name for name, place in all_of_them if place.startswith("delayserver/client/")}
    return [each for each in all_of_them if each[0][0] != "_" and not (each[1] == SHOWN and each[0] in of_client)]


def test_each_public_class_has_a_name_of_its_own() -> None:
    places = public_classes((name_of(path), parsed(path)) for path in OURS)
    assert repeated(places) == sorted(REPEATED_CLASSES.split()), "give it a name of its own, or shorten the list"


def is_named_by_rule(path: Path, operations: set[str]) -> bool:
    """Whether another file rightly has this name. A command has a file of its name."""
    name = name_of(path)
    if name.startswith("delayserver/cli/"):
        return any(isinstance(node, ast.FunctionDef) and node.name == path.stem for node in parsed(path).body)
    return name.startswith(TWINS) or (name.startswith(OF_REQUESTS) and path.name in operations)


def test_each_module_has_a_file_name_of_its_own() -> None:
    operations = {path.name for path in sources("delayserver/operations")}
    files = [path for path in OURS if path.name != "__init__.py" and not is_named_by_rule(path, operations)]
    found = repeated((path.name, name_of(path)) for path in files)
    assert found == sorted(REPEATED_FILES.split()), "rename it, or shorten the list"


@pytest.mark.parametrize(
    ("rooms", "found"),
    [
        (["delayserver/load/a.py", SHOWN], ["A"]),
        (["delayserver/client/values/a.py", "delayserver/client/calls/a.py"], ["A"]),
        (["delayserver/client/values/a.py", SHOWN], []),
    ],
)
def test_a_repeated_name_is_found(rooms: list[str], found: list[str]) -> None:
    assert repeated(public_classes((room, ast.parse("class A: ...\nclass _B: ...")) for room in rooms)) == found


_CONTAINERS = {"Counter", "OrderedDict", "SortedDict", "SortedList", "defaultdict", "deque", "dict", "list", "set"}
_DISPLAYS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)


def containers_without_writer(tree: ast.Module) -> list[str]:
    """Public classes that make a container for themselves, where no docstring says who writes."""
    silent = []
    for made in nodes(tree):
        if isinstance(made, ast.ClassDef) and not made.name.startswith("_"):
            values = [
                node.value
                for node in ast.walk(made)
                if isinstance(node, ast.Assign | ast.AnnAssign) and "self." in ast.unparse(node).split("=")[0]
            ]
            has_any = any(
                isinstance(value, _DISPLAYS)
                or (isinstance(value, ast.Call) and dotted(value.func).rpartition(".")[2] in _CONTAINERS)
                for value in values
            )
            documented = [made, tree, *[part for part in made.body if isinstance(part, ast.FunctionDef)]]
            texts = [ast.get_docstring(part) or "" for part in documented if isinstance(part, _DOCUMENTED)]
            if has_any and not any(re.search(r"[Ww]riters?\b", text) for text in texts):
                silent.append(made.name)
    return silent


_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)


def test_each_container_of_state_names_its_writer() -> None:
    found = {name_of(path): containers_without_writer(parsed(path)) for path in sources("delayserver/state")}
    assert {name: classes for name, classes in found.items() if classes} == {}


@pytest.mark.parametrize(
    ("docstring", "value", "count"),
    [("Rows.", "[]", 1), ("Rows. Writer: the start.", "{}", 0), ("Rows.", "deque()", 1), ("Rows.", "0", 0)],
)
def test_a_container_without_a_writer_is_found(docstring: str, value: str, count: int) -> None:
    code = f'class Rows:\n    """{docstring}"""\n    def __init__(self):\n        self._rows = {value}'
    assert len(containers_without_writer(ast.parse(code))) == count


# A class that forwards more calls than this is a face: its callers should meet the part that does the work.
FORWARDS_MAX = 4
# The two kinds of window files share it, and their callers need not know the table of files behind it.
FACES = {"WindowLog": 7}
PASSED_ON = (ast.Name, ast.Load, ast.Tuple, ast.Starred, ast.keyword)


def forwards(tree: ast.AST) -> Iterator[str]:
    """The classes of the public methods that only pass their arguments on to a private part, one for each method."""
    for made in [node for node in nodes(tree) if isinstance(node, ast.ClassDef)]:
        for method in made.body:
            if not isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) or method.name.startswith("_"):
                continue
            call = getattr(method.body[-1], "value", None)
            call = call.value if isinstance(call, ast.Await) else call
            if len(method.body) != 2 or not isinstance(call, ast.Call):  # the first one is the docstring
                continue
            given = [node for argument in (*call.args, *call.keywords) for node in ast.walk(argument)]
            if re.fullmatch(r"self\._\w+\..+", dotted(call.func)) and all(
                isinstance(node, PASSED_ON) for node in given
            ):
                yield made.name


def test_no_class_is_a_face() -> None:
    count = Counter(name for path in OURS for name in forwards(parsed(path)))
    assert {name: times for name, times in count.items() if times > FORWARDS_MAX} == FACES


def test_a_method_that_forwards_is_found() -> None:
    code = 'class A:\n def f(self, a, b):\n  "Does."\n  return self._part.{}'
    assert [list(forwards(ast.parse(code.format(call)))) for call in ("g((a, b))", "b.g(*a, c=b)", "g(a + 1)")] == [
        ["A"],
        ["A"],
        [],
    ]


# Names of events. A method that acts has an imperative verb instead: `order.ended()` does not say what the call does.
EVENTS = {
    *(
        "answered",
        "arrived",
        "asked",
        "began",
        "came",
        "delivered",
        "ended",
        "failed",
        "finished",
        "found",
        "freed",
        "gone",
    ),
    *(
        "left",
        "lost",
        "made",
        "met",
        "moved",
        "opened",
        "prepared",
        "raised",
        "refused",
        "removed",
        "said",
        "saw",
        "seen",
    ),
    *("settled", "stand", "stands", "started", "stored", "told", "took", "went", "worked", "wrote", "written"),
}
# What a method with such a name may return: it is a question, or it makes the value that it names.
MAY_ASK = {"bool", "int", "Mask", "NDArray[np.bool_]", "NDArray[np.bool_] | None", "Self"}
# A value of the client, whose users know the name.
EVENTS_LEFT = {"ColumnsSent.told"}


def named_for_event(tree: ast.AST) -> Iterator[str]:
    """`Class.method` of the public methods that are named for an event and are neither a property nor a question."""
    for made in [node for node in nodes(tree) if isinstance(node, ast.ClassDef)]:
        for method in made.body:
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef):
                answer = "" if method.returns is None else ast.unparse(method.returns)
                is_event = method.name in EVENTS or method.name.split("_")[0] in {"was", "were", "could"}
                if is_event and answer not in MAY_ASK and not any(map(_is_property, method.decorator_list)):
                    yield f"{made.name}.{method.name}"


def _is_property(decorator: ast.expr) -> bool:
    return dotted(decorator).endswith("property")


def test_no_method_is_named_for_an_event() -> None:
    found = {each for path in sources("delayserver", "store", "wheel") for each in named_for_event(parsed(path))}
    assert found == EVENTS_LEFT


@pytest.mark.parametrize(
    ("method", "count"),
    [
        ("def ended(self) -> None: ...", 1),
        ("async def were_read(self) -> list[int]: ...", 1),
        ("def ended(self) -> bool: ...", 0),
        ("@property\n def ended(self) -> str: ...", 0),
        ("def end(self) -> None: ...", 0),
    ],
)
def test_a_method_named_for_an_event_is_found(method: str, count: int) -> None:
    assert len(list(named_for_event(ast.parse(f"class A:\n {method}")))) == count
