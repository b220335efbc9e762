"""Runs nodes of Kafka on this machine, for tests and measurements: brokers that are controllers too, without ZooKeeper.

All that a set of nodes has is in one folder: data, logs, settings and process ids. So another process can go on with it.
Nothing here is for production: nodes listen on 127.0.0.1 without a password.
"""

from __future__ import annotations

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from ops.kafka.jars import FOLDER, fetch

WAIT_S: Final = 300.0
"""How long a node may take to serve or to end. A busy machine needs seconds, an idle one 3."""
NODES_MAX: Final = 9
HEAP: Final = "192m"
QUICK: Final = ("-XX:TieredStopAtLevel=1",)
"""Java compiles quickly rather than well: a start takes half the time. Leave it out to measure throughput."""
CLUSTER_ID: Final = base64.urlsafe_b64encode(b"delayserver-test").decode().rstrip("=")
SERVES: Final = b"Kafka Server started"


class State(StrEnum):
    """What the process of a node does."""

    RUNNING = "running"
    PAUSED = "paused"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """One node: its number from 1 on, the address for clients, its process, and what that does."""

    node: int
    address: str
    pid: int | None
    state: State


@dataclass(frozen=True, slots=True)
class Way:
    """One more listener of each node. `port` is that of the first node, as of the others the next ones. Clients that enter
    there are told `told` and the next ones: the ports of a proxy; 0: the same ports."""

    name: str
    port: int
    told: int = 0
    security: str = "PLAINTEXT"

    def bootstrap(self, nodes: int) -> str:
        """The addresses that clients of so many nodes are told, as `bootstrap.servers` takes them."""
        return ",".join([f"127.0.0.1:{(self.told or self.port) + place}" for place in range(nodes)])


class NodeFailed(Exception):
    """A node ended, or did not serve in time. The message has the end of its log."""


class KafkaNodes:
    """`count` nodes in a folder. Usable as a context manager, which starts them and stops them.

    Node i listens for clients on `port` + i - 1. Behind these ports come those of the controllers, as many. A topic has as
    many copies as there are nodes. `settings` are more lines of `server.properties`; they count before those of this module.
    """

    def __init__(
        self,
        folder: Path,
        count: int = 3,
        port: int = 21_501,
        *,
        settings: Mapping[str, str] | None = None,
        ways: Sequence[Way] = (),
        java_options: Sequence[str] = QUICK,
    ) -> None:
        if not 1 <= count <= NODES_MAX:
            raise ValueError(f"{count} nodes: 1 to {NODES_MAX} are possible")
        self.folder = folder.absolute()
        self.count = count
        self.port = port
        self._settings = dict(settings or {})
        self._ways = tuple(ways)
        self._java_options = tuple(java_options)
        self._started: dict[int, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> KafkaNodes:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_error: object) -> None:
        self.stop()

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes, as `bootstrap.servers` takes them."""
        return ",".join(map(self.address, self._all))

    def address(self, node: int) -> str:
        """Where a node listens for clients."""
        return f"127.0.0.1:{self.port + node - 1}"

    def start(self, *nodes: int) -> None:
        """Start these nodes, or all, and return when each serves. One that is paused goes on, one that runs stays as it is.

        Raises JarsMissing, NodeFailed."""
        wanted = nodes or tuple(self._all)
        jars = fetch()
        self.folder.mkdir(parents=True, exist_ok=True)
        states = {node: self.state(node) for node in wanted}
        dead = [node for node in wanted if states[node] is State.DEAD]
        for node in wanted:
            if states[node] is State.PAUSED:
                self.resume(node)
        formats = [self._format(node, jars) for node in dead if not (self._data(node) / "meta.properties").exists()]
        for node, process in formats:
            if process.wait():
                raise NodeFailed(f"node {node} could not format its folder:\n{self._end_of_log(node)}")
        for node in dead:
            self._reap(node)
            # A log of before would say at once that the node serves.
            self._log(node).unlink(missing_ok=True)
            self._started[node] = self._java(node, jars, "kafka.Kafka", str(self._properties(node)))
            self._pid_file(node).write_text(str(self._started[node].pid))
        for node in dead:
            self._wait_until_it_serves(node)

    def stop(self) -> None:
        """End all nodes, as an operator does. Their data stays. Raises NodeFailed if one does not end."""
        running = [node for node in self._all if self.state(node) is not State.DEAD]
        # Without a majority a controller cannot end in order. So all end at once, and the wait for each is short.
        for node in running:
            self._signal(node, signal.SIGCONT)
            self._signal(node, signal.SIGTERM)
        for node in running:
            if not self._ends(node, 10.0):
                self.kill(node)

    def wipe(self) -> None:
        """Kill all nodes, and remove their folder. Raises NodeFailed."""
        for node in self._all:
            self.kill(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self, node: int) -> None:
        """End a node by SIGKILL, and return when it is gone. Raises NodeFailed."""
        self._signal(node, signal.SIGKILL)
        if not self._ends(node, WAIT_S):
            raise NodeFailed(f"node {node} does not end")

    def pause(self, node: int) -> None:
        """Stop the process of a node by SIGSTOP: its connections stay, and it answers nothing. Raises NodeFailed."""
        self._signal(node, signal.SIGSTOP)
        # All its threads stop a moment later. A node that is dead stays dead.
        if not any(self.state(node) is not State.RUNNING for _ in _looks(WAIT_S)) or self.state(node) is State.DEAD:
            raise NodeFailed(f"node {node} cannot be paused: it is {self.state(node)}")

    def resume(self, node: int) -> None:
        """Let a paused node go on."""
        self._signal(node, signal.SIGCONT)

    def status(self) -> list[NodeStatus]:
        """All nodes in order."""
        return [NodeStatus(node, self.address(node), self._pid(node), self.state(node)) for node in self._all]

    def state(self, node: int) -> State:
        """What the process of a node does."""
        pid = self._pid(node)
        if pid is None:
            return State.DEAD
        try:
            # The process id may have gone to another program since, unless it is that of a child.
            command = Path(f"/proc/{pid}/cmdline").read_bytes()
            if node not in self._started and str(self._properties(node)).encode() not in command:
                return State.DEAD
            letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return State.DEAD
        return {"Z": State.DEAD, "T": State.PAUSED}.get(letter, State.RUNNING)

    @property
    def _all(self) -> range:
        return range(1, self.count + 1)

    def _data(self, node: int) -> Path:
        return self.folder / str(node)

    def _log(self, node: int) -> Path:
        return self.folder / f"{node}.log"

    def _properties(self, node: int) -> Path:
        return self.folder / f"{node}.properties"

    def _pid_file(self, node: int) -> Path:
        return self.folder / f"{node}.pid"

    def _pid(self, node: int) -> int | None:
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(self._pid_file(node).read_text())
        return None

    def _end_of_log(self, node: int) -> str:
        return self._log(node).read_bytes()[-3000:].decode(errors="replace")

    def _signal(self, node: int, number: signal.Signals) -> None:
        pid = self._pid(node)
        if pid is not None and self.state(node) is not State.DEAD:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _ends(self, node: int, wait_s: float) -> bool:
        ended = any(self.state(node) is State.DEAD for _ in _looks(wait_s))
        if ended:
            self._reap(node)
        return ended

    def _reap(self, node: int) -> None:
        """Take a process that has ended off the system's table, if it was started here."""
        if node in self._started:
            self._started.pop(node).wait()

    def _wait_until_it_serves(self, node: int) -> None:
        for _ in _looks(WAIT_S):
            # Asked before the log is read: a node may log its last words and end in between.
            ended = self.state(node) is State.DEAD
            if SERVES in self._log(node).read_bytes():
                return
            if ended:
                raise NodeFailed(f"node {node} ended:\n{self._end_of_log(node)}")
        raise NodeFailed(f"node {node} did not serve within {WAIT_S:.0f} s:\n{self._end_of_log(node)}")

    def _format(self, node: int, jars: Path) -> tuple[int, subprocess.Popen[bytes]]:
        settings = {**self._all_settings(node), **self._settings}
        self._properties(node).write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        arguments = ("format", "-t", CLUSTER_ID, "-c", str(self._properties(node)))
        return node, self._java(node, jars, "kafka.tools.StorageTool", *arguments)

    def _java(self, node: int, jars: Path, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        options = [f"-Xms{HEAP}", f"-Xmx{HEAP}", "-XX:+UseSerialGC", *self._java_options, "-Djava.awt.headless=true"]
        options.append(f"-Dlog4j2.configurationFile={(FOLDER / 'log4j2.xml').as_uri()}")
        home = os.environ.get("JAVA_HOME")
        java = str(Path(home) / "bin" / "java") if home else "java"
        with self._log(node).open("ab") as log:
            return subprocess.Popen(
                [java, *options, "-cp", f"{jars}/*", main, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C of the terminal is for the program that uses the nodes.
                start_new_session=True,
            )

    def _all_settings(self, node: int) -> dict[str, str]:
        copies, in_sync = str(self.count), str((self.count + 1) // 2)
        controllers = {each: f"127.0.0.1:{self.port + self.count + each - 1}" for each in self._all}
        place = node - 1
        clients = [Way("PLAINTEXT", self.port), *self._ways]
        listeners = [f"{way.name}://127.0.0.1:{way.port + place}" for way in clients]
        told = [f"{way.name}://127.0.0.1:{(way.told or way.port) + place}" for way in clients]
        securities = [f"{way.name}:{way.security}" for way in clients]
        return {
            "process.roles": "broker,controller",
            "node.id": str(node),
            "controller.quorum.voters": ",".join(f"{each}@{address}" for each, address in controllers.items()),
            "listeners": ",".join([*listeners, f"CONTROLLER://{controllers[node]}"]),
            "advertised.listeners": ",".join(told),
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": ",".join([*securities, "CONTROLLER:PLAINTEXT"]),
            "inter.broker.listener.name": "PLAINTEXT",
            "log.dirs": str(self._data(node)),
            "default.replication.factor": copies,
            "min.insync.replicas": in_sync,
            "offsets.topic.replication.factor": copies,
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": copies,
            "transaction.state.log.min.isr": in_sync,
            "transaction.state.log.num.partitions": "1",
            "share.coordinator.state.topic.replication.factor": copies,
            "share.coordinator.state.topic.num.partitions": "1",
            "auto.create.topics.enable": "false",
            "unclean.leader.election.enable": "false",
            # A broker that is dead is known as dead after this time. Kafka's own 9 s would make each test wait.
            "broker.session.timeout.ms": "2000",
            "broker.heartbeat.interval.ms": "500",
            # A small machine: few threads, small buffers.
            "num.network.threads": "2",
            "num.io.threads": "2",
            "num.replica.fetchers": "1",
            "background.threads": "2",
            "log.cleaner.dedupe.buffer.size": "8388608",
            "group.initial.rebalance.delay.ms": "0",
        }


def _looks(wait_s: float) -> Iterator[None]:
    """Looks until the time is over: at once, and then 20 times a second."""
    end = time.monotonic() + wait_s
    yield
    while time.monotonic() < end:
        time.sleep(0.05)
        yield
