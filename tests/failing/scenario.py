"""One scripted day of a real server on a fake disk that refuses one call, and the judgement of it on a healthy disk.

The day: start, sends of every kind, transactions, replay, loads, deliveries, cancels, lookups, consuming, retention, a
crash, a start that replays, a clean stop. Exactly one call of the disk is refused in it. After it the server runs on a
healthy disk, and everything that was acknowledged must be there.
"""

from __future__ import annotations

import errno
import logging
import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import trio
import trio.testing
from trio._core import _run as trio_run

from delayserver.protocol.errors import DelayServerError
from store.errors import StoreError
from tests.fakes.host import Client, Host, small_settings

HOUR_MS = 3_600_000
# Errors that a client may get while the disk refuses.
ALLOWED = {"storage_failed", "disk_full", "not_ready", "shutting_down", "queue_full", "message_damaged", "too_old"}
GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


class ServerDied(Exception):
    """The server ended; the day is over."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the disk: what was asked, of which kind of file."""

    operation: str
    kind: str


@dataclass(slots=True)
class Fault:
    """Refuses the call with this number (from 1 on), and notes all calls."""

    number: int
    code: int
    calls: list[Call] = field(default_factory=list)

    def refuse(self, operation: str, path: str) -> int:
        """For `FakeDisk.refuse`."""
        self.calls.append(Call(operation, kind_of(path)))
        return self.code if len(self.calls) == self.number else 0


@dataclass(slots=True)
class Record:
    """What the client knows. Bodies name messages."""

    accepted: dict[str, str] = field(default_factory=dict)
    cancelled: set[str] = field(default_factory=set)
    maybe_cancelled: set[str] = field(default_factory=set)
    # Receipts of transactions, and those that no consumer may ever get.
    prepared: dict[str, str] = field(default_factory=dict)
    never: set[str] = field(default_factory=set)
    pulled: Counter[str] = field(default_factory=Counter)
    acked: set[str] = field(default_factory=set)
    errors: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)


def kind_of(path: str) -> str:
    """The path without what differs from file to file of a kind."""
    return re.sub(r"\d+(-\d+)*", "#", path)


class Lines(logging.Handler):
    """Collects what the server logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)

    def faults(self) -> list[str]:
        """Tracebacks, and lines that call an error of the disk a bug or corruption."""
        bad = []
        for record in self.records:
            text = record.getMessage()
            if record.exc_info or "bug while" in text or "Traceback" in text:
                bad.append(f"logged with a traceback: {text}")
            elif text.startswith("corruption:"):
                bad.append(f"called corruption: {text}")
        return bad


class Day:
    """Drives one host through the day."""

    def __init__(self, host: Host, record: Record) -> None:
        self._host = host
        self.record = record
        self._client: Client | None = None

    async def ask(self, operation: str, **arguments: Any) -> dict[str, Any] | None:
        """The result, or None where it was refused by a name that may be. Raises ServerDied."""
        if self._host.died_of is not None:
            raise ServerDied
        try:
            if self._client is None:
                self._client = await self._host.client()
            return await self._client.request(operation, arguments)
        except DelayServerError as error:
            self._refused(operation, error.name)
            return None
        except GONE:
            self._client = None
            raise ServerDied from None

    def _refused(self, operation: str, name: str) -> None:
        self.record.errors[name] += 1
        if name not in ALLOWED:
            self.record.faults.append(f"{operation} was answered {name}")

    async def send(self, *bodies: str, due_ms: int, **rest: Any) -> None:
        """Send messages, and remember those that are acknowledged."""
        messages = [{"subject": "s", "body": body, "due_ms": due_ms} | rest for body in bodies]
        result = await self.ask("send", messages=messages)
        for body, item in zip(bodies, result["results"] if result else [], strict=False):
            if "receipt" in item:
                self.record.accepted[body] = item["receipt"]
            else:
                self._refused("send", item["error"])

    async def cancel(self, *bodies: str) -> None:
        """Cancel what was acknowledged."""
        known = [body for body in bodies if body in self.record.accepted]
        self.record.maybe_cancelled.update(known)
        result = await self.ask("cancel", receipts=[self.record.accepted[body] for body in known]) if known else None
        for body, item in zip(known, result["results"] if result else [], strict=False):
            if item.get("outcome") == "cancelled":
                self.record.cancelled.add(body)
            elif item.get("outcome") == "unknown":
                self.record.faults.append(f"cancel of {body}, which was accepted, was answered unknown")

    async def prepare(self, *bodies: str, **terms: Any) -> None:
        """Prepare transactions, and remember those that are acknowledged."""
        messages = [{"subject": "s", "body": body, "due_ms": self._host.now_ms} for body in bodies]
        result = await self.ask("prepare", messages=messages, group="p", **terms)
        for body, item in zip(bodies, result["results"] if result else [], strict=False):
            if "receipt" in item:
                self.record.prepared[body] = item["receipt"]
            else:
                self._refused("prepare", item["error"])

    async def end(self, operation: str, body: str) -> None:
        """Commit or roll back what was acknowledged. A committed one is a message that was acknowledged."""
        if body not in self.record.prepared:
            return
        result = await self.ask(operation, receipts=[self.record.prepared[body]])
        for item in result["results"] if result else []:
            if "error" in item:
                self._refused(operation, item["error"])
            elif operation == "commit":
                self.record.accepted[body] = item["new_receipt"]
            else:
                self.record.never.add(body)

    async def lookup(self) -> dict[str, str]:
        """Outcomes by body of all that was acknowledged."""
        bodies = list(self.record.accepted)
        result = await self.ask("lookup", receipts=list(self.record.accepted.values())) if bodies else None
        found = {}
        for body, item in zip(bodies, result["results"] if result else [], strict=False):
            if "outcome" in item:
                found[body] = item["outcome"]
                if item["outcome"] == "unknown":
                    self.record.faults.append(f"lookup of {body}, which was accepted, was answered unknown")
            else:
                self._refused("lookup", item["error"])
        return found

    async def consume(self, *, ack: bool = True, nack: bool = False) -> int:
        """Pull once, then ack or hand back what came."""
        result = await self.ask("pull", subject="s", group="g", max_messages=100, wait_ms=0, ack_timeout_ms=4_000)
        messages = result["messages"] if result else []
        bodies = [message["body"].decode() for message in messages]
        for body in bodies:
            self.record.pulled[body] += 1
            if body in self.record.acked:
                self.record.faults.append(f"{body} came again after its ack")
            if body in self.record.cancelled:
                self.record.faults.append(f"{body} came though it was cancelled")
            if body in self.record.never:
                self.record.faults.append(f"{body} came though no client committed it")
        if messages and (ack or nack):
            column = b"".join([message["delivery"].to_bytes(8, "little", signed=True) for message in messages])
            settled = await self.ask(
                "nack" if nack else "ack", subject="s", group="g", count=len(messages), deliveries=column
            )
            if settled is not None and not nack and settled["unknown"] == 0:
                self.record.acked.update(bodies)
        return len(messages)

    async def first_life(self) -> None:
        """Sends of every kind, and all that may follow within some seconds."""
        host = self._host
        now_ms = host.now_ms
        await self.send("at once", due_ms=now_ms)
        await self.send("soon 1", "soon 2", "soon 3", due_ms=now_ms + 1_500, properties={"a": "b"})
        await self.send("named", due_ms=now_ms + 2_500, message_id="name")
        await self.send("minute", "minute 2", "minute 3", due_ms=now_ms + 20_000)
        await self.send("far", "far 2", due_ms=now_ms + 72 * HOUR_MS)
        self.record.never.add("deal of nobody")
        await self.prepare("deal", "deal back", "deal of nobody", check_after_ms=5_000, checks_max=1)
        await self.end("commit", "deal")
        await self.end("rollback", "deal back")
        await host.sleep_ms(700)
        await self.consume()
        await self.cancel("soon 2", "far 2")
        await self.ask("lookup", messages=[{"subject": "s", "message_id": "name", "due_ms": now_ms + 2_500}])
        await host.sleep_ms(1_500)
        await self.consume(nack=True)
        await self.lookup()
        await self.send("named again", due_ms=now_ms + 2_500, message_id="name")
        self.record.accepted.pop("named again", None)  # a copy of `named`, or the server says that it is too old
        await host.sleep_ms(3_000)
        await self.consume()
        await host.sleep_ms(4_000)
        await self.lookup()
        await self.cancel("minute 2", "soon 1")
        await self.ask("status")

    async def second_life(self) -> None:
        """Everything is read anew."""
        host = self._host
        await self.lookup()
        await self.cancel("minute 3", "soon 3")
        await self.send("late", due_ms=host.now_ms + 1_000)
        await host.sleep_ms(14_000)
        await self.consume(ack=False)
        await host.sleep_ms(6_000)
        await self.consume()
        await self.lookup()

    def forget_connection(self) -> None:
        """The server is another process now."""
        self._client = None


def settings() -> Any:
    """Windows of a second, small files, retention within the day: every kind of file is made, read and removed."""
    return small_settings(
        storage={
            "window_ms": 1_000,
            "message_log_segment_bytes": 4_096,
            "message_log_retention_ms": 1_000,
            "retention_ms": 4_000,
            "checkpoint_interval_ms": 700,
            "open_files_max": 16,
        },
        wheel={"load_ahead_ms": 3_000},
        broker={"segment_bytes": 4_096, "retention_ms": 3_000},
        shutdown_timeout_ms=2_000,
    )


async def live(number: int, code: int) -> tuple[Record, list[Call]]:
    """The whole day with the call `number` refused, and the judgement. Faults are in the record."""
    record, fault, lines = Record(), Fault(number, code), Lines()
    logger = logging.getLogger("delayserver")
    level, propagate = logger.level, logger.propagate
    logger.addHandler(lines)
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    try:
        async with trio.open_nursery() as nursery:
            host = Host(nursery, settings())
            host.disk.refuse = fault.refuse
            day = Day(host, record)
            await _bad_day(host, day, record)
            host.disk.refuse = None
            record.faults += lines.faults()
            if not record.faults:
                await _judge(host, day, record)
                record.faults += [text for text in lines.faults() if text not in record.faults]
            await host.kill()
            nursery.cancel_scope.cancel()
    finally:
        logger.removeHandler(lines)
        logger.setLevel(level)
        logger.propagate = propagate
    return record, fault.calls


async def _bad_day(host: Host, day: Day, record: Record) -> None:
    """Ends with a dead server in any case."""
    try:
        await host.start()
        await day.first_life()
        await host.kill()
        day.forget_connection()
        await host.start()
        await day.second_life()
        host.server.stop()
        await host.wait_down()
    except ServerDied:
        await host.wait_down()
    day.forget_connection()
    for leaf in _leaves(host.died_of):
        if not isinstance(leaf, StoreError):
            record.faults.append(f"the server died of {leaf!r}")
    host.disk.kill()


def _leaves(error: BaseException | None) -> list[BaseException]:
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in _leaves(part)]
    return [error]


async def _judge(host: Host, day: Day, record: Record) -> None:
    """On a healthy disk: what was acknowledged comes, what was cancelled does not, and the balance holds."""
    await host.start()
    assert host.died_of is None, host.died_of
    quiet = 0
    # Longer than an ack timeout, and than all that is due within the day.
    for _ in range(60):
        await host.sleep_ms(500)
        quiet = 0 if await day.consume() else quiet + 1
    found = await day.lookup()
    for body in record.accepted:
        came = record.pulled[body] > 0
        if body in ("far", "far 2"):
            pending = found.get(body) == "pending"
            if not pending and body not in record.maybe_cancelled:
                record.faults.append(f"{body} is {found.get(body)}, not pending")
        elif not came and body not in record.maybe_cancelled:
            record.faults.append(f"{body} was acknowledged and never came: {found.get(body)}")
        elif not came and body not in record.cancelled and found.get(body) not in ("cancelled", "retired"):
            record.faults.append(f"{body} neither came nor was it cancelled: {found.get(body)}")
    host.check_balance()
    await host.restart()


def run(number: int, code: int) -> tuple[Record, list[Call]]:
    """`live` in simulated time. Tasks run in the same order each time, so that a call of the disk has one number."""
    trio_run._ALLOW_DETERMINISTIC_SCHEDULING = True  # type: ignore[misc]
    trio_run._r.seed(0)
    return trio.run(live, number, code, clock=trio.testing.MockClock(autojump_threshold=0))


def calls_of_a_good_day() -> list[Call]:
    """All calls of the disk in a day without a fault."""
    record, calls = run(0, errno.EIO)
    assert not record.faults, record.faults
    assert not record.errors, record.errors
    return calls
