"""A producer of Kafka, and the thread that asks it what became of records. It is made anew when it cannot go on.

Records are handed over on the event loop, or by a worker thread. Reports come in the producer's own thread, and wake a
delivery once, when it has all of its reports.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import trio
from confluent_kafka import KafkaError, KafkaException, Producer
from numpy.typing import NDArray

from delayserver.runtime.marks import Bell
from delayserver.targets.answer import RowAnswer
from delayserver.targets.target import DeliveryError

LOOK_S: Final = 0.2
"""How often the thread looks whether it shall end."""
LAST_REPORTS_S: Final = 2.0
FIRST_LOOK_S: Final = 0.5
"""No longer than this is waited for a broker, where connections failed and none was made since."""
AGAIN_S: Final = 1.0
"""Before a producer is made again."""

_STORED, _UNKNOWN = int(RowAnswer.STORED), int(RowAnswer.UNKNOWN)


class RecordReports:
    """Records of one delivery, and what became of each: RowAnswer codes, UNKNOWN without a report.

    `code_of` gives the code of an error."""

    __slots__ = ("_code_of", "_codes", "_done", "_expected", "_loop", "_reported", "error")

    def __init__(self, count: int, code_of: Callable[[KafkaError], int]) -> None:
        self._codes = bytearray([_UNKNOWN]) * count
        self._code_of = code_of
        self._reported = 0
        self._expected = -1
        self._done = trio.Event()
        self._loop = trio.lowlevel.current_trio_token()
        self.error: KafkaError | None = None

    @property
    def codes(self) -> NDArray[np.uint8]:
        """The codes as they are now, u8[n]."""
        return np.array(self._codes, np.uint8)

    def reported(self, place: int, error: KafkaError | None, _message: object) -> None:
        """From the producer's thread: what became of the record at this place."""
        if error is None:
            self._codes[place] = _STORED
        else:
            self.set_error(place, error)
        self._reported += 1
        if self._reported == self._expected:
            with contextlib.suppress(trio.RunFinishedError):
                self._loop.run_sync_soon(self._done.set)

    def set_code(self, place: int, code: RowAnswer) -> None:
        """The record is not handed over."""
        self._codes[place] = code

    def set_error(self, place: int, error: KafkaError) -> None:
        """The record has no report but this."""
        self._codes[place] = self._code_of(error)
        self.error = error

    async def wait(self, sent: int) -> None:
        """Return when so many records have their reports: all that were sent. `reported` may run beside this."""
        self._expected = sent
        while self._reported != sent:
            await self._done.wait()
            # A wake of the part before may come late.
            self._done = trio.Event()


class KafkaProducer:
    """The producer of one node. `run` is a task; the other methods are for the event loop."""

    def __init__(self, options: Callable[[], dict[str, Any]]) -> None:
        """`options`: of librdkafka, as they are now. Raises ValueError."""
        self._options = options
        self._producer: Producer | None = None
        self._changed = Bell()
        self._why = "the producer is not made yet"
        # What the library said of a connection since a broker answered. It does not repeat itself.
        self.told = ""
        self._down = True
        # Whether the credentials were refused, and whether the producer shall be made anew for that.
        self._denied = self._renew = False

    @property
    def doubtful(self) -> bool:
        """Whether no broker answered yet, or all have been lost since."""
        return self._down

    def doubt(self) -> None:
        """A record had no report in time."""
        self._down = True

    def get(self) -> Producer:
        """The producer. Raises DeliveryError while there is none."""
        if self._producer is None:
            raise DeliveryError(self._why, known=True)
        return self._producer

    async def ready(self) -> None:
        """Return when there is a producer, or a reason why there is none."""
        while self._producer is None and not self.told:
            self._changed.hush()
            await self._changed.rung()

    async def run(self) -> None:
        """Keep a producer until cancelled."""
        end = threading.Event()
        loop = trio.lowlevel.current_trio_token()
        while True:
            async with trio.open_nursery() as nursery:
                over = trio.Event()
                nursery.start_soon(self._beside, partial(self._serve, loop, end), over)
                try:
                    await over.wait()
                finally:
                    end.set()
            end.clear()
            await trio.sleep(AGAIN_S)

    async def _beside(self, work: Callable[[], str], over: trio.Event) -> None:
        self._why = await trio.to_thread.run_sync(work, limiter=trio.CapacityLimiter(1))
        self._producer = None
        self.told = self._why
        self._down = True
        self._changed.ring()
        over.set()

    def _serve(self, loop: trio.lowlevel.TrioToken, end: threading.Event) -> str:
        """The thread: make a producer and poll it. Returns why it cannot go on."""
        self._denied = self._renew = False
        try:
            producer = Producer(self._options() | {"error_cb": self._hear})
        except (KafkaException, ValueError) as error:
            return f"the producer cannot be made: {reason_of(error)}"
        loop.run_sync_soon(self._use, producer)
        why = ""
        while not why and not end.is_set():
            try:
                producer.poll(LOOK_S)
            except KafkaException as error:
                why = f"the producer cannot go on: {reason_of(error)}"
            if self._renew:
                why = self.told
        loop.run_sync_soon(self._use, None)
        # What is not sent yet must not go out later: its rows are tried again.
        producer.purge(blocking=False)
        with contextlib.suppress(KafkaException):
            producer.flush(LAST_REPORTS_S)
        return why

    def _use(self, producer: Producer | None) -> None:
        self._producer = producer
        self._changed.ring()

    def _hear(self, error: KafkaError) -> None:
        """From the producer's thread: what the library says of its connections."""
        self.told = error.str()
        self._denied |= error.code() == KafkaError._AUTHENTICATION
        self._down |= error.code() in (KafkaError._ALL_BROKERS_DOWN, KafkaError._AUTHENTICATION)

    def look(self, topic: str | None, wait_s: float) -> KafkaError | None:
        """For a worker thread: ask a broker for a topic. Returns the topic's error. Raises DeliveryError (known)."""
        producer = self.get()
        try:
            answer = self._ask(producer, topic, wait_s)
        except KafkaException as error:
            # The next producer has the credentials as they are then.
            self._renew = self._denied
            raise DeliveryError(f"no broker answers: {self.told or reason_of(error)}", known=True) from error
        self._down, self.told = False, ""
        found = answer.topics.get(topic)
        return None if found is None else found.error

    def _ask(self, producer: Producer, topic: str | None, wait_s: float) -> Any:
        """The answer of a broker. Raises KafkaException."""
        ask = partial(producer.list_topics, topic) if topic else producer.list_topics
        try:
            return ask(timeout=min(FIRST_LOOK_S, wait_s))
        except KafkaException:
            if self.told or wait_s <= FIRST_LOOK_S:
                raise
            return ask(timeout=wait_s - FIRST_LOOK_S)


def reason_of(error: Exception) -> str:
    """What an error of the library says."""
    inner = error.args[0] if error.args else error
    return inner.str() if isinstance(inner, KafkaError) else str(inner)
