"""Rows `cluster-*`: a shard of two members on three nodes of Kafka, against one server and against the bare log; its
takeovers, its standby, and a member that begins with nothing."""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from delayserver.client import Client
from delayserver.protocol.errors import DelayServerError
from ops.bench.bodies import make_bodies
from ops.bench.bursts import OpenSend, Send, bursts_in_turns, medians_of, ours, ratios_of
from ops.bench.children import run_together
from ops.bench.delivering import SECONDS, steady_at
from ops.bench.figures import Options, Run, expect, rounded
from ops.bench.producing import DAY_MS, SUBJECT, load
from ops.bench.server_process import ServerFailed, ServerProcess, fresh_directory
from ops.kafka.nodes import KafkaNodes

NODES: Final = 3
MEMBERS: Final = ("a", "b")
NEW: Final = "c"
"""A member whose process does not run yet."""
TURNS: Final = 12
WARMING: Final = 2
"""So many times as many turns go before, which do not count: until then Java runs the nodes' code without its compiler."""
FOLLOWED: Final = 1_000_000
READ: Final = 1_000_000
RECORDS: Final = 2_000
LAG_RECORDS: Final = 8
"""So few records are beats alone."""
ROUNDS: Final = 5
# Beyond a takeover that takes many times as long as it may.
ACK_S_MAX: Final = 60.0
FOLLOW_S_MAX: Final = 300.0
LOADERS: Final = 2
FIRST: Final = 1
"""The number of the first sender of a system."""
BATCH: Final = 1000
CLUSTER, ALONE, LOG = "cluster", "alone", "log"


@dataclass(frozen=True, slots=True)
class Shard:
    """Members by their names, the nodes of Kafka below them, and a member that was not started."""

    nodes: KafkaNodes
    members: dict[str, ServerProcess]
    new: ServerProcess

    @property
    def addresses(self) -> str:
        """The addresses of all members, as clients take them."""
        return ",".join([member.address for member in self.members.values()])

    def primary(self) -> str:
        """The name of the member that leads. Raises `ServerFailed`."""
        end = time.monotonic() + ACK_S_MAX
        while time.monotonic() < end:
            for name, member in self.members.items():
                with contextlib.suppress(DelayServerError), Client(member.address, timeout_s=5.0, retries=0) as client:
                    if client.status()["ready"]:
                        return name
        raise ServerFailed("no member leads")


def command(*words: str) -> str:
    """The output of a command of `delayserver`. Raises `ServerFailed`."""
    done = subprocess.run([sys.executable, "-m", "delayserver", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"delayserver {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def running_shard(directory: str) -> Iterator[Shard]:
    """A shard with members that run. One of them leads."""
    with contextlib.ExitStack() as stack:
        nodes = stack.enter_context(KafkaNodes(Path(directory, "kafka"), NODES, java_options=()))
        files = {}
        for name in (*MEMBERS, NEW):
            path = Path(directory, f"{name}.toml")
            path.write_text(f'[cluster]\nkafka = "{nodes.bootstrap}"\ntopic = "bench"\nmember = "{name}"\n')
            files[name] = str(path)
        command("cluster", "init", "--cluster", files[MEMBERS[0]], "--shards", "1")
        members = {name: stack.enter_context(_member(directory, name, files[name])) for name in MEMBERS}
        # Made when the others listen: the port of each is free then.
        shard = Shard(nodes, members, _member(directory, NEW, files[NEW]))
        _ack(shard)
        yield shard


def _member(directory: str, name: str, file: str) -> ServerProcess:
    folder = Path(directory, name)
    folder.mkdir()
    return ServerProcess(str(folder), options=("--cluster", file))


def _ack(shard: Shard) -> float:
    """Send a message until one is acknowledged. Returns the moment (monotonic)."""
    begin = time.monotonic()
    while time.monotonic() - begin < ACK_S_MAX:
        with contextlib.suppress(DelayServerError, OSError), Client(shard.addresses, timeout_s=5.0) as client:
            client.send(SUBJECT, b"ready", due_ms=time.time_ns() // 1_000_000 + DAY_MS)
            return time.monotonic()
    raise ServerFailed(f"no member acknowledged a message within {ACK_S_MAX:g} s")


def bare_log(bootstrap: str, topic: str, batch: int) -> OpenSend:
    """Appends records of the size of a batch to a topic, each when the one before is confirmed by all copies. The first
    sender also reads the topic, as a member does: a record of its own counts when it came back."""

    def open_send(sender: int) -> Send:
        from confluent_kafka import Consumer, Message, Producer, TopicPartition

        producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "enable.idempotence": True, "linger.ms": 0})
        body = make_bodies(batch).tobytes()
        confirmed = [-1]

        def append(_due_ms: int) -> None:
            producer.produce(topic, body, partition=0, on_delivery=lambda _, record: confirmed.append(place(record)))
            expect(producer.flush(ACK_S_MAX) == 0, "the log confirms nothing")

        def place(record: Message | None) -> int:
            offset = None if record is None or record.error() is not None else record.offset()
            expect(offset is not None, "the log gives nothing back")
            return offset or 0

        if sender != FIRST:
            return append
        reader = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
        reader.assign([TopicPartition(topic, 0, 0)])

        def append_and_read(due_ms: int) -> None:
            append(due_ms)
            while place(reader.poll(ACK_S_MAX)) < confirmed[-1]:
                pass

        return append_and_read

    return open_send


def _make_topic(bootstrap: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    new = NewTopic(topic, 1, NODES, config={"min.insync.replicas": "2"})
    client = AdminClient({"bootstrap.servers": bootstrap})
    client.create_topics([new])[topic].result()


def measure_cluster(connections: int, batch: int) -> Callable[[Options], Run]:
    """A row: sends to the cluster, to one server and to the bare log, in turns. The value is the ratio to one server."""

    def measure(options: Options) -> Run:
        with fresh_directory(options.data_dir) as directory, running_shard(directory) as shard:
            alone_in = Path(directory, "alone")
            alone_in.mkdir()
            _make_topic(shard.nodes.bootstrap, "bare")
            with ServerProcess(str(alone_in)) as alone:
                systems = {
                    CLUSTER: ours(shard.members[shard.primary()].address, batch),
                    ALONE: ours(alone.address, batch),
                    LOG: bare_log(shard.nodes.bootstrap, "bare", batch),
                }
                turns = options.messages or TURNS
                rates = bursts_in_turns(systems, connections, batch, (WARMING + 1) * turns)
                rates = {who: found[WARMING * turns :] for who, found in rates.items()}
        ratios, medians = ratios_of(rates, CLUSTER), medians_of(rates)
        call_ms = {who: 1000 * connections * batch / rate for who, rate in medians.items()}
        details = {f"{who}_rate": rounded(rate) for who, rate in medians.items()}
        details["of_log"] = rounded(ratios[LOG][1])
        details["beyond_ms"] = rounded(call_ms[CLUSTER] - call_ms[ALONE] - call_ms[LOG])
        return Run(ratios[ALONE][1], details)

    return measure


def measure_takeover(options: Options) -> Run:
    """The row `cluster-takeover`: the primary is killed; seconds until a message is acknowledged. The worst of some."""
    with fresh_directory(options.data_dir) as directory, running_shard(directory) as shard:
        taken = []
        for _ in range(options.messages or ROUNDS):
            leading = shard.members[shard.primary()]
            leading.kill()
            begin = time.monotonic()
            taken.append(_ack(shard) - begin)
            leading.start()
    return Run(max(taken), {"median_s": rounded(statistics.median(taken)), "rounds": len(taken)})


def measure_switch(options: Options) -> Run:
    """The row `cluster-switch`: the primary hands over; seconds until a message is acknowledged. The worst of some."""
    with fresh_directory(options.data_dir) as directory, running_shard(directory) as shard:
        taken = []
        for _ in range(options.messages or ROUNDS):
            leading = shard.primary()
            (heir,) = set(MEMBERS) - {leading}
            begin = time.monotonic()
            with Client(shard.members[leading].address, retries=0) as client:
                client.switch_primary(heir)
            taken.append(_ack(shard) - begin)
            _wait_until_it_follows(shard.members[leading])
    return Run(max(taken), {"median_s": rounded(statistics.median(taken)), "rounds": len(taken)})


def measure_steady_cluster(rate: int) -> Callable[[Options], Run]:
    """A row: as `steady-*`, at one server and at the primary of a shard. The value is the lateness (p99) of the shard,
    divided by that of the server and twice the time that the log takes for a record (p99)."""

    def measure(options: Options) -> Run:
        seconds = options.seconds or SECONDS
        with fresh_directory(options.data_dir) as directory, running_shard(directory) as shard:
            alone_in = Path(directory, "alone")
            alone_in.mkdir()
            with ServerProcess(str(alone_in)) as alone:
                alone_ms = steady_at(alone, rate, seconds).value
            _make_topic(shard.nodes.bootstrap, "bare")
            log_ms = _confirmed_ms(bare_log(shard.nodes.bootstrap, "bare", 1)(FIRST))
            run = steady_at(shard.members[shard.primary()], rate, seconds, others=1)
        details = {**run.details, "alone_p99_ms": rounded(alone_ms), "log_p99_ms": rounded(log_ms)}
        return Run(run.value / (alone_ms + 2 * log_ms), details)

    return measure


def _confirmed_ms(append: Send) -> float:
    """How long a record takes until the log has it and gave it back, p99 of one after the other."""
    taken = []
    for _ in range(RECORDS):
        begin = time.perf_counter()
        append(0)
        taken.append((time.perf_counter() - begin) * 1000)
    return float(np.percentile(taken, 99))


def measure_following(options: Options) -> Run:
    """The row `cluster-follow`: the processor time of a standby, divided by its primary's, at the full rate of sends."""
    with fresh_directory(options.data_dir) as directory, running_shard(directory) as shard:
        leading = shard.members[shard.primary()]
        (standby,) = [member for member in shard.members.values() if member is not leading]
        before = leading.cpu_s(), standby.cpu_s()
        seconds = _load(leading, options.messages or FOLLOWED)
        leading.wait_replayed()
        behind_s = _wait_until_it_follows(standby)
        used = leading.cpu_s() - before[0], standby.cpu_s() - before[1]
    details = {"primary_cpu_s": used[0], "standby_cpu_s": used[1], "behind_s": behind_s, "load_s": seconds}
    return Run(used[1] / used[0], {name: rounded(value) for name, value in details.items()})


def measure_bootstrap(options: Options) -> Run:
    """The row `cluster-bootstrap`: a member without a directory reads the log. The value is its messages a second until it
    has all, divided by those of the sends."""
    messages = options.messages or READ
    with fresh_directory(options.data_dir) as directory, running_shard(directory) as shard:
        load_s = _load(shard.members[shard.primary()], messages)
        begin = time.monotonic()
        with shard.new as member:
            ready_s = time.monotonic() - begin
            _wait_until_it_follows(member)
            member.wait_replayed()
            seconds = time.monotonic() - begin
    details = {"rate": messages / seconds, "seconds": seconds, "ready_s": ready_s, "load_s": load_s}
    return Run(load_s / seconds, {name: rounded(value) for name, value in details.items()})


def _load(server: ServerProcess, messages: int) -> float:
    """Send so many messages that are due in a day, in batches of 1,000. Returns the seconds."""
    each = messages // LOADERS
    targets = [(load, server.address, SUBJECT, place * each, each, 0, BATCH) for place in range(LOADERS)]
    begin = time.monotonic()
    run_together(targets)
    return time.monotonic() - begin


def _wait_until_it_follows(member: ServerProcess) -> float:
    """Wait until a member has applied the log. Returns the seconds. Raises `ServerFailed`."""
    begin = time.monotonic()
    while time.monotonic() - begin < FOLLOW_S_MAX:
        with contextlib.suppress(DelayServerError), Client(member.address, timeout_s=5.0, retries=0) as client:
            lag = client.cluster_standing().lag_records
            if lag is not None and lag <= LAG_RECORDS:
                return time.monotonic() - begin
        time.sleep(0.05)
    raise ServerFailed(f"a member does not follow after {FOLLOW_S_MAX:g} s: {member.last_words()}")
