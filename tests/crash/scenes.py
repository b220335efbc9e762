"""How a server is brought to a crash point under load, and what must hold when it runs again."""

from __future__ import annotations

import random
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from delayserver.protocol.errors import DelayServerError
from ops.torture.consuming import Consumer
from ops.torture.producing import LOST, Producer
from ops.torture.record import Record
from ops.torture.verdict import drain, judge
from store.logs.windows import DAY_MS, day_of
from tests.crash.points import BY_NAME, COARSE, DAYS, FRESH, LOAD, RESTART, RETENTION, STOP, TORN_RESTART, Point
from tests.crash.process import ServerUnderTest, small_settings, with_retention

# A point that is not reached within this is not reached: far beyond the second that it takes.
REACH_TIMEOUT_S = 60.0
EMPTY_PULLS_MAX = 200
Side = TypeVar("Side", Producer, Consumer)


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
        if point.scene == RETENTION:
            settings = with_retention(settings)
        if point.scene in (COARSE, DAYS):
            settings = replace(settings, storage=replace(settings.storage, fine_horizon_ms=1))
        self.server = ServerUnderTest(folder, settings)
        self._midnight_ms = day_of(self.server.now_us() // 1000) + DAY_MS
        self._tomorrow = {"due_base_ms": self._midnight_ms, "delay_ms_max": 4000}
        self.chance = random.Random(zlib.crc32(point.name.encode()))
        # Line by line, so that a failed scene can be read beside its files.
        self._history = (folder / "record.txt").open("w", buffering=1)
        self.record = Record(self.server.now_us, self._history)

    # -- load

    def work(self, enough: Callable[[], bool], **producing: int) -> None:
        """Requests, one after the other, until there were enough or the server is gone."""
        rare = self.point.scene != RETENTION
        with (
            closing_client(
                Producer(self.record, self.server.address, self.chance, rare_subjects=rare, **producing)
            ) as producer,
            closing_client(Consumer(self.record, self.server.address, self.chance)) as consumer,
        ):
            while not enough():
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
        self.work(lambda: time.monotonic() > end_s, **producing)

    def _die(self, point: Point) -> None:
        """Start a server that dies at a point, and give it reason to."""
        self.server.control.armed = point.scene != STOP
        ahead = self._tomorrow if point.scene == COARSE else {}
        if self.server.start(point.name):
            if point.scene == STOP:
                self.work_for(0.4)
                self.server.control.armed = True
                self.record.stopping()
                self.server.terminate()
            self.work_for(REACH_TIMEOUT_S, **ahead)
        code = self.server.wait()
        assert self.server.died_at == point.name, (
            f"{point.name} was not reached (exit code {code}): {self.server.said()}"
        )
        self.record.crashed()

    def _run_and_kill(self, duration_s: float, **producing: int) -> None:
        assert self.server.start(), self.server.said()
        self.work_for(duration_s, **producing)
        self.server.kill()
        self.record.crashed()

    # -- the scenes

    def play(self) -> None:
        """Everything up to the crash at the point."""
        scene = self.point.scene
        if scene == RESTART:
            self._run_and_kill(0.5)
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
        self._run_and_kill(0.4, **self._tomorrow)
        self._go_to_that_day()

    def _go_to_that_day(self) -> None:
        """What was one file becomes windows, overdue ones first."""
        self.server.control.step_us = (self._midnight_ms + 1500) * 1000 - time.time_ns() // 1000

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
        rare = self.point.scene != RETENTION
        with (
            closing_client(Producer(self.record, self.server.address, self.chance, rare_subjects=rare)) as producer,
            closing_client(Consumer(self.record, self.server.address, self.chance)) as consumer,
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
