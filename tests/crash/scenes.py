"""How a server is brought to a crash point under load, and what must hold when it runs again."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TypeVar

from delayserver.protocol.errors import DelayServerError
from ops.torture.consuming import Consumer
from ops.torture.producing import LOST, SUBJECT, Producer
from ops.torture.record import Fate, Record
from ops.torture.verdict import drain, judge
from store.logs.due_windows import DAY_MS, day_of
from tests.crash.points import BY_NAME, COARSE, DAYS, FRESH, LOAD, RESTART, RETENTION, STOP, TORN_RESTART, Point
from tests.crash.process import KIB, ServerUnderTest, small_settings, with_retention

# A point that is not reached within this is not reached: far beyond the second that it takes.
REACH_TIMEOUT_S = 60.0
EMPTY_PULLS_MAX = 50
# The shortest pull that waits. A server answers at once when something comes, so nothing is seen later by this.
PULL_WAIT_S = 0.2
# The load comes as fast as the server takes it, and then slowly: some points wait for windows to end, not for messages.
FAST_STEPS = 16
PAUSE_S = 0.12
# Across the end of a window, and soon over.
DELAY_MS_MAX = 700
SEGMENT_BYTES = 8 * KIB
STEPS_BEFORE_KILL = 8
Side = TypeVar("Side", Producer, Consumer)


class PatientConsumer(Consumer):
    """A consumer that asks seldom while nothing comes."""

    def step(self, wait_s: float = 0.0, subject: str = SUBJECT, *, drain: bool = False) -> int:
        """Pulls once and settles some deliveries."""
        return super().step(max(wait_s, PULL_WAIT_S) if wait_s else 0.0, subject, drain=drain)


@contextmanager
def closing_client(side: Side) -> Iterator[Side]:
    """A side of the load whose connection is closed at the end."""
    try:
        yield side
    finally:
        side.client.close()


class Scene:
    """One run: a server that dies at a point, and one that has to make good on what it promised."""

    def __init__(self, folder: Path, point: Point) -> None:
        self.point = point
        settings = small_settings(str(folder / "data"))
        settings = replace(
            settings,
            storage=replace(settings.storage, message_log_segment_bytes=SEGMENT_BYTES),
            broker=replace(settings.broker, segment_bytes=SEGMENT_BYTES),
        )
        if point.scene == RETENTION:
            settings = with_retention(settings)
        if point.scene in (COARSE, DAYS):
            settings = replace(settings, storage=replace(settings.storage, fine_horizon_ms=1))
        self.server = ServerUnderTest(folder, settings)
        # Not the next midnight: it may pass before the kill.
        self._midnight_ms = day_of(self.server.now_us() // 1000) + 2 * DAY_MS
        self._that_day = {"due_base_ms": self._midnight_ms, "delay_ms_max": 2999}
        self.chance = random.Random(zlib.crc32(point.name.encode()))
        # Line by line, so that a failed scene can be read beside its files.
        self._history = (folder / "record.txt").open("w", buffering=1)
        self.record = Record(self.server.now_us, self._history)

    # -- load

    def _producer(self, **producing: int) -> Producer:
        more: dict[str, int] = {"delay_ms_max": DELAY_MS_MAX, **producing}
        rare = self.point.scene != RETENTION
        return Producer(self.record, self.server.address, self.chance, rare_subjects=rare, **more)

    def work(self, enough: Callable[[int], bool], **producing: int) -> None:
        """Requests, one after the other, until there were enough or the server is gone. `enough` is told their number."""
        with (
            closing_client(self._producer(**producing)) as producer,
            closing_client(Consumer(self.record, self.server.address, self.chance)) as consumer,
        ):
            for steps in count():
                if enough(steps):
                    return
                if steps >= FAST_STEPS:
                    time.sleep(PAUSE_S)
                try:
                    producer.step()
                    consumer.step()
                except LOST:
                    return
                except DelayServerError as error:
                    self.record.failed(error)
                    time.sleep(0.005)  # it is stopping

    def work_for(self, duration_s: float, **producing: int) -> None:
        """Load for a time."""
        end_s = time.monotonic() + duration_s
        self.work(lambda _steps: time.monotonic() > end_s, **producing)

    def _die(self, point: Point) -> None:
        """Start a server that dies at a point, and give it reason to."""
        self.server.control.armed = point.scene != STOP
        ahead = self._that_day if point.scene == COARSE else {}
        if self.server.start(point.name):
            if point.scene == STOP:
                self.work(lambda steps: steps >= STEPS_BEFORE_KILL)
                self.server.control.armed = True
                self.record.stopping()
                self.server.terminate()
            self.work_for(REACH_TIMEOUT_S, **ahead)
        code = self.server.wait()
        assert self.server.died_at == point.name, (
            f"{point.name} was not reached (exit code {code}): {self.server.said()}"
        )
        self.record.crashed()

    def _run_and_kill(self, enough: Callable[[int], bool], **producing: int) -> None:
        assert self.server.start(), self.server.said()
        self.work(enough, **producing)
        self.server.kill()
        self.record.crashed()

    # -- the scenes

    def play(self) -> None:
        """Everything up to the crash at the point."""
        scene = self.point.scene
        if scene == RESTART:
            self._run_and_kill(lambda steps: steps >= STEPS_BEFORE_KILL)
        elif scene == TORN_RESTART:
            self._die(BY_NAME[self.point.earlier])
        elif scene == DAYS:
            self._fill_a_day()
        else:
            assert scene in (COARSE, FRESH, LOAD, RETENTION, STOP)
        self._die(self.point)
        if scene == COARSE:
            self._go_to_that_day()

    def _fill_a_day(self) -> None:
        # A cancel of this day is in a file that is given back with the day's.
        self._run_and_kill(
            lambda steps: steps >= STEPS_BEFORE_KILL and bool(self.record.of(Fate.ENDED)), **self._that_day
        )
        self._go_to_that_day()

    def _go_to_that_day(self) -> None:
        """What was one file becomes windows, overdue ones first."""
        self.server.control.step_us = (self._midnight_ms + 2000) * 1000 - time.time_ns() // 1000

    def watch(self) -> None:
        """The scene without a crash, for what the server does in it."""
        if self.point.scene == DAYS:
            self._fill_a_day()
        assert self.server.start(), self.server.said()
        self.work_for(3.0 if self.point.scene == RETENTION else 1.0)
        code = self.server.stop()
        assert code == 0, f"exit code {code}: {self.server.said()}"

    def finish(self) -> None:
        """A normal start, the questions of a client that got no answers, some more load, and the verdict."""
        self.server.control.armed = False
        assert self.server.start(), self.server.said()
        with (
            closing_client(self._producer()) as producer,
            closing_client(PatientConsumer(self.record, self.server.address, self.chance)) as consumer,
        ):
            producer.resolve()
            for _ in range(8):
                producer.step()
            drain(self.record, consumer, EMPTY_PULLS_MAX)
            judge(self.record, producer.client, retired=self.point.scene == RETENTION)
        assert self.record.violations == [], self.told()
        code = self.server.stop()
        assert code == 0, f"exit code {code}: {self.server.said()}"

    def close(self) -> None:
        """Leave no process behind."""
        self.server.clean_up()
        self._history.close()

    def told(self) -> str:
        """The violations and the server's words."""
        return "\n".join([*self.record.violations[:20], "--- the server:", self.server.said()])
