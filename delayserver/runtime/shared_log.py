"""The door to a shared log: one ordered log of bytes, to which all members of a shard append, and which all of them follow.

Only a cluster has one. An engine brings it: Kafka, or a list in the simulation. Another engine is one file, and
`tests/delayserver/shared_log/conformance.py` is the suite that it passes. The door knows neither envelopes nor epochs: which
records count is the rule of `store.shared.log_order`, the same for all engines.

Everything here is called on the event loop. What a call does in threads of its own is the engine's matter.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn, Protocol

RECORD_BYTES_MAX = 32 << 20
"""The longest record that a member appends: a commit group, or a request of one frame, with room to spare. Every engine
takes records of this length."""
IN_FLIGHT_MAX = 64
"""How many records a member has in flight at most: handed over, and neither read back nor given up. Every engine takes so
many at once, so `append` never waits."""
ASK_MS_MAX = 1_000
"""How long `ask` waits for an answer. A standby claims after 1.5 s of silence, and only where the log has answered."""
ANSWER_MS_MAX = 10_000
"""How long `trim` and `describe` wait for an answer. They are rare, and nobody's send waits for them."""


class LogRecord(NamedTuple):
    """A record as it was read back."""

    position: int
    """Its place in the log, from 0 on. Positions grow from record to record, and may leave numbers out."""
    data: bytes


class SharedLogError(Exception):
    """Base of all errors of a shared log. A bug of the caller raises none of them."""


class LogLost(SharedLogError):
    """The log does not have what the caller must read next: it was trimmed away, or the log has less than it had.

    What to do: the member stops following, by this name. If acknowledged records are gone, the operator heals the shard. It
    never goes on at another position.

    An engine may miss that a tail was lost, if the log has grown beyond it since. Then the order of the records shows it.
    """

    def __init__(self, shard: int, start: int, stop: int, detail: str) -> None:
        super().__init__(f"the log of shard {shard} has no positions {start} to {stop}: {detail}")
        self.shard = shard
        self.start = start
        """The first position that is missing."""
        self.stop = stop
        """The position behind the last one that is missing, as far as the engine knows."""


class LogTrimmed(LogLost):
    """The log begins behind the position from which the caller reads. Nothing is wrong with the log.

    What to do: the member stops, by this name. Its directory is made anew from a snapshot, of `stop` or a later position.
    """

    def __init__(self, shard: int, start: int, stop: int) -> None:
        super().__init__(
            shard,
            start,
            stop,
            f"they were trimmed. Make the directory anew from a backup that has position {stop} or a later one "
            "(delayserver restore)",
        )


class LogUnusable(SharedLogError):
    """The log cannot be used as it is set up: it does not exist, or its engine refuses this member. Waiting does not help.

    What to do: the member stops, by this name. The text says what the operator has to change.
    """


class LogMissing(LogUnusable):
    """There is no such log. What to do: it is made once, when the cluster is founded."""


class LogUnavailable(SharedLogError):
    """The log gave no answer within the time limit of the call.

    What to do: the caller tries again later. It knows nothing new: a log that does not answer is neither silent nor lost.
    """


class AppendFailed(SharedLogError):
    """A record that was handed over can never be confirmed. It may be in the log or not. Nothing was appended behind it.

    What to do: the member steps down and opens the log anew. What it has not read back is in doubt.
    """


@dataclass(frozen=True, slots=True)
class LogFault:
    """A setting of a log that makes it unsafe or unfit for a shard."""

    text: str
    """What is wrong, as a sentence: the setting, what it is, what it must be."""
    remedy: str
    """The command that mends it."""


@dataclass(frozen=True, slots=True)
class LogDescription:
    """What an engine says about a log, asked for at one moment."""

    copies: int
    """How many copies the engine keeps of each record."""
    in_sync_min: int
    """How many copies have a record before it counts as appended."""
    record_bytes_max: int
    """The longest record that the log takes."""
    first: int
    """The lowest position that can be read."""
    end: int
    """The position behind the last record."""
    in_sync: int
    """How many of the copies have all records now."""
    faults: tuple[LogFault, ...] = ()
    """A member does not start with a log that has any."""


class SharedLog(Protocol):
    """The log of one shard, as one member uses it once: `run` ends, and with it the log. A member that steps down opens a
    new one.

    An appended record lands in the log once, or is copied by a retry, and is never changed. The first copies of the records
    of one `SharedLog` stand in the order of their calls, and none is left out before a later one.
    """

    async def run(self, position: int, arrived: Callable[[Sequence[LogRecord]], None]) -> NoReturn:
        """Read from `position` on, and append what is handed over, until cancelled.

        Each record at or behind `position` is given to `arrived` once, in the order of the log, as soon as the log gives it
        to readers. `arrived` gets batches of one record or more, bounded by the engine. It is called on the event loop,
        from this task or from the engine's callback, and never from within another call of this log.

        A log that does not answer is no error: the engine goes on trying. Raises LogLost (nothing is skipped, and nothing
        behind the missing part arrives), LogUnusable, AppendFailed, and whatever `arrived` raises. After that, and after a
        cancellation, nothing arrives. Threads and connections of the engine have ended.
        """

    def append(self, record: bytes) -> None:
        """Hand over a record of 1 to RECORD_BYTES_MAX bytes, without waiting. At most IN_FLIGHT_MAX are in flight.

        The caller knows that it is appended when it arrives. `run` begins to append what was handed over before it. What is
        handed over after the end of `run` is dropped. What was in flight at that time may land, or land later, or never.
        """

    async def ask(self) -> int:
        """The end of the log, asked for now: the position behind the last record that is appended for good.

        An answer proves that the log answered after the call began. Raises LogUnavailable after ASK_MS_MAX, LogUnusable.
        """

    def pause(self) -> None:
        """Stop reading: nothing arrives until `resume`. For a member whose replay lags, so that its memory is bounded.
        Appends go on."""

    def resume(self) -> None:
        """Go on reading, without a gap. Without a pause it does nothing."""

    async def trim(self, position: int) -> None:
        """Remove all records below `position`, which is at most the end. After the return nobody can read them.

        Raises LogUnavailable after ANSWER_MS_MAX: the records may be removed then, or not. Raises LogUnusable.
        """

    async def describe(self) -> LogDescription:
        """Positions, copies, and faults of the settings. Raises LogUnavailable after ANSWER_MS_MAX, LogUnusable."""


class LogEngine(Protocol):
    """Where the logs of shards come from: the sixth door of a server, beside those to clock, chance, workers, files and
    connections."""

    def open(self, shard: int) -> SharedLog:
        """A log that has not run yet. `ask`, `trim` and `describe` serve from now to the end of its `run`. Does no I/O."""
