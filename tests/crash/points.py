"""The list of crash points: where in the life of its files the server's process is killed.

A point is an operation on one kind of file, a moment of it, and which time it happens. `SCENES` say how a server is brought
there: a test of each point fails when its server does not die there, so that the list cannot silently lose its meaning.
"""

from __future__ import annotations

from dataclasses import dataclass

BEFORE, TORN, AFTER = "before", "torn", "after"

# How a server comes to its point.
FRESH = "fresh"
"""The first start on an empty directory."""
LOAD = "load"
"""Under load, with small segments."""
RESTART = "restart"
"""While it recovers from an earlier kill under load."""
TORN_RESTART = "torn_restart"
"""While it recovers from a kill that left a torn tail (the point's `earlier`)."""
RETENTION = "retention"
"""Under load, with a retention of a second."""
DAYS = "days"
"""When it starts on the day that was coarse until now, and splits it into windows."""
COARSE = "coarse"
"""Under load that is due tomorrow, and so rests in the file of its day."""
STOP = "stop"
"""Under load, after SIGTERM."""


@dataclass(frozen=True, slots=True)
class Operation:
    """What is done to which kind of file, as `files.py` reports it."""

    room: str
    verb: str


@dataclass(frozen=True, slots=True)
class Point:
    """Kill at the `hit`-th time that `operation` comes to `moment`. `earlier`: the point of the kill before it."""

    name: str
    scene: str
    operation: Operation
    moment: str
    hit: int = 1
    earlier: str = ""


def _points(
    scene: str, room: str, verb: str, moments: str, *, name: str = "", hit: int = 1, earlier: str = ""
) -> list[Point]:
    stem = name or f"{room}.{verb}"
    prefix = "" if scene == LOAD else f"{scene}."
    operation = Operation(room, verb)
    return [Point(f"{prefix}{stem}.{moment}", scene, operation, moment, hit, earlier) for moment in moments.split()]


ALL_MOMENTS = "before torn after"

POINTS: tuple[Point, ...] = tuple(
    # The first start: the directory, the identity, the empty files.
    _points(FRESH, "sequences", "write", "torn")
    + _points(FRESH, "identity", "write", "before torn after")
    + _points(FRESH, "identity", "replace", "before after")
    + _points(FRESH, "names", "create", "torn after")
    + _points(FRESH, "message_log", "make", "after")
    + _points(FRESH, "message_log", "create", "before torn after")
    + _points(FRESH, "dispatch_reserve", "make", "after")
    + _points(FRESH, "ledger", "create", "torn")
    + _points(FRESH, "days", "write", "torn after")
    + _points(FRESH, "days", "replace", "before after")
    + _points(FRESH, "sequences", "replace", "before after", hit=2)
    + _points(FRESH, "broker.store", "create", "torn")
    + _points(FRESH, "broker.queue", "create", "torn")
    + _points(FRESH, "broker.progress", "create", "torn")
    # The index of ids: its runs and their table, which a start makes anew where they do not fit.
    + _points(LOAD, "keys", "create", "torn after")
    + _points(LOAD, "keys", "append", ALL_MOMENTS)
    + _points(LOAD, "keys", "sync", "before after")
    + _points(LOAD, "keys", "replace", "before after")
    + _points(LOAD, "keys", "remove", "before after")
    # Accepting: the append, its sync, the answer.
    + _points(LOAD, "message_log", "append", ALL_MOMENTS, hit=6)
    + _points(LOAD, "message_log", "sync", "before after", hit=8)
    + _points(LOAD, "message_log", "make", "after", name="message_log.roll.make", hit=3)
    + _points(LOAD, "message_log", "create", "torn after", name="message_log.roll.header", hit=3)
    + _points(LOAD, "message_log", "replace", "before after", name="message_log.roll.name")
    + _points(LOAD, "names", "append", ALL_MOMENTS, hit=2)
    + _points(LOAD, "names", "sync", "after", hit=2)
    # Replay into windows.
    + _points(LOAD, "schedule", "make", "before after", hit=2)
    + _points(LOAD, "schedule", "create", "torn after", hit=2)
    + _points(LOAD, "schedule", "append", ALL_MOMENTS, hit=6)
    + _points(LOAD, "schedule", "sync", "before after", hit=3)
    + _points(LOAD, "checkpoint", "write", "before torn after", hit=3)
    + _points(LOAD, "checkpoint", "cut", "before after", hit=3)
    + _points(LOAD, "checkpoint", "sync", "after", hit=3)
    + _points(LOAD, "checkpoint", "replace", "before after", hit=3)
    # Delivery and its outcome.
    + _points(LOAD, "broker.store", "append", ALL_MOMENTS, hit=6)
    + _points(LOAD, "broker.store", "sync", "before after", hit=6)
    + _points(LOAD, "broker.store", "create", "torn after", name="broker.store.roll.header", hit=2)
    + _points(LOAD, "broker.store", "replace", "before after", name="broker.store.roll.name")
    + _points(LOAD, "broker.index", "create", "torn")
    + _points(LOAD, "broker.index", "replace", "before after")
    + _points(LOAD, "dispatch", "create", "torn after", hit=2)
    + _points(LOAD, "dispatch", "append", ALL_MOMENTS, hit=6)
    + _points(LOAD, "dispatch", "sync", "before after", hit=6)
    # Consumers.
    + _points(LOAD, "broker.progress", "append", ALL_MOMENTS, hit=4)
    + _points(LOAD, "broker.progress", "sync", "before after", hit=4)
    # Recovery itself.
    + _points(RESTART, "sequences", "write", "torn")
    + _points(RESTART, "sequences", "replace", "before after")
    + _points(RESTART, "message_log", "sync", "before after")
    + _points(RESTART, "schedule", "sync", "before after")
    + _points(RESTART, "dispatch", "append", "before torn after")
    + _points(RESTART, "broker.store", "append", "torn")
    + _points(RESTART, "checkpoint", "replace", "before after")
    + _points(TORN_RESTART, "message_log", "cut", "before after", earlier="message_log.append.torn")
    + _points(TORN_RESTART, "schedule", "cut", "before after", earlier="schedule.append.torn")
    + _points(TORN_RESTART, "dispatch", "cut", "before after", earlier="dispatch.append.torn")
    + _points(TORN_RESTART, "broker.store", "cut", "before after", earlier="broker.store.append.torn")
    + _points(TORN_RESTART, "broker.progress", "cut", "before after", earlier="broker.progress.append.torn")
    + _points(TORN_RESTART, "names", "cut", "before after", earlier="names.append.torn")
    # Disk given back.
    + _points(RETENTION, "ledger", "append", ALL_MOMENTS)
    + _points(RETENTION, "ledger", "sync", "before after")
    + _points(RETENTION, "schedule", "remove", "before after")
    + _points(RETENTION, "dispatch", "remove", "before after")
    + _points(RETENTION, "message_log", "remove", "before after")
    + _points(RETENTION, "broker.store", "remove", "before after")
    + _points(RETENTION, "broker.index", "remove", "before after")
    # Shorter than the room that was kept for it.
    + _points(RETENTION, "broker.checkpoint", "cut", "before after")
    # A coarse day: its file, the outcomes of what was cancelled in it.
    + _points(COARSE, "schedule_day", "create", "torn after")
    + _points(COARSE, "schedule_day", "append", ALL_MOMENTS, hit=5)
    + _points(COARSE, "schedule_day", "sync", "before after", hit=2)
    + _points(COARSE, "dispatch_day", "create", "torn after")
    + _points(COARSE, "dispatch_day", "append", ALL_MOMENTS, hit=2)
    + _points(COARSE, "dispatch_day", "sync", "before after", hit=2)
    # It becomes windows.
    + _points(DAYS, "days", "write", "torn", name="days.seal.write")
    + _points(DAYS, "days", "replace", "before after", name="days.seal.replace")
    + _points(DAYS, "schedule_drained", "create", "torn after", name="days.drain.create", hit=2)
    + _points(DAYS, "schedule_drained", "append", ALL_MOMENTS, name="days.drain.append", hit=3)
    + _points(DAYS, "schedule_drained", "sync", "before after", name="days.drain.sync")
    + _points(DAYS, "days", "replace", "before after", name="days.drained.replace", hit=2)
    + _points(DAYS, "schedule_day", "remove", "before after", name="days.file.remove")
    + _points(DAYS, "dispatch_day", "remove", "before after", name="days.outcomes.remove")
    # A clean stop that does not get to its end.
    + _points(STOP, "checkpoint", "replace", "before after")
    + _points(STOP, "broker.checkpoint", "write", "torn")
    + _points(STOP, "broker.checkpoint", "replace", "before after")
    + _points(STOP, "sequences", "write", "torn")
    + _points(STOP, "sequences", "replace", "before after")
)

# Operations that need no point of their own, by verb, and why.
NO_POINT: dict[str, str] = {
    "make": "the first write into the file follows, and has a point before it",
    "allocate": "between make and create: the file holds no record yet",
    "sync_directory": "the kernel outlives the process and forgets no entry; the simulated disk does",
}
# Files of which only the first bytes are written where no test is large enough for more.
RARELY_WRITTEN = {"broker.queue": "index rows go there when thousands of runs wait for one consumer group"}
# Small files: the sync lies between the write and the replace, which have points.
REPLACED = ("checkpoint", "broker.checkpoint", "broker.index", "days", "sequences", "identity")
RESERVE = "dispatch_reserve"  # nothing is ever read from it


def needs_point(operation: Operation) -> bool:
    """Whether the list must have a point of this operation."""
    if operation.verb in NO_POINT or operation.room == RESERVE:
        return False
    return operation.verb != "sync" or operation.room not in (*REPLACED, *RARELY_WRITTEN)


BY_NAME = {point.name: point for point in POINTS}
