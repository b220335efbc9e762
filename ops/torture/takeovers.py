"""Takeovers under load: the primary of a cluster is killed, stopped, cut off from Kafka, or told to hand over, many times.

The load and the judge are those of `--kills`. A primary that is stopped or cut off is asked meanwhile as well: it must
acknowledge nothing and hand out nothing.
"""

from __future__ import annotations

import itertools
import random
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Final, TextIO

from delayserver.client import Delivery, Message
from delayserver.protocol.errors import DelayServerError
from ops.kafka.nodes import KafkaNodes, Way
from ops.torture.cluster import Cluster, Member
from ops.torture.consuming import GROUP
from ops.torture.harness import CONFIG, Load, Plan, Report, Times, code_digest, conclude
from ops.torture.producing import SUBJECT
from ops.torture.record import Instance, Record, Sent

GOES_ON_S_MAX: Final = 60.0
"""Beyond a takeover that takes many times as long as it may."""
NOT_TAKEN: Final = "torture.not_taken"
ASKED_AT_ONCE: Final = 20


class Kind(StrEnum):
    """How a primary ends."""

    KILL = "kill"
    STOP = "stop"
    CUT = "cut"
    SWITCH = "switch"


class TimedRecord(Record):
    """A record that knows when something was acknowledged and when something was delivered, by a monotonic clock."""

    def __init__(self, now_us: Callable[[], int], log: TextIO | None = None) -> None:
        super().__init__(now_us, log)
        self.acknowledged: list[float] = []
        self.delivered: list[float] = []

    def accepted(self, messages: Sequence[Sent], receipts: Sequence[str]) -> None:
        """As `Record.accepted`."""
        self.acknowledged.append(time.monotonic())
        super().accepted(messages, receipts)

    def arrived(self, delivery: Delivery) -> Instance | None:
        """As `Record.arrived`."""
        self.delivered.append(time.monotonic())
        return super().arrived(delivery)


class Deposed:
    """Requests to a primary that another member has replaced, straight. None may be answered but by an error."""

    def __init__(self, record: Record, member: Member) -> None:
        """Connects, so the member must still serve."""
        self._record = record
        self._name = member.name
        self._clients = [member.straight(), member.straight()]
        for client in self._clients:
            client.connect()
        self._threads = [threading.Thread(target=self._require_error, args=(ask,)) for ask in (self._send, self._pull)]

    def ask(self) -> None:
        """Send the requests."""
        for thread in self._threads:
            thread.start()

    def judge(self) -> None:
        """Wait for the answers. The member must be able to give them."""
        for thread in self._threads:
            thread.join()
        for client in self._clients:
            client.close()

    def _require_error(self, ask: Callable[[], str]) -> None:
        try:
            done = ask()
        except DelayServerError:
            return
        if done:
            self._record.violate(f"{self._name}, which led no longer, {done}")

    def _send(self) -> str:
        due_ms = self._record.now_us() // 1000
        messages = [Message(NOT_TAKEN, b"", due_ms=due_ms, message_id=f"n{place}") for place in range(ASKED_AT_ONCE)]
        results = self._clients[0].send_many(messages)
        return "acknowledged a message" if any(not isinstance(one, DelayServerError) for one in results) else ""

    def _pull(self) -> str:
        found = self._clients[1].pull(SUBJECT, GROUP, ASKED_AT_ONCE)
        return f"answered a pull with {len(found)} messages"


class Takeovers:
    """One run, on nodes of Kafka that serve. `say` gets the line of progress."""

    def __init__(
        self,
        plan: Plan,
        nodes: KafkaNodes,
        ways: Sequence[Way],
        say: Callable[[str], None],
        log: TextIO | None = None,
    ) -> None:
        self._plan = plan
        self._say = say
        self._chance = random.Random(plan.seed)
        self._record = TimedRecord(lambda: time.time_ns() // 1000, log)
        self._report = Report(code=code_digest())
        config = f"{plan.directory}/delayserver.toml"
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG)
        self._cluster = Cluster(nodes, ways, plan.directory, config)
        self._gaps: dict[Kind, list[tuple[float, float]]] = {kind: [] for kind in Kind}

    def run(self) -> Report:
        """Runs all takeovers, the drain and the verdict."""
        started_s = time.monotonic()
        record, report = self._record, self._report
        with self._cluster:
            load = self._load_on(self._cluster.primary())
            kinds = itertools.cycle(Kind)
            try:
                for number in range(1, self._plan.kills + 1):
                    load = self._one(next(kinds), load)
                    report.kills = number
                    self._say(self._progress(number, time.monotonic() - started_s))
                    if record.violations_total > 100:
                        break
                load.finish()
            finally:
                load.abandon()
            self._note(load)
            conclude(self._plan, record, report, self._cluster.primary().server.address)
            for member in self._cluster.members.values():
                member.server.stop()
        report.seconds = round(time.monotonic() - started_s, 1)
        report.takeovers = {kind: _times(gaps) for kind, gaps in self._gaps.items() if gaps}
        return report

    def _load_on(self, primary: Member) -> Load:
        load = Load(self._plan, self._record, primary.server.address, self._chance.randrange(1 << 60))
        load.start()
        return load

    def _note(self, load: Load) -> None:
        for problem in load.problems:
            self._record.violate(problem)

    def _one(self, kind: Kind, load: Load) -> Load:
        """One takeover. Returns the load on the new primary."""
        cluster, record = self._cluster, self._record
        old = cluster.primary()
        self._wait_for_more(old, load, time.monotonic())
        time.sleep(self._plan.run_s_max * self._chance.random())
        deposed = Deposed(record, old) if kind in (Kind.STOP, Kind.CUT) else None
        record.stopping()
        begun = time.monotonic()
        handing_over = self._strike(kind, old)
        if kind is Kind.STOP and deposed is not None:
            deposed.ask()
        new = cluster.primary(but=old.name)
        load.abandon()
        handing_over.join()
        record.crashed()
        self._note(load)
        load = self._load_on(new)
        self._wait_for_more(new, load, time.monotonic())
        self._gaps[kind].append((longest_gap(record.acknowledged, begun), longest_gap(record.delivered, begun)))
        self._go_on(kind, old, deposed, begun)
        return load

    def _strike(self, kind: Kind, old: Member) -> threading.Thread:
        """End a leadership. Returns the thread that may still be at it."""
        others = [name for name in self._cluster.members if name != old.name]
        heir = self._chance.choice(others)
        act: Callable[[], object] = {
            Kind.KILL: old.server.kill,
            Kind.STOP: old.server.pause,
            Kind.CUT: old.gate.shut,
            Kind.SWITCH: lambda: self._hand_over(old, heir),
        }[kind]
        thread = threading.Thread(target=act)
        thread.start()
        if kind is not Kind.SWITCH:
            thread.join()
        return thread

    def _hand_over(self, old: Member, heir: str) -> None:
        try:
            with old.straight() as client:
                client.switch_primary(heir)
        except DelayServerError as error:
            self._record.violate(f"{old.name} could not hand over to {heir}: {error}")

    def _go_on(self, kind: Kind, old: Member, deposed: Deposed | None, begun: float) -> None:
        """The former primary comes back, and follows."""
        if kind is Kind.KILL:
            old.server.start()
        elif kind is Kind.STOP:
            time.sleep(max(0.0, self._plan.stop_s - (time.monotonic() - begun)))
            old.server.resume()
        elif kind is Kind.CUT and deposed is not None:
            deposed.ask()
            time.sleep(self._plan.stop_s * self._chance.random() / 4)
            old.gate.reopen()
        if deposed is not None:
            deposed.judge()
        self._cluster.wait_until_it_follows(old)

    def _wait_for_more(self, primary: Member, load: Load, begun: float) -> None:
        """Return when a message was acknowledged and one delivered since then. A violation if that does not come."""
        end = begun + GOES_ON_S_MAX
        for name, what in (("acknowledged", self._record.acknowledged), ("delivered", self._record.delivered)):
            while not what or what[-1] < begun:
                if time.monotonic() > end:
                    ended = "; ".join(load.ended) or "no thread of the load has ended"
                    self._record.violate(f"nothing is {name} within {GOES_ON_S_MAX:g} s ({ended}); {primary.told()}")
                    return
                time.sleep(0.01)

    def _progress(self, number: int, seconds: float) -> str:
        record = self._record
        last = [f"{kind} {gaps[-1][0]:.2f} s" for kind, gaps in self._gaps.items() if gaps]
        return (
            f"{number}/{self._plan.kills} takeovers, {seconds:.0f} s: {len(record.sent)} sent, {record.arrived_total} "
            f"arrived, {sum(record.duplicates.values())} repeats explained, {record.violations_total} violations; "
            f"last without an ack: {', '.join(last)}"
        )


def longest_gap(moments: Sequence[float], begun: float) -> float:
    """The longest time between two of the moments, from the last one before `begun` on."""
    after = [moment for moment in moments if moment > begun]
    before = [moment for moment in moments if moment <= begun]
    times = [before[-1] if before else begun, *after]
    return max((later - earlier for earlier, later in itertools.pairwise(times)), default=0.0)


def _times(gaps: Sequence[tuple[float, float]]) -> Times:
    acks, deliveries = [ack for ack, _ in gaps], [delivery for _, delivery in gaps]
    return Times(
        len(gaps),
        round(statistics.median(acks), 2),
        round(max(acks), 2),
        round(statistics.median(deliveries), 2),
        round(max(deliveries), 2),
    )


def table(times: dict[str, Times]) -> str:
    """The times for people, a line a kind."""
    lines = ["takeovers by  count   s without an ack: median, worst   s without a delivery: median, worst"]
    for kind, each in times.items():
        lines.append(
            f"{kind:<12} {each.count:>6} {each.no_ack_median_s:>25.2f} {each.no_ack_worst_s:>8.2f}"
            f" {each.no_delivery_median_s:>26.2f} {each.no_delivery_worst_s:>8.2f}"
        )
    return "\n".join(lines)
