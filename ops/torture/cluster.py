"""The members of a shard as real processes on Kafka, each of which can be killed, stopped, or cut off from Kafka."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from delayserver.protocol.errors import DelayServerError
from delayserver.protocol.schema.members import MemberStanding
from ops.kafka.gate import Gate
from ops.kafka.nodes import KafkaNodes, Way
from ops.torture.producing import Straight
from ops.torture.server import ServerFailed, TorturedServer

NAMES: Final = ("a", "b", "c")
PORTS: Final = range(23_801, 24_801)
KAFKA_PORTS: Final = 2 + 2 * len(NAMES)
"""Ports that a node needs: its own two, and those of `ways_of`."""
LEAD_S_MAX: Final = 60.0
"""Beyond a takeover that takes many times as long as it may."""
LOOK_S: Final = 0.02
LAG_RECORDS_MAX: Final = 1000


def ways_of(port: int, nodes: int = 1) -> list[Way]:
    """A way to the nodes for each member. It takes two ports a node and member, the second for its gate."""
    return [
        Way(name.upper(), port + 2 * nodes * place, told=port + 2 * nodes * place + nodes)
        for place, name in enumerate(NAMES)
    ]


def free_ports(count: int) -> int:
    """The first of so many free ports in a row, below the range from which the kernel takes ports for clients. Each process
    begins elsewhere: two that look at the same moment would find the same ones."""
    found = 0
    for number in range(len(PORTS)):
        port = PORTS[(os.getpid() + number) % len(PORTS)]
        found = found + 1 if port > PORTS.start and _is_free(port) else 0
        if found == count:
            return port - count + 1
    raise ServerFailed(f"no {count} free ports in a row from {PORTS.start} to {PORTS.stop - 1}")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class Member:
    """A member and its way to Kafka."""

    def __init__(self, name: str, gate: Gate, server: TorturedServer) -> None:
        self.name = name
        self.gate = gate
        self.server = server

    def standing(self) -> MemberStanding | None:
        """What it says of itself; None if it does not answer."""
        if not self.server.address:
            return None
        with contextlib.suppress(DelayServerError), self.straight(timeout_s=2.0) as client:
            return client.cluster_standing()
        return None

    def told(self) -> str:
        """What it says of itself and of what waits, for people."""
        try:
            with self.straight(timeout_s=10.0) as client:
                status, lag = client.status(), sum(group.lag for group in client.groups())
        except DelayServerError as error:
            return f"{self.name} says: {error}"
        waits = {name: (each["waiting"], each["in_flight"]) for name, each in status["groups"].items()}
        return f"{self.name} has {status['pending']} pending, {waits} waiting and in flight, and a lag of {lag}"

    def straight(self, timeout_s: float = 120.0) -> Straight:
        """A client of this member alone."""
        return Straight(self.server.address, timeout_s=timeout_s, retries=0)


class Cluster:
    """The members on their nodes of Kafka. Usable as a context manager, which founds it and starts all members."""

    def __init__(self, nodes: KafkaNodes, ways: Sequence[Way], directory: str, config: str) -> None:
        """`ways` are those of `ways_of`, which the nodes have."""
        self.members: dict[str, Member] = {}
        self._stack = contextlib.ExitStack()
        topic = f"torture-{time.time_ns()}"
        gates = [Gate(way, nodes.count) for way in ways]
        port = free_ports(len(NAMES))
        for place, (name, way) in enumerate(zip(NAMES, ways, strict=True)):
            file = Path(directory, f"{name}.toml")
            kafka = way.bootstrap(nodes.count)
            file.write_text(
                f'[cluster]\nkafka = "{kafka}"\ntopic = "{topic}"\nmember = "{name}"\ncopies = {nodes.count}\n'
            )
            folder = Path(directory, name)
            folder.mkdir()
            server = TorturedServer(
                str(folder), config, str(folder / "data"), (port + place, 0), ("--cluster", str(file))
            )
            self.members[name] = Member(name, gates[place], server)
        self._file = file

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            for member in self.members.values():
                stack.enter_context(member.gate)
                stack.callback(member.server.clean_up)
            self.command("init")
            for member in self.members.values():
                member.server.start()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_error: object) -> None:
        self._stack.close()

    def command(self, *words: str) -> None:
        """Run `delayserver cluster …`. Raises ServerFailed."""
        command = [sys.executable, "-m", "delayserver", "cluster", *words, "--cluster", str(self._file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise ServerFailed(f"{' '.join(command[2:])}: {done.stderr.strip()}")

    def primary(self, but: str = "") -> Member:
        """The member that leads; with `but`, another one than this. Waits until one does. Raises ServerFailed."""
        end = time.monotonic() + LEAD_S_MAX
        while time.monotonic() < end:
            for member in self.members.values():
                standing = None if member.name == but else member.standing()
                if standing is not None and standing.role == "primary":
                    return member
            time.sleep(LOOK_S)
        raise ServerFailed(f"no member leads after {LEAD_S_MAX:g} s")

    def wait_until_it_follows(self, member: Member) -> None:
        """Return when a member is a standby that has applied the log. Raises ServerFailed."""
        end = time.monotonic() + LEAD_S_MAX
        while time.monotonic() < end:
            standing = member.standing()
            if standing is not None and standing.role == "standby" and _is_near(standing):
                return
            time.sleep(LOOK_S)
        raise ServerFailed(f"{member.name} does not follow after {LEAD_S_MAX:g} s: {member.server.last_words()}")


def _is_near(standing: MemberStanding) -> bool:
    return standing.lag_records is not None and standing.lag_records < LAG_RECORDS_MAX
