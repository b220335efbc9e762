"""Members of a cluster as real processes on real Kafka, and clients of whoever leads."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from delayserver.cli.kafka.on_kafka import write_note
from delayserver.client import Client
from delayserver.members.member_map import Announced
from delayserver.protocol.errors import DelayServerError
from ops.kafka.nodes import KafkaNodes
from tests.delayserver.cli.conftest import Done, run, start
from tests.delayserver.kafka.following import UNHURRIED_S, new_cluster
from tests.ports import free_port

SUBJECT = "s"


@dataclass(slots=True)
class Member:
    """A member: the processes on its directory, one after the other. `port` is that on which they listen, where that
    of the address at which clients reach them is another one's. `options` are further ones of `serve`."""

    name: str
    folder: Path
    address: str
    shard: int = 0
    process: subprocess.Popen[bytes] | None = None
    port: int = 0
    options: tuple[str, ...] = ()

    @property
    def file(self) -> Path:
        """Its file of the cluster."""
        return self.folder / f"{self.name}.toml"

    def begin(self) -> None:
        """Start a process."""
        self.process = start(
            "serve", "--cluster", str(self.file), "--shard", str(self.shard), "--json", "--http-port", "0",
            "--data-dir", str(self.folder / self.name), "--port", str(self.port or self.address.rpartition(":")[2]),
            *(("--announce", self.address) if self.port else ()), *self.options,
        )  # fmt: skip

    def ready(self) -> dict[str, Any]:
        """Wait for the line which says that it serves; what it says."""
        assert self.process is not None and self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self.end()[1]
        said: dict[str, Any] = json.loads(line)
        return said

    def end(self) -> tuple[int, str]:
        """Wait until the process ends; its code, and what it said on stderr."""
        assert self.process is not None
        _, err = self.process.communicate(timeout=UNHURRIED_S)
        return self.process.returncode, err.decode()

    def signal(self, number: int) -> None:
        """Send a signal."""
        assert self.process is not None
        self.process.send_signal(number)


@dataclass(slots=True)
class Cluster:
    """The members. `sent` has the ids of what was acknowledged."""

    members: dict[str, Member]
    sent: list[str] = field(default_factory=list)

    @property
    def addresses(self) -> list[str]:
        """Those of all members."""
        return [member.address for member in self.members.values()]

    def primary(self) -> str:
        """The name of the member that leads now. Waits until one does."""
        for _ in range(UNHURRIED_S * 10):
            for name, member in self.members.items():
                with suppress(DelayServerError), Client(member.address, timeout_s=2, retries=0) as client:
                    if client.status()["ready"]:
                        return name
            time.sleep(0.1)
        raise AssertionError("nobody leads")

    def send(self, count: int, delay_ms: int = 500) -> None:
        """Send so many messages, one after the other. The client follows the primary."""
        with Client(self.addresses) as client:
            for _ in range(count):
                self._send(client, delay_ms)

    def _send(self, client: Client, delay_ms: int) -> None:
        message_id, due_ms = f"m{len(self.sent)}", time.time_ns() // 1_000_000 + delay_ms
        client.send(SUBJECT, message_id, due_ms=due_ms, message_id=message_id)
        self.sent.append(message_id)

    @contextmanager
    def under_load(self) -> Iterator[None]:
        """Somebody sends for the block, from before it on, and some messages more behind it."""
        enough, failure = threading.Event(), list[BaseException]()

        def send() -> None:
            try:
                with Client(self.addresses) as client:
                    while not enough.is_set():
                        self._send(client, 300)
            except BaseException as error:  # noqa: BLE001  raised below
                failure.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        try:
            self._sent_more(failure)
            yield
            self._sent_more(failure)
        finally:
            enough.set()
            thread.join()
        if failure:
            raise failure[0]

    def _sent_more(self, failure: list[BaseException]) -> None:
        goal = len(self.sent) + 20
        while len(self.sent) < goal and not failure:
            time.sleep(0.01)

    def run(self, *arguments: str) -> Done:
        """Run `delayserver cluster …` with the file of the first member."""
        file = next(iter(self.members.values())).file
        return run("cluster", *arguments, "--cluster", str(file))

    def consumed(self, group: str) -> Counter[str]:
        """Read all that the cluster has for consumers, until each message that was sent has come."""
        came: Counter[str] = Counter()
        with Client(self.addresses) as client:
            for _ in range(UNHURRIED_S):
                deliveries = client.pull(SUBJECT, group, max_messages=1000, wait_s=1, start="earliest")
                came.update([delivery.message_id for delivery in deliveries])
                client.ack(SUBJECT, group, deliveries)
                if came.keys() >= set(self.sent):
                    return came
        raise AssertionError(f"{len(set(self.sent) - came.keys())} messages did not come")


@contextmanager
def running(
    nodes: KafkaNodes,
    folder: Path,
    names: str,
    shards: Sequence[int] = (),
    options: tuple[str, ...] = (),
    before: Announced | None = None,
) -> Iterator[Cluster]:
    """A cluster that is founded, whose members run. The first one of each shard leads. `shards` has the shard of each
    member; without it there is one shard. `options` are further ones of `serve`. `before`: a member that was there before
    them, and is gone."""
    topic, port = new_cluster(nodes).topic, free_port(len(names))
    members = {
        name: Member(name, folder, f"127.0.0.1:{port + place}", shards[place] if shards else 0, options=options)
        for place, name in enumerate(names)
    }
    for name, member in members.items():
        member.file.write_text(
            f'[cluster]\nkafka = "{nodes.bootstrap}"\ntopic = "{topic}"\nmember = "{name}"\ncopies = 1\n'
        )
    try:
        count = str(max(shards, default=0) + 1)
        init = start("cluster", "init", "--shards", count, "--cluster", str(members[names[0]].file))
        assert init.communicate(timeout=UNHURRIED_S)[1] == b"" and init.returncode == 0
        if before is not None:
            write_note(str(members[names[0]].file), before)
        for member in members.values():
            member.begin()
            member.ready()
        yield Cluster(members)
    finally:
        for member in members.values():
            if member.process is not None and member.process.poll() is None:
                member.process.kill()
                member.process.communicate()
