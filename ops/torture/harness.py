"""The torture: kills a real server under load with SIGKILL at random moments, many times, and judges it from outside.

The harness runs in its own process, so its record survives every kill. After a kill it repeats unanswered requests, as
a careful client does. At the end it drains the server and compares everything with the record.
"""

from __future__ import annotations

import hashlib
import pickle
import random
import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TextIO

from delayserver.client import Client
from delayserver.protocol.errors import DelayServerError
from ops.torture.consuming import Consumer
from ops.torture.power import PowerDisk
from ops.torture.producing import LOST, Producer
from ops.torture.record import Fate, Record
from ops.torture.server import ROOT, TorturedServer
from ops.torture.verdict import drain, judge

# One in so many kills comes during a start, one soon after a clean stop, and one only after all messages have come.
# Only the last kind shows messages that are stuck until the next restart.
KILL_DURING_START = 10
STOP_CLEANLY = 25
KILL_AFTER_DRAIN = 20
START_S = 0.9
# The longest time for which a server runs on after its disk is gone.
AFTER_CUT_S = 0.05
EMPTY_PULLS_MAX = 1000
# Windows of one second and small files, so that every kind of file is in use at a kill. Retention is long, so that
# lookups can be checked at the end.
CONFIG = """\
[storage]
window_ms = 1000
message_log_segment_bytes = 1048576
message_log_retention_ms = 60000
retention_ms = 86400000
checkpoint_interval_ms = 200
[wheel]
load_ahead_ms = 2500
[broker]
segment_bytes = 1048576
ack_timeout_ms = 3600000
"""


@dataclass(frozen=True, slots=True)
class Plan:
    """The length and the load of a run. `run_s_max`: the longest time between a start and its kill. `pause_s`: the
    pause between two requests of one thread, so that the load leaves a core to the server."""

    kills: int
    """The lives of the server that end by SIGKILL, or with `power` by a loss of power."""
    seed: int
    directory: str
    run_s_max: float = 1.2
    producers: int = 2
    consumers: int = 2
    pause_s: float = 0.002
    lookups: int = 3000
    state: str = ""
    """The folder in which a run is saved and from which it goes on; empty: the run is not saved."""
    power: str = ""
    """The kind of the separate file system that loses power at the end of each life; empty: the process is killed."""
    stop_s: float = 30.0
    """For how long the primary of a cluster is stopped."""
    save_every: int = 10
    """Kills between two saved states. A state is a copy of all data, so it is not saved after each kill."""


@dataclass(frozen=True, slots=True)
class Times:
    """The takeovers of one kind: for how many seconds nothing was acknowledged, and nothing delivered."""

    count: int
    no_ack_median_s: float
    no_ack_worst_s: float
    no_delivery_median_s: float
    no_delivery_worst_s: float


@dataclass(slots=True)
class Report:
    """The result of a run. `passed` is the verdict. `duplicates` counts repeated arrivals by their explanation."""

    passed: bool = False
    kills: int = 0
    power: str = ""
    kills_during_start: int = 0
    clean_stops: int = 0
    drained_lives: int = 0
    seconds: float = 0.0
    sent: int = 0
    accepted: int = 0
    cancelled: int = 0
    arrived: int = 0
    lost: int = 0
    early: int = 0
    duplicates: dict[str, int] = field(default_factory=dict)
    copies_suppressed: int = 0
    restart_s_max: float = 0.0
    restart_cpu_s_max: float = 0.0
    code: str = ""
    status: dict[str, int] = field(default_factory=dict)
    takeovers: dict[str, Times] = field(default_factory=dict)
    violations_total: int = 0
    violations: list[str] = field(default_factory=list)

    def to_map(self) -> dict[str, Any]:
        """The report for JSON."""
        return asdict(self)


Step = Callable[[], object]
"""A part of the load: one request, or the work at the beginning or end of a life."""


class StateRefused(Exception):
    """The folder has a saved run with another seed or code."""


def _now_us() -> int:
    return time.time_ns() // 1000


def code_digest() -> str:
    """A digest of the sources of the service, twelve hex digits. A run proves something about one state only."""
    digest = hashlib.sha256()
    for folder in ("delayserver", "store", "wheel"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.relative_to(ROOT).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


class Torture:
    """One run. `say` gets the line of progress."""

    def __init__(self, plan: Plan, say: Callable[[str], None], log: TextIO | None = None) -> None:
        self._plan = plan
        self._say = say
        self._chance = random.Random(plan.seed)
        self._record = Record(_now_us, log)
        self._report = Report()
        config = f"{plan.directory}/delayserver.toml"
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG)
        self._disk = PowerDisk(plan.directory, plan.power) if plan.power else None
        data_dir = f"{self._disk.mount if self._disk else plan.directory}/data"
        self._server = TorturedServer(plan.directory, config, data_dir)
        self._report.power = plan.power
        self._report.code = code_digest()
        if plan.state:
            self._go_on(log)

    def run(self) -> Report:
        """Runs the remaining kills, the drain and the verdict."""
        before_s = self._report.seconds
        started_s = time.monotonic()
        try:
            if self._disk is not None:
                self._disk.make()
            for kill in range(self._report.kills + 1, self._plan.kills + 1):
                self._one_life(kill)
                self._report.kills = kill
                self._report.seconds = round(before_s + time.monotonic() - started_s, 1)
                self._say(self._progress(kill, self._report.seconds))
                if self._record.violations_total > 100:
                    break
                if self._plan.state and kill % self._plan.save_every == 0:
                    self._save()
            self._judge()
        finally:
            self._server.clean_up()
            if self._disk is not None:
                self._disk.clean_up()
        self._report.seconds = round(before_s + time.monotonic() - started_s, 1)
        return self._report

    # -- a run in several sittings

    def _go_on(self, log: TextIO | None) -> None:
        """Continues a saved run, if there is one. Raises StateRefused for another seed or code."""
        state = Path(self._plan.state)
        if not (state / "run.pickle").exists():
            return
        with open(state / "run.pickle", "rb") as file:
            seed, report, record, chance = pickle.load(file)
        if (seed, report.code) != (self._plan.seed, self._report.code):
            raise StateRefused(
                f"{state} holds a run of another seed ({seed}) or of other code: remove it, or go on there"
            )
        self._report, self._record = report, record
        self._record.go_on(_now_us, log)
        self._chance.setstate(chance)
        shutil.copytree(state / "data", f"{self._plan.directory}/data")

    def _save(self) -> None:
        """Saves data and record, which match because the server is dead. An interruption keeps the old state."""
        state = Path(self._plan.state)
        new, old = state.with_name(state.name + ".new"), state.with_name(state.name + ".old")
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(f"{self._plan.directory}/data", new / "data")
        with open(new / "run.pickle", "wb") as file:
            pickle.dump((self._plan.seed, self._report, self._record, self._chance.getstate()), file)
        shutil.rmtree(old, ignore_errors=True)
        if state.exists():
            state.rename(old)
        new.rename(state)
        shutil.rmtree(old, ignore_errors=True)

    # -- one life of the server

    def _one_life(self, kill: int) -> None:
        if kill % KILL_DURING_START == 0:
            self._server.launch()
            time.sleep(self._chance.uniform(0.0, START_S))
            self._cut_off()
            self._bring_back()
            self._report.kills_during_start += 1
            self._record.crashed()
        self._start()
        load = Load(self._plan, self._record, self._server.address, self._chance.randrange(1 << 60))
        load.start()
        # Most kills come soon, because the first moments after recovery and replay are the most interesting.
        time.sleep(self._plan.run_s_max * self._chance.random() ** 2 + 0.02)
        if kill % STOP_CLEANLY == 0:
            self._record.stopping()
            self._server.stop()
            self._report.clean_stops += 1
            load.stop()
            self._record.crashed()  # leases end with the process
            self._start()
        elif kill % KILL_AFTER_DRAIN == 0:
            load.finish()
            self._drain()
            self._report.drained_lives += 1
        self._cut_off()
        load.stop()
        self._bring_back()
        self._record.crashed()
        for problem in load.problems:
            self._record.violate(problem)

    def _cut_off(self) -> None:
        """Ends a life by a kill of the process, or by a loss of power."""
        if self._disk is None:
            self._server.kill()
            return
        self._record.power_fails()
        self._disk.cut()
        # Some requests meet a disk that refuses everything, and get a named error.
        time.sleep(self._chance.uniform(0.0, AFTER_CUT_S))
        for line in self._server.lose_power():
            self._record.violate(f"the server called a disk without power a bug: {line}")

    def _bring_back(self) -> None:
        if self._disk is not None:
            self._disk.restore()

    def _drain(self) -> None:
        drain_all(self._record, self._server.address, self._chance)

    def _start(self) -> None:
        started_s = time.monotonic()
        self._server.start()
        self._report.restart_s_max = round(max(self._report.restart_s_max, time.monotonic() - started_s), 2)
        self._report.restart_cpu_s_max = round(max(self._report.restart_cpu_s_max, self._server.cpu_s()), 2)

    # -- the end

    def _judge(self) -> None:
        self._start()
        conclude(self._plan, self._record, self._report, self._server.address)
        self._server.stop()

    def _progress(self, kill: int, seconds: float) -> str:
        record = self._record
        what = "cuts" if self._plan.power else "kills"
        return (
            f"{kill}/{self._plan.kills} {what}, {seconds:.0f} s: {len(record.sent)} sent, {record.arrived_total} arrived, "
            f"{sum(record.duplicates.values())} repeats explained, {record.violations_total} violations"
        )


def drain_all(record: Record, address: str, chance: random.Random) -> None:
    """Receives all that must arrive."""
    consumer = Consumer(record, address, chance)
    drain(record, consumer, EMPTY_PULLS_MAX)
    consumer.client.close()


def conclude(plan: Plan, record: Record, report: Report, address: str) -> None:
    """Drains the server, compares it with the record, and fills in the report."""
    chance = random.Random(plan.seed)
    producer = Producer(record, address, chance)
    producer.resolve()
    producer.client.close()
    drain_all(record, address, chance)
    client = Client(address, timeout_s=120.0)
    status = judge(record, client, sample=plan.lookups)
    client.close()
    names = ("accepted", "delivered", "cancelled", "expired", "deduplicated", "dead_lettered", "pending", "early")
    report.status = {name: status[name] for name in names}
    report.sent = len(record.sent)
    report.accepted = len(record.of(Fate.ACCEPTED)) + len(record.of(Fate.ENDED))
    report.cancelled = len(record.of(Fate.ENDED))
    report.arrived = record.arrived_total
    report.lost = len(record.missing())
    report.early = sum(1 for text in record.violations if " was early" in text)
    report.duplicates = dict(record.duplicates)
    report.copies_suppressed = record.copies
    report.violations_total = record.violations_total
    report.violations = record.violations
    report.passed = not record.violations_total


class Load:
    """Threads that send and receive until the server has ended."""

    def __init__(self, plan: Plan, record: Record, address: str, seed: int) -> None:
        self._stop = threading.Event()
        self._settle = threading.Event()
        self._plan = plan
        self._record = record
        self._address = address
        self.problems: list[str] = []
        self.ended: list[str] = []
        """Which threads have ended, and by which answer. A request in doubt ends one, also where the server goes on."""
        self._clients: list[Client] = []
        chances = [random.Random(seed + index) for index in range(plan.producers + plan.consumers)]
        self._threads = [
            threading.Thread(target=self._produce, args=(chance,), name="producer")
            for chance in chances[: plan.producers]
        ]
        self._threads += [
            threading.Thread(target=self._consume, args=(chance,), name="consumer")
            for chance in chances[plan.producers :]
        ]

    def start(self) -> None:
        """Starts the threads."""
        for thread in self._threads:
            thread.start()

    def finish(self) -> None:
        """Ends the threads while the server runs, so that every request is answered and no message stays leased."""
        self._settle.set()
        self.stop()

    def stop(self) -> None:
        """Ends the threads and waits for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def abandon(self) -> None:
        """Ends the threads, also those that wait for an answer."""
        self._stop.set()
        for thread in self._threads:
            while thread.is_alive():
                for client in list(self._clients):  # one that was just about to ask opens its connection again
                    client.close()
                thread.join(0.05)

    def _produce(self, chance: random.Random) -> None:
        producer = Producer(self._record, self._address, chance, delay_ms_max=3000)
        first = self._threads[0] is threading.current_thread()
        steps: list[Step] = [producer.resolve] if first else []
        self._loop(producer.client, producer.step, before=steps)

    def _consume(self, chance: random.Random) -> None:
        consumer = Consumer(self._record, self._address, chance)
        self._loop(consumer.client, lambda: consumer.step(0.05), after=[consumer.ack_held])

    def _loop(self, client: Client, step: Step, before: Sequence[Step] = (), after: Sequence[Step] = ()) -> None:
        self._clients.append(client)
        try:
            for first in before:
                first()
            while not self._stop.is_set():
                try:
                    step()
                except LOST as error:
                    self.ended.append(f"{threading.current_thread().name}: {error}")
                    return
                except DelayServerError as error:
                    self._record.failed(error)
                    time.sleep(0.02)  # the server is stopping, or full
                time.sleep(self._plan.pause_s)
            for last in after if self._settle.is_set() else ():
                last()
        except DelayServerError as error:
            self._record.failed(error)
        except Exception as error:  # noqa: BLE001  a thread must not end silently: its failure is a violation
            self.problems.append(f"the harness failed: {error!r}")
        finally:
            client.close()
