"""A day in a shop: one server that lives as users have it live, watched for what grows.

It has thousands of subjects, rows and columns, cancels, moves, poison messages and dead letters. Groups come and go. A
scraper looks each second, a console is open, and the server restarts. Retention is short, so that after a minute as much is
removed as comes. From then on memory, open files, disk and round trips have to stay flat.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import trio

from delayserver.client import AsyncClient, DelayServerError
from ops.torture.server import TorturedServer
from ops.torture.shop.actors import POST, TILL, Shop, now_ms
from ops.torture.shop.figures import Probes, Sample, look
from ops.torture.shop.flat import SAMPLES_MIN, Bound, growth
from ops.torture.shop.ledger import Ledger
from ops.torture.shop.prober import Prober
from ops.torture.shop.watchers import Watchers

CONFIG: Final = """\
[storage]
window_ms = 1000
message_log_segment_bytes = 4194304
message_log_retention_ms = 10000
retention_ms = 20000
clock_hold_ms = 5000
[broker]
segment_bytes = 4194304
retention_ms = 10000
unconsumed_retention_ms = 20000
redelivery_first_ms = 100
"""

BOUNDS: Final[Mapping[str, Bound]] = {
    # A heap that is half used may grow by a fifth for a burst; a gateway holds what its slowest reader has not taken.
    "server_mb": Bound(1.15, 30.0),
    "gateway_mb": Bound(1.15, 20.0),
    "files": Bound(1.2, 40.0),
    # Segments are made ahead in whole.
    "disk_mb": Bound(1.25, 32.0),
}
TRIPS: Final = Bound(3.0, 200.0)
"""Round trips swing with the machine. So they are judged in long runs only."""
JUDGED_S: Final = 600.0
SETTLE_S: Final = 8.0
"""After a start the server reads its files again. Samples of that time are of another kind."""
DRAIN_S: Final = 120.0
SAMPLE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class DayPlan:
    """The length of a day, its restarts, and how busy it is. Every third restart is a kill."""

    seconds: float
    seed: int
    directory: str
    restart_every_s: float
    rate: float = 1.0
    line_every_s: float = 10.0


@dataclass(slots=True)
class DayReport:
    """What a day has shown. `violations` are broken promises, `growing` the figures that did not stay flat."""

    passed: bool = False
    seconds: float = 0.0
    restarts: int = 0
    kills: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    violations_total: int = 0
    growing: list[str] = field(default_factory=list)
    most: dict[str, float] = field(default_factory=dict)
    code: str = ""

    def to_map(self) -> dict[str, Any]:
        """The report for JSON."""
        return asdict(self)


def judge_growth(samples: list[Sample], seconds: float) -> list[str]:
    """A sentence for each figure that grew. Fewer samples than `SAMPLES_MIN` are a fault of the run, and said too."""
    if len(samples) < SAMPLES_MIN:
        return [f"only {len(samples)} samples: the server was never there for long enough"]
    bounds = dict(BOUNDS) | ({"p99_ms": TRIPS} if seconds >= JUDGED_S else {})
    found = {name: growth([getattr(sample, name) for sample in samples], bound) for name, bound in bounds.items()}
    return [f"{name} grew from {each[0]:.1f} to {each[1]:.1f}" for name, each in found.items() if each]


class Day:
    """One day. `say` gets a line for each sample that is shown."""

    def __init__(self, plan: DayPlan, ports: tuple[int, int], say: Callable[[str], None]) -> None:
        self._plan = plan
        self._say = say
        config = f"{plan.directory}/delayserver.toml"
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIG)
        self._data_dir = f"{plan.directory}/data"
        self._server = TorturedServer(plan.directory, config, self._data_dir, ports)
        self._ledger, self._probes = Ledger(), Probes()
        self._watchers = Watchers(ports[1], self._ledger.counts)
        self._prober = Prober(self._probes)
        self._samples: list[Sample] = []
        self._report = DayReport()
        self._began = time.monotonic()
        self._started = self._began

    async def run(self) -> DayReport:
        """The day, the drain behind it, and the verdict."""
        self._server.start()
        self._began = self._started = time.monotonic()
        self._watchers.start()
        self._prober.start(self._server.address)
        try:
            async with AsyncClient(self._server.address, timeout_s=60.0) as client:
                await self._live(client)
        finally:
            self._watchers.stop()
            self._prober.stop()
            self._report.seconds = round(time.monotonic() - self._began, 1)
            self._server.clean_up()
        return self._verdict()

    async def _live(self, client: AsyncClient) -> None:
        shop = Shop(client, self._ledger, random.Random(self._plan.seed), self._plan.rate)
        async with trio.open_nursery() as consumers:
            consumers.start_soon(shop.consume)
            async with trio.open_nursery() as day:
                day.start_soon(shop.run)
                day.start_soon(self._sample)
                await self._restart_now_and_then()
                shop.close()
                day.cancel_scope.deadline = trio.current_time() + 30.0
            await self._drain(client)
            consumers.cancel_scope.cancel()
        await trio.to_thread.run_sync(self._server.stop)

    async def _restart_now_and_then(self) -> None:
        """Returns at the end of the day."""
        while (left_s := self._plan.seconds - (time.monotonic() - self._began)) > 0:
            if left_s < self._plan.restart_every_s * 1.5:
                await trio.sleep(left_s)
                return
            await trio.sleep(self._plan.restart_every_s)
            self._report.restarts += 1
            kill = self._report.restarts % 3 == 0
            self._report.kills += kill
            await trio.to_thread.run_sync(self._server.kill if kill else self._server.stop)
            await trio.to_thread.run_sync(self._server.start)
            self._started = time.monotonic()

    async def _sample(self) -> None:
        shown = 0.0
        while True:
            await trio.sleep(SAMPLE_S)
            pid, passed = self._server.pid, time.monotonic() - self._began
            if passed > self._plan.seconds:
                return
            if pid is None or time.monotonic() - self._started < SETTLE_S:
                continue
            sample = await trio.to_thread.run_sync(look, round(passed), pid, self._data_dir, self._probes)
            if sample is None or self._server.pid != pid:
                continue
            self._samples.append(sample)
            if passed - shown >= self._plan.line_every_s:
                shown = passed
                counts = self._ledger.counts
                self._say(f"{sample.line()}  sent {counts['sent']}  handled {counts['handled']}  dead {counts['dead']}")

    # -- the end

    async def _drain(self, client: AsyncClient) -> None:
        """Waits until everything has come. What has not come after a long while is lost."""
        with trio.move_on_after(DRAIN_S):
            while self._ledger.missing(now_ms() + 10_000) or not await self._is_idle(client):
                await trio.sleep(0.5)
            return
        for number in self._ledger.missing(now_ms()):
            self._ledger.violate(f"message {number} was acknowledged and never came")
        if not await self._is_idle(client):
            self._ledger.violate("messages are pending, or a group lags, and nothing comes")

    async def _is_idle(self, client: AsyncClient) -> bool:
        try:
            pending = (await client.status())["pending"]
            lag = sum([group.lag for group in await client.groups() if group.group in (TILL, POST)])
        except DelayServerError:
            return False
        return not pending and not lag

    def _verdict(self) -> DayReport:
        report, ledger = self._report, self._ledger
        report.counts = dict(sorted(ledger.counts.items()))
        report.violations, report.violations_total = ledger.violations, ledger.violations_total
        report.growing = judge_growth(self._samples, self._plan.seconds)
        names = (*BOUNDS, "p99_ms")
        report.most = {
            name: round(max((getattr(each, name) for each in self._samples), default=0.0), 1) for name in names
        }
        report.passed = not report.violations_total and not report.growing
        return report
